// The divergences of a cost run as bytes (docs/costs.md), which a reader distrusts.
//
// SPDX-License-Identifier: Apache-2.0
#include <cstring>

#include "base/status.h"
#include "format/bulk.h"
#include "stats/cost_run.h"

namespace lk {

namespace {

constexpr char kCostRunMagic[8] = "LKCOSTS";
constexpr uint32_t kVersion = 1;
constexpr uint64_t kNotMeasured = 0x7FF8000000000000u;  // in place of a double
constexpr size_t kHeaderBytes = 56;
constexpr size_t kHashBytes = 8;

// What the file has in front of the divergences, in this order.
struct Header {
    char magic[8];
    uint32_t version;
    uint32_t n_kinds;
    uint32_t n_documents;
    uint32_t n_clips;
    uint32_t sink_tokens;
    uint32_t recent_tokens;
    uint64_t geometry;
    uint64_t fingerprint;
    uint64_t n_trials;
};
static_assert(sizeof(Header) == kHeaderBytes, "the header has no padding");

Header header_of(const CostRun &run) {
    Header header = {};
    std::memcpy(header.magic, kCostRunMagic, sizeof kCostRunMagic);
    header.version = kVersion;
    header.n_kinds = run.options.n_kinds;
    header.n_documents = run.options.n_documents;
    header.n_clips = run.n_clips();
    header.sink_tokens = run.options.sink_tokens;
    header.recent_tokens = run.options.recent_tokens;
    header.geometry = geometry_hash(run.reference);
    header.fingerprint = run.options.fingerprint;
    header.n_trials = run.n_trials();
    return header;
}

lk_status mismatch(const char *name, uint64_t found, uint64_t own) {
    return fail(LK_E_MISMATCH, "the divergences are of a run with %s %llu, this one has %llu", name,
                ull{found}, ull{own});
}

lk_status compare(const Header &found, const Header &own) {
    if (found.geometry != own.geometry)
        return fail(LK_E_MISMATCH, "the divergences are of another geometry");
    if (found.fingerprint != own.fingerprint)
        return mismatch("fingerprint", found.fingerprint, own.fingerprint);
    if (found.n_kinds != own.n_kinds)
        return mismatch("n_kinds", found.n_kinds, own.n_kinds);
    if (found.n_documents != own.n_documents)
        return mismatch("n_documents", found.n_documents, own.n_documents);
    if (found.n_clips != own.n_clips)
        return mismatch("clips", found.n_clips != 1, own.n_clips != 1);
    if (found.sink_tokens != own.sink_tokens)
        return mismatch("sink_tokens", found.sink_tokens, own.sink_tokens);
    if (found.recent_tokens != own.recent_tokens)
        return mismatch("recent_tokens", found.recent_tokens, own.recent_tokens);
    return LK_OK;
}

// The whole file but its divergences.
lk_status check_file(const CostRun &run, const uint8_t *bytes, size_t n_bytes) {
    Header found;
    if (n_bytes < kHeaderBytes + kHashBytes)
        return fail(LK_E_CORRUPT, "%zu bytes hold no divergences", n_bytes);
    std::memcpy(&found, bytes, sizeof found);
    if (std::memcmp(found.magic, kCostRunMagic, sizeof kCostRunMagic) != 0)
        return fail(LK_E_CORRUPT, "the bytes do not begin as divergences do");
    if (found.version != kVersion)
        return fail(LK_E_MISMATCH, "the divergences have version %u, this library reads %u",
                    found.version, kVersion);
    uint64_t hash;
    std::memcpy(&hash, bytes + n_bytes - kHashBytes, sizeof hash);
    if (hash != hash_bytes(bytes, n_bytes - kHashBytes))
        return fail(LK_E_CORRUPT, "the hash of the divergences does not fit");
    LK_TRY(compare(found, header_of(run)));
    if (found.n_trials != run.n_trials() || n_bytes != cost_run_bytes(run))
        return fail(LK_E_CORRUPT, "%zu bytes do not hold %llu divergences", n_bytes,
                    ull{found.n_trials});
    return LK_OK;
}

uint64_t pattern_of(const uint8_t *bytes, uint32_t trial) {
    uint64_t pattern;
    std::memcpy(&pattern, bytes + kHeaderBytes + trial * sizeof pattern, sizeof pattern);
    return pattern;
}

double as_double(uint64_t pattern) {
    double value;
    std::memcpy(&value, &pattern, sizeof value);
    return value;
}

}  // namespace

uint64_t cost_run_bytes(const CostRun &run) {
    return kHeaderBytes + uint64_t{run.n_trials()} * sizeof(double) + kHashBytes;
}

void write_cost_run(const CostRun &run, uint8_t *bytes) {
    const Header header = header_of(run);
    std::memcpy(bytes, &header, sizeof header);
    uint8_t *at = bytes + kHeaderBytes;
    for (uint32_t t = 0; t < run.n_trials(); ++t, at += sizeof(double))
        if (run.is_measured(t))
            std::memcpy(at, &run.bits[t], sizeof(double));
        else
            std::memcpy(at, &kNotMeasured, sizeof kNotMeasured);
    const uint64_t hash = hash_bytes(bytes, static_cast<uint64_t>(at - bytes));
    std::memcpy(at, &hash, sizeof hash);
}

lk_status read_cost_run(CostRun *run, const uint8_t *bytes, size_t n_bytes) {
    LK_TRY(check_file(*run, bytes, n_bytes));
    for (uint32_t t = 0; t < run->n_trials(); ++t) {
        const uint64_t pattern = pattern_of(bytes, t);
        if (pattern != kNotMeasured && !is_divergence(as_double(pattern)))
            return fail(LK_E_CORRUPT, "the divergence of trial %u is %g, must be %g to %g", t,
                        as_double(pattern), kLeastDivergence, kMostDivergence);
    }
    for (uint32_t t = 0; t < run->n_trials(); ++t) {
        const uint64_t pattern = pattern_of(bytes, t);
        if (pattern != kNotMeasured && !run->is_measured(t))
            set_divergence(run, t, as_double(pattern));
    }
    return LK_OK;
}

}  // namespace lk
