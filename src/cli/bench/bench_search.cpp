// How fast the chunks of a context are scored: cosines of embeddings, and BM25 over token ids.
//
// SPDX-License-Identifier: Apache-2.0
#include <lowkey/chunks.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <nlohmann/json.hpp>
#include <utility>

#include "cli/bench/bench.h"
#include "cli/common/report.h"

namespace cli {
namespace {

constexpr std::uint32_t kChunkTokens = 32;
constexpr std::uint32_t kQueryTokens = 32;
constexpr std::uint32_t kVocabulary = 32000;

struct SearchRow {
    std::string scores;  // "cosine f16", "cosine f32", "bm25"
    std::uint64_t n_bytes;
    Timing time;

    double bytes_per_s() const { return static_cast<double>(n_bytes) / time.median_s; }
};

Timing time_work(const BenchOptions &options,
                 const std::function<double(const std::function<void()> &)> &time,
                 const std::function<void()> &work) {
    std::vector<double> samples;
    for (std::uint32_t i = 0; i < options.n_repeats + kWarmUps; ++i) {
        const double seconds = time(work);
        if (i >= kWarmUps)
            samples.push_back(seconds);
    }
    return summarise(std::move(samples));
}

// Random numbers as the 16-bit words of a type.
std::vector<std::uint16_t> draw_words(std::uint64_t n, lk_dtype dtype, llama::Random &random) {
    const auto n_channels = static_cast<std::uint32_t>(std::min<std::uint64_t>(n, 128));
    if (dtype == LK_F16)
        return random_halves(n, n_channels, false, random);
    std::vector<float> values(n);
    fill_random(values, n_channels, false, random);
    std::vector<std::uint16_t> words(2 * n);
    std::memcpy(words.data(), values.data(), n * sizeof(float));
    return words;
}

lk_tensor place_tensor(const SearchPlace &place, std::uint64_t n_rows, std::uint32_t n_channels,
                       lk_dtype dtype, llama::Random &random) {
    lk_tensor tensor = place.put(draw_words(n_rows * n_channels, dtype, random));
    tensor.dtype = dtype;
    tensor.token_stride = n_channels;
    tensor.head_stride = n_channels;
    return tensor;
}

SearchRow time_cosine(const BenchOptions &options, const SearchPlace &place, lk_dtype dtype) {
    const std::uint32_t n_chunks = options.n_chunks;
    const std::uint32_t n_channels = options.n_channels;
    llama::Random random(kBenchSeed);
    const lk_tensor embeddings = place_tensor(place, n_chunks, n_channels, dtype, random);
    const lk_tensor query = place_tensor(place, 1, n_channels, dtype, random);
    const lk_tensor scores = place_tensor(place, n_chunks, 1, LK_F32, random);
    const auto score = [&] {
        llama::check(lk_chunks_score_cosine(place.context, place.queue, &embeddings, &query,
                                            n_chunks, n_channels, &scores));
    };
    const std::uint64_t element_bytes = dtype == LK_F16 ? 2 : 4;
    return {dtype == LK_F16 ? "cosine f16" : "cosine f32",
            (std::uint64_t{n_chunks} + 1) * n_channels * element_bytes + n_chunks * sizeof(float),
            time_work(options, place.time, score)};
}

// On a core of the host, whatever the device, with the ids in its caches. Of ids as many small as
// large ones are drawn in each power of two, so that some tokens are frequent.
SearchRow time_bm25(const BenchOptions &options) {
    llama::Random random(kBenchSeed);
    const auto draw = [&] {
        const std::size_t below = std::size_t{2} << random.below(15);
        return static_cast<std::uint32_t>(random.below(std::min<std::size_t>(below, kVocabulary)));
    };
    std::vector<std::uint32_t> tokens(std::uint64_t{options.n_chunks} * kChunkTokens);
    std::vector<std::uint32_t> query(kQueryTokens);
    std::generate(tokens.begin(), tokens.end(), draw);
    std::generate(query.begin(), query.end(), draw);
    lk_bm25 bm25 = llama::initialised(lk_bm25_init);
    bm25.chunk_tokens = kChunkTokens;
    std::vector<float> scores(options.n_chunks);
    const auto score = [&] {
        llama::check(lk_chunks_score_bm25(&bm25, tokens.data(), nullptr, options.n_chunks,
                                          query.data(), kQueryTokens, scores.data()));
    };
    return {"bm25", tokens.size() * sizeof tokens[0], time_work(options, time_host, score)};
}

Json to_json(const SearchRow &row, const BenchOptions &options, const SearchPlace &place) {
    return {{"scores", row.scores},
            {"chunks", options.n_chunks},
            {"channels", row.scores == "bm25" ? 0 : options.n_channels},
            {"median_s", row.time.median_s},
            {"quartile_low_s", row.time.low_s},
            {"quartile_high_s", row.time.high_s},
            {"bytes", row.n_bytes},
            {"bytes_per_s", row.bytes_per_s()},
            {"copy_bytes_per_s", place.copy_bytes_per_s},
            {"share_of_copy", row.bytes_per_s() / place.copy_bytes_per_s}};
}

void print(const std::vector<SearchRow> &rows, const BenchOptions &options,
           const SearchPlace &place) {
    std::printf("scores of %u chunks: embeddings of %u channels, %u tokens each for BM25, %s\n\n",
                options.n_chunks, options.n_channels, kChunkTokens, options.warm ? "warm" : "cold");
    Table table({"scores", "ms", "quartiles", "read", "GB/s", "of copy"});
    for (const SearchRow &row : rows)
        table.add({row.scores, format_fixed(row.time.median_s * 1e3, 4),
                   format_quartiles(row.time, 1e3, 4),
                   format_bytes(static_cast<double>(row.n_bytes)),
                   format_fixed(row.bytes_per_s() / 1e9, 1),
                   format_percent(row.bytes_per_s() / place.copy_bytes_per_s)});
    table.print();
    std::printf(
        "\ncopy: %.1f GB/s, read and written bytes together; BM25 is on a core of the host, warm\n",
        place.copy_bytes_per_s / 1e9);
}

}  // namespace

double time_search(const BenchOptions &options, const SearchPlace &place, std::uint64_t n_chunks) {
    BenchOptions one = options;
    one.n_chunks = static_cast<std::uint32_t>(n_chunks);
    return time_cosine(one, place, LK_F16).time.median_s;
}

int run_search_bench(const BenchOptions &options, const SearchPlace &place) {
    const std::vector<SearchRow> rows = {time_cosine(options, place, LK_F16),
                                         time_cosine(options, place, LK_F32), time_bm25(options)};
    if (!options.json) {
        print(rows, options, place);
        return 0;
    }
    Json json = to_json(options);
    json["measured"] = "search";
    for (const SearchRow &row : rows)
        json["rows"].push_back(to_json(row, options, place));
    print_json(json);
    return 0;
}

}  // namespace cli
