// SPDX-License-Identifier: Apache-2.0
#include "cli/plan/width_table.h"

#include <cstdio>
#include <map>

#include "cli/common/command.h"
#include "cli/common/report.h"
#include "cli/plan/plan_view.h"

namespace cli {
namespace {

const char *const kClassNames[] = {"no class", "low", "middle", "high"};

std::string cell(const lk_plan *plan, std::uint32_t layer, std::uint32_t kv_head, bool is_value,
                 std::uint32_t channel, std::uint32_t rung, lk_chunk_class chunk_class) {
    std::uint32_t bits = 0, boost_bits = 0;
    llama::check(lk_plan_width(plan, layer, kv_head, is_value ? 1 : 0, channel, rung, chunk_class,
                               &bits, &boost_bits));
    return bits == boost_bits ? std::to_string(bits)
                              : std::to_string(boost_bits) + " over " + std::to_string(bits);
}

// Have two KV heads of a layer equal widths, as far as their rules tell at a glance? A plan may
// have a million heads that share a rule.
bool same_widths(const lk_plan *plan, bool is_latent, std::uint32_t layer, std::uint32_t a,
                 std::uint32_t b) {
    lk_key_rule keys[2];
    lk_value_rule values[2];
    for (int i = 0; i < 2; ++i) {
        keys[i] = llama::initialised(lk_key_rule_init);
        llama::check(lk_plan_get_key(plan, layer, i == 0 ? a : b, &keys[i]));
        values[i] = llama::initialised(lk_value_rule_init);
        if (!is_latent)
            llama::check(lk_plan_get_value(plan, layer, i == 0 ? a : b, &values[i]));
    }
    return keys[0].bits == keys[1].bits && keys[0].channel_bits == keys[1].channel_bits &&
           keys[0].boost_channels == keys[1].boost_channels &&
           keys[0].boost_bits == keys[1].boost_bits && values[0].bits == values[1].bits;
}

class Widths {
  public:
    explicit Widths(const lk_plan *plan) : plan_(plan), shape_(plan_shape(plan)) {
        lk_chunk_rule rule = llama::initialised(lk_chunk_rule_init);
        llama::check(lk_plan_get_chunks(plan, &rule));
        n_classes_ = rule.chunk_tokens == 0 ? 1 : LK_CHUNK_HIGH + 1;
    }
    void print() const;

  private:
    using Rows = std::vector<std::vector<std::string>>;

    Rows head_rows(std::uint32_t layer, std::uint32_t kv_head) const;
    Rows layer_rows(std::uint32_t layer) const;
    std::map<std::uint32_t, std::vector<std::uint32_t>> channels_by_class(std::uint32_t layer,
                                                                          std::uint32_t kv_head,
                                                                          bool is_value) const;

    const lk_plan *plan_;
    PlanShape shape_;
    std::uint32_t n_classes_;
};

// The class of a channel is what its rule says, before rungs and chunks.
std::map<std::uint32_t, std::vector<std::uint32_t>> Widths::channels_by_class(std::uint32_t layer,
                                                                              std::uint32_t kv_head,
                                                                              bool is_value) const {
    lk_key_rule key = llama::initialised(lk_key_rule_init);
    llama::check(lk_plan_get_key(plan_, layer, kv_head, &key));
    lk_value_rule value = llama::initialised(lk_value_rule_init);
    std::map<std::uint32_t, std::vector<std::uint32_t>> channels;
    if (is_value && shape_.is_latent[layer])
        return channels;  // those of the keys
    if (is_value)
        llama::check(lk_plan_get_value(plan_, layer, kv_head, &value));
    for (std::uint32_t c = 0; c < shape_.channels(layer, is_value); ++c) {
        const std::uint32_t bits = is_value                      ? value.bits
                                   : key.channel_bits != nullptr ? key.channel_bits[c]
                                                                 : key.bits;
        channels[bits].push_back(c);
    }
    return channels;
}

Widths::Rows Widths::head_rows(std::uint32_t layer, std::uint32_t kv_head) const {
    std::uint8_t rungs[4] = {};
    std::uint32_t n_rungs = 0;
    llama::check(lk_plan_get_ladder(plan_, layer, rungs, &n_rungs, nullptr, nullptr));
    Rows rows;
    for (const bool is_value : {false, true}) {
        for (const auto &[bits, channels] : channels_by_class(layer, kv_head, is_value)) {
            for (std::uint32_t r = 0; r < (n_rungs == 0 ? 1 : n_rungs); ++r) {
                std::vector<std::string> row = {is_value ? "values" : "keys", std::to_string(bits),
                                                std::to_string(channels.size()),
                                                n_rungs == 0 ? "-" : std::to_string(rungs[r])};
                for (lk_chunk_class c = LK_CHUNK_NONE; c < n_classes_; ++c)
                    row.push_back(
                        cell(plan_, layer, kv_head, is_value, channels.front(), rungs[r], c));
                rows.push_back(row);
            }
        }
    }
    return rows;
}

// Rows of a layer, with ranges of equal KV heads in front.
Widths::Rows Widths::layer_rows(std::uint32_t layer) const {
    Rows rows;
    const std::uint32_t n_heads = shape_.n_kv_heads[layer];
    for (std::uint32_t first = 0, last; first < n_heads; first = last + 1) {
        const Rows own = head_rows(layer, first);
        for (last = first; last + 1 < n_heads &&
                           (same_widths(plan_, shape_.is_latent[layer], layer, last, last + 1) ||
                            head_rows(layer, last + 1) == own);)
            ++last;
        for (std::vector<std::string> row : own) {
            row.insert(row.begin(), range_words(first, last));
            rows.push_back(std::move(row));
        }
    }
    return rows;
}

void Widths::print() const {
    std::vector<std::string> header = {"layers", "KV heads", "half", "class", "channels", "rung"};
    for (lk_chunk_class c = LK_CHUNK_NONE; c < n_classes_; ++c)
        header.emplace_back(n_classes_ == 1 ? "bits" : kClassNames[c]);
    Table table(header);
    for (std::uint32_t first = 0, last; first < shape_.n_layers; first = last + 1) {
        const Rows own = layer_rows(first);
        for (last = first; last + 1 < shape_.n_layers && layer_rows(last + 1) == own;)
            ++last;
        for (std::vector<std::string> row : own) {
            row.insert(row.begin(), range_words(first, last));
            table.add(row);
        }
    }
    std::printf("\nBits of a channel by layer, KV head, class of the channel, rung%s.\n",
                n_classes_ == 1 ? "" : " and class of the chunk");
    table.print();
}

using Counts = std::map<std::uint32_t, std::uint32_t>;  // of channels, by bits

Counts counts_of(const lk_plan *plan, const PlanShape &shape, std::uint32_t layer, bool is_value) {
    Counts counts;
    if (is_value && shape.is_latent[layer])
        return counts;  // those of the keys
    for (std::uint32_t head = 0, next; head < shape.n_kv_heads[layer]; head = next) {
        for (next = head + 1; next < shape.n_kv_heads[layer] &&
                              same_widths(plan, shape.is_latent[layer], layer, head, next);)
            ++next;
        lk_key_rule key = llama::initialised(lk_key_rule_init);
        llama::check(lk_plan_get_key(plan, layer, head, &key));
        std::uint32_t n_boosted = is_value ? 0 : (key.boost_channels + 15) / 16 * 16;
        for (std::uint32_t c = 0; c < shape.channels(layer, is_value); ++c) {
            std::uint32_t bits = 0, boost_bits = 0;
            llama::check(lk_plan_width(plan, layer, head, is_value ? 1 : 0, c, 0, LK_CHUNK_NONE,
                                       &bits, &boost_bits));
            const bool is_boosted = bits != boost_bits && n_boosted != 0;
            n_boosted -= is_boosted ? 1 : 0;
            counts[is_boosted ? boost_bits : bits] += next - head;
        }
    }
    return counts;
}

}  // namespace

void print_width_counts(const lk_plan *plan) {
    const PlanShape shape = plan_shape(plan);
    std::vector<Counts> all[2];
    Counts used;
    for (const bool is_value : {false, true})
        for (std::uint32_t l = 0; l < shape.n_layers; ++l) {
            all[is_value].push_back(counts_of(plan, shape, l, is_value));
            for (const auto &[bits, count] : all[is_value].back())
                used[bits] += count;
        }
    std::vector<std::string> header = {"channels at bits", "of"};
    for (const auto &[bits, count] : used)
        header.push_back(std::to_string(bits));
    Table table(header);
    for (std::uint32_t first = 0, last; first < shape.n_layers; first = last + 1) {
        for (last = first; last + 1 < shape.n_layers && all[0][last + 1] == all[0][first] &&
                           all[1][last + 1] == all[1][first];)
            ++last;
        for (const bool is_value : {false, true}) {
            std::vector<std::string> row = {
                (first == last ? "layer " : "layers ") + range_words(first, last),
                is_value ? "values" : "keys"};
            for (const auto &[bits, count] : used) {
                const auto found = all[is_value][first].find(bits);
                row.push_back(found == all[is_value][first].end() ? "-"
                                                                  : std::to_string(found->second));
            }
            table.add(row);
        }
    }
    table.print();
}

void print_width_table(const lk_plan *plan) { Widths(plan).print(); }

}  // namespace cli
