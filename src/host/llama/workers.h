// A few threads that share loops.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LLAMA_WORKERS_H
#define LLAMA_WORKERS_H

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace llama {

// CPUs of the process's affinity mask and of the quotas of its control groups, at least 1.
unsigned usable_cpus();

// One loop at a time; the caller works too. Bodies must not throw.
class Workers {
  public:
    explicit Workers(unsigned n_threads);  // the caller's included; 0 = usable_cpus()
    ~Workers();
    Workers(const Workers &) = delete;
    Workers &operator=(const Workers &) = delete;

    unsigned n_threads() const { return static_cast<unsigned>(threads_.size()) + 1; }

    // body(i) for every i of 0 .. n-1, in any order.
    void each(std::size_t n, const std::function<void(std::size_t)> &body);

  private:
    void serve();
    void work(const std::function<void(std::size_t)> &body, std::size_t n);

    std::vector<std::thread> threads_;
    std::mutex mutex_;
    std::condition_variable start_;
    std::condition_variable done_;
    const std::function<void(std::size_t)> *body_ = nullptr;
    std::size_t n_ = 0;
    std::atomic<std::size_t> next_{0};
    unsigned round_ = 0;
    unsigned busy_ = 0;
    bool stop_ = false;
};

}  // namespace llama

#endif
