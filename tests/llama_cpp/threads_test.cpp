// lowkey-threads alone, under ThreadSanitizer: threads that run the operations of a graph with a
// barrier after each, as those of ggml do. Needs no llama.cpp and no lowkey library.
//
// SPDX-License-Identifier: Apache-2.0
#include <lowkey-threads.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <initializer_list>
#include <thread>
#include <vector>

namespace {

constexpr uint32_t kMaxTasks = 70;
constexpr unsigned kMostSeconds = 300;

void require(bool holds, const char *sentence) {
    if (holds)
        return;
    std::fprintf(stderr, "failed: %s\n", sentence);
    std::exit(1);
}

class Barrier {
  public:
    void wait(uint32_t n_threads) {
        const uint32_t round = round_.load(std::memory_order_acquire);
        if (n_waiting_.fetch_add(1, std::memory_order_acq_rel) + 1 == n_threads) {
            n_waiting_.store(0, std::memory_order_relaxed);
            round_.fetch_add(1, std::memory_order_release);
            return;
        }
        while (round_.load(std::memory_order_acquire) == round)
            std::this_thread::yield();
    }

  private:
    std::atomic<uint32_t> round_{0}, n_waiting_{0};
};

// Tasks write plain memory: a task that runs twice, early or late is a data race.
struct Job {
    uint32_t counts[kMaxTasks] = {};
};

void count(void *task_data, uint32_t index) { ++static_cast<Job *>(task_data)->counts[index]; }

// A job whose tasks wait for each other, which they can if every thread takes one of them.
struct Meeting {
    uint32_t n_tasks;
    std::atomic<uint32_t> n_begun{0};
};

void meet(void *task_data, uint32_t) {
    Meeting &meeting = *static_cast<Meeting *>(task_data);
    meeting.n_begun.fetch_add(1, std::memory_order_relaxed);
    while (meeting.n_begun.load(std::memory_order_relaxed) < meeting.n_tasks)
        std::this_thread::yield();
}

// A call of lowkey: some jobs, each of other tasks and other data.
void call(lowkey::HostThreads *host, uint32_t seed) {
    for (uint32_t k = 0; k < seed % 4; ++k) {
        const uint32_t n_tasks = 2 + (seed * 7 + k * 13) % (kMaxTasks - 1);
        Job job;
        lowkey::HostThreads::run_tasks(host, n_tasks, count, &job);
        for (uint32_t i = 0; i < kMaxTasks; ++i)
            require(job.counts[i] == (i < n_tasks), "each task ran once before the call went on");
    }
}

void run_graph(lowkey::HostThreads *host, Barrier *barrier, uint32_t thread, uint32_t n_threads,
               uint32_t n_operations) {
    host->run(thread, n_threads, [&] {
        Meeting meeting{n_threads};
        lowkey::HostThreads::run_tasks(host, n_threads, meet, &meeting);
    });
    barrier->wait(n_threads);
    for (uint32_t i = 0; i < n_operations; ++i) {
        // Sometimes thread 0 comes last, sometimes first.
        if ((i + thread) % 5 == 0)
            std::this_thread::yield();
        host->run(thread, n_threads, [&] { call(host, i); });
        barrier->wait(n_threads);
    }
}

}  // namespace

int main() {
    alarm(kMostSeconds);  // for threads that never meet
    lowkey::HostThreads host;
    Barrier barrier;
    // Graphs of other numbers of threads follow one another, calls outside of a graph between them.
    for (const uint32_t n_threads : {1u, 4u, 2u, 3u, 1u, 4u}) {
        std::vector<std::thread> others;
        for (uint32_t i = 1; i < n_threads; ++i)
            others.emplace_back(run_graph, &host, &barrier, i, n_threads, 1500);
        run_graph(&host, &barrier, 0, n_threads, 1500);
        for (std::thread &other : others)
            other.join();
        call(&host, 3);
    }
    std::puts("threads: ok");
}
