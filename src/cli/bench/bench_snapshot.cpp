// How fast a cache is saved and loaded, next to plain copies and plain files of as many bytes.
//
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include <fcntl.h>
#include <unistd.h>

#include "cli/bench/bench.h"
#include "cli/common/report.h"

namespace cli {
namespace {

// A compiler that knows that the copy is never read would leave it out.
void *(*const volatile plain_copy)(void *, const void *, std::size_t) = std::memcpy;

struct SnapshotRow {
    std::string plan;
    const char *what;
    const char *peer_name;
    std::uint64_t n_bytes;
    Timing time;
    Timing peer;

    double bytes_per_s() const { return static_cast<double>(n_bytes) / time.median_s; }
    double share() const { return peer.median_s / time.median_s; }
};

double seconds_of(const std::function<void()> &work) {
    const auto start = Clock::now();
    work();
    return seconds_since(start);
}

[[noreturn]] void fail(const char *action, const std::string &path) {
    throw std::runtime_error(std::string("cannot ") + action + " " + path + ": " +
                             std::strerror(errno));
}

// All bytes to a file, or from one, as the system takes them.
void move_file(const std::string &path, std::uint8_t *bytes, std::uint64_t n_bytes, bool writes) {
    const int file = writes ? ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666)
                            : ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (file < 0)
        fail("open", path);
    for (std::uint64_t done = 0; done < n_bytes;) {
        const ssize_t n = writes ? ::write(file, bytes + done, n_bytes - done)
                                 : ::read(file, bytes + done, n_bytes - done);
        if (n <= 0)
            fail(writes ? "write" : "read", path);
        done += static_cast<std::uint64_t>(n);
    }
    if ((writes && fsync(file)) || ::close(file))
        fail("close", path);
}

// The next reader has it from the disk.
void drop_from_memory(const std::string &path) {
    const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (file < 0)
        fail("open", path);
    const int error = posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED);
    if (::close(file) || error)
        fail("close", path);
}

// Files that go again.
class Files {
  public:
    explicit Files(const std::string &folder)
        : own(folder + "/bench.lksnap"), peer(folder + "/bench.bytes") {}
    ~Files() {
        (void)unlink(own.c_str());
        (void)unlink(peer.c_str());
    }
    Files(const Files &) = delete;
    Files &operator=(const Files &) = delete;

    const std::string own, peer;
};

class SnapshotMeasurement {
  public:
    SnapshotMeasurement(lk_context *context, const BenchOptions &options,
                        const std::string &plan_name, std::uint64_t n_tokens)
        : plan_name_(plan_name), n_repeats_(options.n_repeats), files_(options.snapshot) {
        const Shape &shape = options.shape;
        const llama::Geometry geometry = shape.geometry();
        const llama::PlanHandle plan = load_plan(plan_name, geometry);
        // Space for the sequence that is there and the one that is loaded.
        const CacheLimits limits = {n_tokens, kFillTokens, 2, kSlabBytes};
        cache_ = std::make_unique<SyntheticCache>(context, space_, plan.get(), shape, limits);
        llama::Random random(kBenchSeed);
        for (std::uint64_t done = 0; done < n_tokens; done += kFillTokens) {
            const std::uint64_t n = std::min<std::uint64_t>(kFillTokens, n_tokens - done);
            StepData data(shape, static_cast<std::uint32_t>(n), random);
            cache_->begin_one(0, data.n_tokens);
            cache_->append(data);
            cache_->commit();
        }
        llama::check(lk_sequence_remove(cache_->get(), cache_->id(1)));
    }

    std::vector<SnapshotRow> run();

  private:
    // Samples of both by turns, so that what else the machine does is shared out.
    void add(const char *what, const std::function<double()> &own, const char *peer_name,
             const std::function<void()> &peer);
    double load(const std::function<lk_status(lk_sequence *)> &from);

    const std::string plan_name_;
    const std::uint32_t n_repeats_;
    const Files files_;
    llama::HostSpace space_;
    std::unique_ptr<SyntheticCache> cache_;
    std::vector<std::uint8_t> saved_, copy_;
    std::vector<SnapshotRow> rows_;
};

void SnapshotMeasurement::add(const char *what, const std::function<double()> &own,
                              const char *peer_name, const std::function<void()> &peer) {
    std::vector<double> times, peers;
    for (std::uint32_t i = 0; i < kWarmUps / 2 + n_repeats_; ++i) {
        const double own_s = own();
        const double peer_s = seconds_of(peer);
        if (i < kWarmUps / 2)
            continue;
        times.push_back(own_s);
        peers.push_back(peer_s);
    }
    rows_.push_back(
        {plan_name_, what, peer_name, saved_.size(), summarise(times), summarise(peers)});
}

double SnapshotMeasurement::load(const std::function<lk_status(lk_sequence *)> &from) {
    lk_sequence id = 0;
    const double seconds = seconds_of([&] { llama::check(from(&id)); });
    llama::check(lk_sequence_remove(cache_->get(), id));
    return seconds;
}

std::vector<SnapshotRow> SnapshotMeasurement::run() {
    lk_cache *cache = cache_->get();
    std::uint64_t n_bytes = 0;
    llama::check(lk_snapshot_save_memory(cache, 0, nullptr, nullptr, nullptr, 0, &n_bytes));
    saved_.resize(n_bytes);
    copy_.resize(n_bytes);
    add(
        "save to memory",
        [&] {
            return seconds_of([&] {
                llama::check(lk_snapshot_save_memory(cache, 0, nullptr, nullptr, saved_.data(),
                                                     n_bytes, nullptr));
            });
        },
        "memcpy", [&] { plain_copy(copy_.data(), saved_.data(), n_bytes); });
    add(
        "load from memory",
        [&] {
            return load([&](lk_sequence *id) {
                return lk_snapshot_load_memory(cache, nullptr, saved_.data(), n_bytes, 1, id,
                                               nullptr);
            });
        },
        "memcpy", [&] { plain_copy(copy_.data(), saved_.data(), n_bytes); });
    add(
        "save to a file",
        [&] {
            return seconds_of([&] {
                llama::check(lk_snapshot_save_file(cache, 0, nullptr, nullptr, files_.own.c_str()));
            });
        },
        "write and fsync", [&] { move_file(files_.peer, saved_.data(), n_bytes, true); });
    add(
        "load from a file",
        [&] {
            drop_from_memory(files_.own);
            drop_from_memory(files_.peer);
            return load([&](lk_sequence *id) {
                return lk_snapshot_load_file(cache, nullptr, files_.own.c_str(), 1, id, nullptr);
            });
        },
        "read", [&] { move_file(files_.peer, copy_.data(), n_bytes, false); });
    return rows_;
}

Json to_json(const SnapshotRow &row) {
    return {{"plan", row.plan},
            {"what", row.what},
            {"bytes", row.n_bytes},
            {"median_s", row.time.median_s},
            {"quartile_low_s", row.time.low_s},
            {"quartile_high_s", row.time.high_s},
            {"bytes_per_s", row.bytes_per_s()},
            {"peer", row.peer_name},
            {"peer_median_s", row.peer.median_s},
            {"share_of_peer", row.share()}};
}

}  // namespace

int run_snapshot_bench(const BenchOptions &options) {
    const llama::ContextHandle context = options.device.open();
    const std::vector<std::string> plans =
        options.plans.empty() ? std::vector<std::string>{"fp16"} : options.plans;
    Json json = to_json(options);
    json["measured"] = "snapshot";
    Table table({"plan", "what", "bytes", "ms", "quartiles", "GB/s", "peer", "ms", "of it"});
    for (const std::string &plan : plans)
        for (const std::uint64_t n_tokens : options.tokens)
            for (const SnapshotRow &row :
                 SnapshotMeasurement(context.get(), options, plan, n_tokens).run()) {
                json["rows"].push_back(to_json(row));
                table.add({row.plan, row.what, format_bytes(static_cast<double>(row.n_bytes)),
                           format_fixed(row.time.median_s * 1e3, 1),
                           format_quartiles(row.time, 1e3, 1),
                           format_fixed(row.bytes_per_s() / 1e9, 2), row.peer_name,
                           format_fixed(row.peer.median_s * 1e3, 1), format_percent(row.share())});
            }
    if (options.json)
        print_json(json);
    else
        table.print();
    return 0;
}

}  // namespace cli
