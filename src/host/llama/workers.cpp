// SPDX-License-Identifier: Apache-2.0
#include "workers.h"

#include <lowkey/context.h>

#include "handles.h"

namespace llama {

unsigned usable_cpus() {
    lk_device_info info = initialised(lk_device_info_init);
    check(lk_device_get(0, &info));
    return info.n_threads;
}

Workers::Workers(unsigned n_threads) {
    if (n_threads == 0)
        n_threads = usable_cpus();
    for (unsigned i = 1; i < n_threads; ++i)
        threads_.emplace_back([this] { serve(); });
}

Workers::~Workers() {
    {
        const std::lock_guard<std::mutex> lock(mutex_);
        stop_ = true;
    }
    start_.notify_all();
    for (std::thread &thread : threads_)
        thread.join();
}

void Workers::work(const std::function<void(std::size_t)> &body, std::size_t n) {
    for (std::size_t i = next_.fetch_add(1); i < n; i = next_.fetch_add(1))
        body(i);
}

void Workers::serve() {
    unsigned seen = 0;
    std::unique_lock<std::mutex> lock(mutex_);
    for (;;) {
        start_.wait(lock, [&] { return stop_ || round_ != seen; });
        if (stop_)
            return;
        seen = round_;
        const std::function<void(std::size_t)> &body = *body_;
        const std::size_t n = n_;
        lock.unlock();
        work(body, n);
        lock.lock();
        if (--busy_ == 0)
            done_.notify_one();
    }
}

void Workers::each(std::size_t n, const std::function<void(std::size_t)> &body) {
    if (n <= 1 || threads_.empty()) {
        for (std::size_t i = 0; i < n; ++i)
            body(i);
        return;
    }
    {
        const std::lock_guard<std::mutex> lock(mutex_);
        body_ = &body;
        n_ = n;
        next_ = 0;
        busy_ = static_cast<unsigned>(threads_.size());
        ++round_;
    }
    start_.notify_all();
    work(body, n);
    std::unique_lock<std::mutex> lock(mutex_);
    done_.wait(lock, [&] { return busy_ == 0; });
}

}  // namespace llama
