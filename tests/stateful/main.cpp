// stateful [--seed N] [--operations M] [--seconds S] [--device cpu|cuda|vulkan] [--mask NAMES]
//          [--full-budget] [--cycle C] [--one-cache]
//
// Random caches under random verbs against the model of plain token lists. A failure prints the
// seed that repeats it alone. --cycle begins again with the first seed after C caches.
//
// With --seconds, the process's memory is measured over the second half, without what malloc()
// keeps of freed memory: that comes and goes by megabytes with the largest of the last caches.
// CUDA's driver loads a kernel when it is used first, and random plans go on finding kernels that
// none has used for hours: such a run has all of them loaded at its start
// (CUDA_MODULE_LOADING=EAGER, unless the environment says otherwise), so that what grows is what
// the library holds.
//
// SPDX-License-Identifier: Apache-2.0
#include <malloc.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "machine.h"

using namespace stateful;

namespace {

constexpr uint64_t kRunsOfCache = 120;
constexpr int kSkipped = 77;
// Values are at most 1. The reference answers in FP32 what it found in double precision; the fast
// paths round queries to 15 bits.
constexpr double kReferenceTolerance = 2e-6;
constexpr double kFastTolerance = 1e-3;

struct Arguments {
    uint64_t seed = 1;
    uint64_t operations = 200000;
    double seconds = 0;  // when not 0, in place of operations
    uint64_t cycle = ~uint64_t{0};
    bool one_cache = false;
    Options options;
};

uint64_t number(const char *text) { return std::strtoull(text, nullptr, 10); }

Arguments parse(int argc, char **argv) {
    Arguments out;
    for (int i = 1; i < argc; ++i) {
        const char *next = i + 1 < argc ? argv[i + 1] : "";
        if (!std::strcmp(argv[i], "--full-budget"))
            out.options.is_full = true;
        else if (!std::strcmp(argv[i], "--one-cache"))
            out.one_cache = true;
        else if (!std::strcmp(argv[i], "--seed"))
            out.seed = number(next), ++i;
        else if (!std::strcmp(argv[i], "--operations"))
            out.operations = number(next), ++i;
        else if (!std::strcmp(argv[i], "--cycle"))
            out.cycle = number(next), ++i;
        else if (!std::strcmp(argv[i], "--seconds"))
            out.seconds = std::atof(next), ++i;
        else if (!std::strcmp(argv[i], "--device"))
            out.options.device = rig_named(next), ++i;
        else if (!std::strcmp(argv[i], "--mask"))
            rig_vulkan_mask(next), ++i;
    }
    return out;
}

// Resident memory of the process; 0 where the system does not report it.
uint64_t resident_bytes() {
    malloc_trim(0);
    std::FILE *file = std::fopen("/proc/self/statm", "r");
    unsigned long long size = 0, resident = 0;
    if (!file || std::fscanf(file, "%llu %llu", &size, &resident) != 2)
        resident = 0;
    if (file)
        std::fclose(file);
    return resident * 4096;
}

// Before the driver starts.
void load_kernels_at_start(const Arguments &arguments) {
    if (arguments.options.device->backend != LK_BACKEND_CUDA || arguments.seconds <= 0)
        return;
    if (setenv("CUDA_MODULE_LOADING", "EAGER", 0) != 0)
        std::abort();
    std::printf("CUDA_MODULE_LOADING=%s\n", std::getenv("CUDA_MODULE_LOADING"));
}

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
    return std::chrono::duration<double>(Clock::now() - start).count();
}

lk_context *open_context(const Options &options, uint32_t cpu_mask, Memory *memory) {
    lk_context_desc desc;
    lk_context *context = nullptr;
    if (lk_context_desc_init(&desc, sizeof desc) != LK_OK)
        std::abort();
    desc.backend = options.device->backend;
    desc.n_threads = 1;
    desc.cpu_mask = desc.backend == LK_BACKEND_CPU ? cpu_mask : 0;
    if (options.device->describe)
        options.device->describe(&desc);
    const Memory::Outside context_alone(memory);
    memory->describe(&desc);
    const lk_status status = lk_context_open(&desc, LK_ABI_VERSION, &context);
    if (!status)
        return context;
    char sentence[512];
    lk_last_error(sentence, sizeof sentence, nullptr);
    std::printf("skipped: %s\n", sentence);
    std::exit(status == LK_E_UNSUPPORTED || status == LK_E_NOT_FOUND ? kSkipped : 1);
}

// A cache of its own seed, through its life. false: it was wrong, and it was said.
bool run_cache(lk_context *context, const Options &options, uint64_t seed, Counts *counts) {
    Choices choices(seed);
    Machine machine(context, options, &choices, counts);
    for (uint64_t i = 0; i < kRunsOfCache; ++i)
        if (!machine.run()) {
            std::printf("seed %llu, run %llu: %s\nrepeat with --seed %llu --one-cache\nplan %s\n",
                        static_cast<unsigned long long>(seed), static_cast<unsigned long long>(i),
                        machine.why().c_str(), static_cast<unsigned long long>(seed),
                        machine.describe().c_str());
            return false;
        }
    return true;
}

void print(const Counts &c, double seconds) {
    std::printf(
        "%llu operations on %llu caches in %.1f s: %llu answers compared (the worst at %.0f %% "
        "of its tolerance), %llu forks, %llu truncations, %llu discards, %llu saves, %llu "
        "loads, %llu shrinks, %llu deferrals, %llu assignments, %llu requests for scores, %llu "
        "budgets, %llu "
        "evictions, %llu faults, %llu refusals for bytes, %llu outputs of spoiled queries; hooks "
        "gave "
        "%.1f %% of what a cache may hold at most\n",
        static_cast<unsigned long long>(c.operations), static_cast<unsigned long long>(c.caches),
        seconds, static_cast<unsigned long long>(c.answers), 100 * c.worst,
        static_cast<unsigned long long>(c.forks), static_cast<unsigned long long>(c.truncations),
        static_cast<unsigned long long>(c.discards), static_cast<unsigned long long>(c.saves),
        static_cast<unsigned long long>(c.loads), static_cast<unsigned long long>(c.shrinks),
        static_cast<unsigned long long>(c.deferrals),
        static_cast<unsigned long long>(c.assignments), static_cast<unsigned long long>(c.scorings),
        static_cast<unsigned long long>(c.budgets), static_cast<unsigned long long>(c.evictions),
        static_cast<unsigned long long>(c.faults), static_cast<unsigned long long>(c.refusals),
        static_cast<unsigned long long>(c.spoiled), 100 * c.fullest);
}

}  // namespace

int main(int argc, char **argv) {
    const Arguments arguments = parse(argc, argv);
    load_kernels_at_start(arguments);
    // Every answer by the reference, and by the fast paths of this machine.
    Memory memories[2];
    lk_context *contexts[] = {open_context(arguments.options, LK_CPU_REFERENCE_ONLY, &memories[0]),
                              open_context(arguments.options, 0, &memories[1])};
    const Clock::time_point start = Clock::now();
    Counts counts;
    bool right = true;
    uint64_t half_way = 0;
    std::printf("seed %llu\n", static_cast<unsigned long long>(arguments.seed));
    for (uint64_t n = 0; right; ++n) {
        const uint64_t seed = arguments.seed + n % arguments.cycle;
        const double seconds = seconds_since(start);
        if (arguments.seconds > 0 ? seconds >= arguments.seconds
                                  : counts.operations >= arguments.operations)
            break;
        if (!half_way && arguments.seconds > 0 && seconds >= arguments.seconds / 2)
            half_way = resident_bytes();
        Options options = arguments.options;
        if (options.device->backend == LK_BACKEND_CPU)
            options.tolerance = seed % 2 ? kFastTolerance : kReferenceTolerance;
        options.memory = &memories[seed % 2];
        right = run_cache(contexts[seed % 2], options, seed, &counts);
        if (arguments.one_cache)
            break;
    }
    const double seconds = seconds_since(start);
    print(counts, seconds);
    if (half_way) {
        const double grown = static_cast<double>(resident_bytes()) - static_cast<double>(half_way);
        const double rate = grown / 1048576 / (seconds / 2) * 600;
        std::printf(
            "resident memory: %.1f MiB, grown by %.2f MiB over the second half, %.2f MiB in 10 "
            "minutes\n",
            static_cast<double>(resident_bytes()) / 1048576, grown / 1048576, rate);
        // What a run of seconds says of ten minutes is mostly noise.
        if (seconds >= 400 && rate > 1) {
            std::printf("that is more than 1 MiB in 10 minutes\n");
            right = false;
        }
    }
    for (lk_context *&context : contexts)
        if (lk_context_close(&context) != LK_OK)
            right = false;
    return right ? 0 : 1;
}
