// The cases that every backend is held to.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_TESTS_KERNELS_GRID_H
#define LK_TESTS_KERNELS_GRID_H

#include <vector>

#include "harness.h"

// Cases in which every value of every axis occurs with every value of every other one. kShort has
// at most 300 tokens and fewer values, for tools that make programs slow.
enum class Grid { kWhole, kShort };
std::vector<Case> covering_cases(Grid grid, uint64_t seed);

// The shapes that models run, each path of the kernels with its neighbours.
std::vector<Case> common_cases();

// Shared slots under several groups, and FP8 numbers of groups of 32.
std::vector<Case> chanmix_cases();

// Values of 1 bit, in steps of few query columns.
std::vector<Case> one_bit_cases();

// Several groups in a page with every width of keys and values: one order of channels for all pages
// or one for each, pairs or none, pages of two formats in a sequence.
std::vector<Case> grouped_cases();

// Steps of more tokens than drafts have, with at least 2048 query columns over packed pages; two of
// them over more pages than CUDA dequantizes at once.
std::vector<Case> long_cases();

// Steps with spans: of few tokens, of more than drafts have, and of many query columns. Some spans
// are longer than their window.
std::vector<Case> span_cases();

// More query heads for each KV head than a work item has columns.
std::vector<Case> ratio_cases();

// As many query heads for each KV head as fill work items of 16 columns, over keys of one chunk and
// values of 4 and 2 bits.
std::vector<Case> wide_item_cases();

// FP8 parameters of one group in a page, with every width and orders of pages' own.
std::vector<Case> plain_f8_cases();

// Head dims above 256: kinds of pages as above.
std::vector<Case> wide_cases();

// Plain pages of few tokens under as many query heads for each KV head as kernels of matrices have
// columns: steps that leave most of a device idle.
std::vector<Case> idle_cases();

// Wide heads under FP8 parameters: in groups of 32, with outliers whose partners are among other
// 128 channels, and in one group.
std::vector<Case> wide_group_cases();

// Wide heads with several groups in a page and every width, as grouped_cases() and mixed_cases().
std::vector<Case> wide_format_cases();

// Values of another dim than keys, wider and narrower ones, under every kind of page.
std::vector<Case> value_dim_cases();

// Latent layers: every kind of K page, steps of few and of many query columns.
std::vector<Case> latent_cases();
// Batches of latent layers, where a thread block of a GPU has many pages: some seconds of
// reference.
std::vector<Case> latent_batch_cases();

// So many pages of wide heads that CUDA adds up the splits of a work tile in groups.
std::vector<Case> many_split_cases();

// Rotated keys: head dims with blocks of 16 to 512 channels, kinds of K pages, steps of one token,
// of few and of many.
std::vector<Case> rotated_cases();

// Pages of several forms in one layer, 16-bit ones among them, under every kind of parameters.
std::vector<Case> mixed_cases();

// The pages of grouped_cases() and mixed_cases(), but of 32 and 64 tokens.
std::vector<Case> short_page_cases();

// The next of a list, turn by turn.
uint32_t next_of(const std::vector<uint32_t> &values, uint32_t *turn);

// Case `first` and every n-th one after it.
std::vector<Case> every_case(const std::vector<Case> &cases, size_t n, size_t first = 0);

// --part I/N of a command line: every N-th case, beginning at I (from 0).
struct Part {
    size_t first = 0;
    size_t n = 1;

    // False: the text is no part.
    bool read(const char *text);
    std::vector<Case> of(const std::vector<Case> &cases) const {
        return every_case(cases, n, first);
    }
};

// The shapes of pages, for packing.
std::vector<Case> page_cases();

#endif
