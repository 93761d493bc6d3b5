// How decode is cut into work items: every row is read once, uniform contexts are cut as they
// always were, and where chunks have classes no part is dearer than the others.
//
// SPDX-License-Identifier: Apache-2.0
#include "backend/gpu/split.h"

#include <algorithm>
#include <set>
#include <vector>

#include "suite.h"

namespace {

using lk::Side;
using lk::WorkItem;
namespace gpu = lk::gpu;

constexpr uint32_t kHeads = 8;
constexpr uint32_t kHeadDim = 128;
constexpr uint32_t kWorkers = 132;
constexpr uint32_t kTileColumns = 16;  // of an item, at most
constexpr uint32_t kGroup = 32;        // of ranges
constexpr uint32_t kSinkTokens = 32;
constexpr uint32_t kRecentPages = 2;  // at 16 bits, after the chunks

// Classes of keys; the values' follow.
enum : uint16_t { kRaw = 0, kFour = 2, kTwo = 4, kClasses = 6 };

lk::PageFormat page_format(Side side, uint32_t bits) {
    lk::PageFormat made{};
    made.layout = lk::raw_layout(side, kHeadDim, LK_MAX_PAGE_TOKENS);
    if (bits == 16)
        return made;
    std::swap(made.layout.strips[lk::kPlane16],
              made.layout.strips[bits == 4 ? lk::kPlane4 : lk::kPlane2]);
    made.layout.axis = side == Side::kKey ? lk::Axis::kChannel : lk::Axis::kToken;
    made.layout.group = kGroup;
    return made;
}

class Rules final : public gpu::SplitRules {
  public:
    gpu::SplitLimits limits() const override {
        return {n_workers, n_workers, 64, 8, kTileColumns, n_workers, 3};
    }
    gpu::SplitShape shape(uint32_t, uint32_t, uint32_t) const override {
        lk::gpu::SplitShape made = {n_workers,          n_readers,  8,          131072,
                                    splits_packed_only, page_bytes, turn_bytes, byte_percent};
        made.n_idle = static_cast<uint32_t>(idle.size());
        std::copy(idle.begin(), idle.end(), made.idle);
        return made;
    }

    uint32_t n_forms(uint32_t) const override { return has_forms ? 2 : 1; }
    uint32_t form_of(uint32_t, uint16_t key_format, uint16_t) const override {
        return has_forms && key_format == kFour;
    }

    uint32_t n_workers = kWorkers;
    uint32_t n_readers = 12;
    bool has_forms = false;  // pages of 4 bits have one of their own
    bool splits_packed_only = false;
    uint32_t page_bytes = 0;
    uint32_t turn_bytes = 0;
    uint32_t byte_percent = 50;
    std::vector<lk::gpu::IdleShape> idle;
};

class Memory final : public gpu::TableMemory {
  public:
    lk_status allocate(uint64_t, const char *, uint64_t *) override { return LK_E_UNSUPPORTED; }
    void release(uint64_t) override {}
    lk_status put(uint64_t address, const void *data, uint64_t n_bytes) override {
        bytes.resize(std::max<uint64_t>(bytes.size(), address + n_bytes));
        std::memcpy(bytes.data() + address, data, n_bytes);
        return LK_OK;
    }

    std::vector<uint8_t> bytes;
};

// Pages of a context's chunks, in this order.
struct Mix {
    uint32_t n_low;
    uint32_t n_midpoint;
    uint32_t n_high;
};

// Sequences of one context, a layer of kHeads KV heads, and the items of a step of one new token.
class Context {
  public:
    // n_wide: heads whose 2-bit pages are 4-bit pages.
    Context(uint32_t n_sequences, const Mix &mix, uint32_t n_wide = 0) : n_wide_(n_wide) {
        add_row(kSinkTokens, kRaw);
        add_pages(mix.n_low, kTwo);
        add_pages(mix.n_midpoint, kFour);
        add_pages(mix.n_high, kRaw);
        add_pages(kRecentPages, kRaw);
        for (size_t r = 0; r < rows_.size(); ++r) {
            rows_[r].entries = entries_[r].data();
            row_pointers_.push_back(&rows_[r]);
        }
        const auto n_rows = static_cast<uint32_t>(rows_.size());
        for (uint32_t s = 0; s < n_sequences; ++s)
            sequences_.push_back(
                {row_pointers_.data(), n_rows, n_rows, s + 1, n_tokens_ - 60, 1, s, 1, nullptr});
        for (const uint32_t bits : {16, 4, 2})
            for (const Side side : {Side::kKey, Side::kValue})
                classes_.push_back(page_format(side, bits));
        entry_classes_.assign(kHeads, {kRaw, kTwo, kRaw + 1, kTwo + 1, kTwo});
        layer_.n_query_heads = 4 * kHeads;
        layer_.n_kv_heads = kHeads;
        layer_.head_dim = layer_.value_dim = kHeadDim;
        layer_.scale = 1;
        layout_.formats = classes_.data();
        layout_.n_formats = kClasses;
        layout_.layers = &layer_;
        layout_.first_entries = &first_entry_;
        layout_.n_layers = 1;
        layout_.n_entries = kHeads;
        layout_.entry_formats = entry_classes_.data();
        layout_.page_tokens = LK_MAX_PAGE_TOKENS;
        layout_.sink_tokens = kSinkTokens;
        layout_.max_sequences = layout_.max_step_tokens = n_sequences;
    }

    void set_value_dim(uint32_t value_dim) { layer_.value_dim = value_dim; }

    // Items of the plan, in units' order.
    std::vector<WorkItem> plan(const Rules &rules) {
        gpu::Splits splits(lk::default_allocator());
        assert_true(splits.open(layout_, rules));
        lk::Batch batch{};
        batch.sequences = sequences_.data();
        batch.n_sequences = batch.n_tokens = static_cast<uint32_t>(sequences_.size());
        gpu::BlockOrder order(lk::default_allocator());
        assert_true(order.open(layout_, rules) && order.fill(batch, true));
        assert_true(splits.plan(batch, order, true));
        assert_true(order.fill(batch, false));
        assert_false(splits.plan(batch, order, false));
        Memory memory;
        assert_int_equal(splits.send(&memory, 0), LK_OK);
        const gpu::Split &split = splits.of(0);
        variant_ = split.variant;
        std::vector<WorkItem> items(split.n_items);
        std::memcpy(items.data(), memory.bytes.data() + split.items_offset,
                    items.size() * sizeof(WorkItem));
        check_rows(items, rules.splits_packed_only);
        return items;
    }

    uint32_t variant() const { return variant_; }  // that the last plan took

    // How long an item takes a block whose readers take KV tiles in turn, in us: measured on an
    // H200 by the kernel that reads these classes (docs/lab/kernels.md, Chunks with classes).
    double time_of(const WorkItem &item, uint32_t n_readers) const {
        std::vector<double> readers(n_readers);
        for (uint32_t i = 0; i < item.packed_count + 8 * n_raw(item); ++i)
            readers[i % n_readers] +=
                i < item.packed_count ? row_time(item.packed_begin + i) : row_time(0) / 8;
        return *std::max_element(readers.begin(), readers.end());
    }
    // What an item costs in the terms of ranges, in bytes: rounds of pages, each its bytes and
    // page_bytes more.
    double cost_of(const WorkItem &item, const Rules &rules) const {
        const lk::PageEntry &entry = rows_[item.packed_begin].entries[item.kv_head];
        const double page =
            static_cast<double>(lk::payload_bytes(classes_[entry.key_format].layout) +
                                lk::metadata_bytes(classes_[entry.key_format].layout) +
                                lk::payload_bytes(classes_[entry.value_format].layout) +
                                lk::metadata_bytes(classes_[entry.value_format].layout)) +
            rules.page_bytes;
        const uint32_t rounds = (item.packed_count + rules.n_readers - 1) / rules.n_readers;
        return 2 * 131072.0 + rounds * rules.n_readers * page + n_raw(item) * 65536.0;
    }
    uint16_t key_format(uint32_t row) const { return rows_[row].entries[0].key_format; }
    // How long a reader of an item is busy at most, in bytes: rounds of pages, each its bytes and
    // turn_bytes, and of tiles of 16 bits.
    double busiest_reader(const WorkItem &item, uint32_t n_readers, uint32_t turn_bytes) const {
        const auto rounds = [&](uint32_t n) { return (n + n_readers - 1) / n_readers; };
        const lk::PageEntry &entry = rows_[1].entries[item.kv_head];
        double page = turn_bytes;
        for (const uint16_t format : {entry.key_format, entry.value_format})
            page += static_cast<double>(lk::payload_bytes(classes_[format].layout) +
                                        lk::metadata_bytes(classes_[format].layout));
        uint32_t n_tiles = 0;
        for (uint32_t i = 0; i < 2; ++i)
            for (uint32_t r = item.raw_begin[i]; r < item.raw_begin[i] + item.raw_count[i]; ++r) {
                const uint64_t rest = n_tokens_ - 60 + 1 - rows_[r].first_token;
                n_tiles += static_cast<uint32_t>(
                    (std::min<uint64_t>(rest, rows_[r].capacity_tokens) + 15) / 16);
            }
        return rounds(item.packed_count) * page + rounds(n_tiles) * 16.0 * 4 * kHeadDim;
    }
    static constexpr double kMidpointTime = 15.5;  // of a page
    static uint32_t n_raw(const WorkItem &item) { return item.raw_count[0] + item.raw_count[1]; }
    // If readers of all parts were as busy as each other.
    double shared_time(uint32_t n_splits, uint32_t n_readers) const {
        double sum = 0;
        for (uint32_t r = 0; r < rows_.size(); ++r)
            sum += row_time(r);
        return sum / (n_splits * n_readers);
    }

  private:
    // A raw row is eight tiles.
    double row_time(uint32_t row) const {
        const uint16_t key_format = rows_[row].entries[0].key_format;
        return key_format == kRaw ? 8 * 2.3 : key_format == kFour ? kMidpointTime : 12.5;
    }

    void add_row(uint32_t n_tokens, uint16_t key_format) {
        lk::PageEntry entry{};
        entry.key_format = key_format;
        entry.value_format = static_cast<uint16_t>(key_format + 1);
        entries_.emplace_back(kHeads, entry);
        for (uint32_t head = 0; head < n_wide_ && key_format == kTwo; ++head) {
            entries_.back()[head].key_format = kFour;
            entries_.back()[head].value_format = kFour + 1;
        }
        lk::Block row{};
        row.first_token = n_tokens_;
        row.capacity_tokens = n_tokens;
        row.n_entries = kHeads;
        rows_.push_back(row);
        n_tokens_ += n_tokens;
    }
    void add_pages(uint32_t n, uint16_t key_format) {
        for (uint32_t i = 0; i < n; ++i)
            add_row(LK_MAX_PAGE_TOKENS, key_format);
    }

    // Each block of each sequence and head is read once; with splits_packed_only each split has all
    // raw blocks, or none has.
    void check_rows(const std::vector<WorkItem> &items, bool splits_packed_only) const {
        std::vector<std::vector<uint32_t>> reads(sequences_.size() * kHeads,
                                                 std::vector<uint32_t>(rows_.size()));
        for (const WorkItem &item : items) {
            std::vector<uint32_t> &of = reads[item.sequence * kHeads + item.kv_head];
            const uint32_t begins[] = {item.raw_begin[0], item.raw_begin[1], item.packed_begin};
            const uint32_t counts[] = {item.raw_count[0], item.raw_count[1], item.packed_count};
            for (uint32_t run = 0; run < 3; ++run)
                for (uint32_t r = begins[run]; r < begins[run] + counts[run]; ++r)
                    of.at(r) += run == 2 || !splits_packed_only || item.split == 0;
        }
        for (const std::vector<uint32_t> &of : reads)
            for (const uint32_t n : of)
                assert_int_equal(n, 1);
    }

    lk::LayerView layer_{};
    lk::CacheLayout layout_{};
    const uint32_t first_entry_ = 0;
    const uint32_t n_wide_;
    uint64_t n_tokens_ = 0;
    std::vector<lk::PageFormat> classes_;
    std::vector<lk::EntryFormats> entry_classes_;
    std::vector<std::vector<lk::PageEntry>> entries_;
    std::vector<lk::Block> rows_;
    std::vector<const lk::Block *> row_pointers_;
    std::vector<lk::BatchSequence> sequences_;
    uint32_t variant_ = 0;
};

// Contexts of 131072, 32768 and 8192 tokens.
struct Shape {
    uint32_t n_sequences;
    uint32_t n_pages;
};
constexpr Shape kShapes[] = {{1, 1022}, {1, 254}, {1, 62}, {8, 254}, {32, 62}};

Mix cocktail(uint32_t n_pages) {
    return {n_pages - n_pages * 3 / 10 - n_pages / 10, n_pages * 3 / 10, n_pages / 10};
}

void uniform_contexts_are_cut_as_before(void **) {
    struct Cut {
        uint32_t n_readers;
        Shape shape;
        std::vector<uint32_t> packed;  // of the first unit's parts
    };
    const Cut cuts[] = {
        {12, {1, 1022}, {55, 64, 65, 64, 65, 64, 65, 64, 65, 64, 65, 64, 65, 64, 65, 64}},
        {12, {1, 254}, {7, 16, 17, 16, 17, 16, 17, 16, 17, 16, 17, 16, 17, 16, 17, 16}},
        {12, {1, 62}, {0, 0, 4, 4, 5, 4, 5, 4, 5, 4, 5, 4, 5, 4, 5, 4}},
        {12, {8, 254}, {122, 132}},
        {12, {32, 62}, {62}},
        {16, {1, 1022}, {62, 64, 64, 64, 64, 64, 64, 64, 64, 64, 64, 64, 64, 64, 64, 64}},
        {16, {1, 254}, {14, 16, 16, 16, 16, 16, 16, 16, 16, 16, 16, 16, 16, 16, 16, 16}},
        {16, {8, 254}, {126, 128}},
    };
    for (const Cut &cut : cuts) {
        Rules rules;
        rules.n_readers = cut.n_readers;
        Context context(cut.shape.n_sequences, {cut.shape.n_pages, 0, 0});
        const std::vector<WorkItem> items = context.plan(rules);
        assert_int_equal(items.size(), cut.shape.n_sequences * kHeads * cut.packed.size());
        for (size_t i = 0; i < items.size(); ++i) {
            assert_int_equal(items[i].packed_count, cut.packed[items[i].split]);
            if (cut.shape.n_pages > 62)
                assert_int_equal(Context::n_raw(items[i]), items[i].split ? 0 : 3);
        }
    }
}

void partial_results_have_the_dim_of_values(void **) {
    for (const uint32_t value_dim : {64u, kHeadDim, 512u}) {
        Context context(8, {254, 0, 0});
        context.set_value_dim(value_dim);
        for (const WorkItem &item : context.plan(Rules())) {
            assert_int_equal(item.n_splits, 2);
            assert_int_equal(item.first_partial, (item.sequence * kHeads + item.kv_head) * 2 *
                                                     kTileColumns * (value_dim + 2));
        }
    }
}

void rows_at_16_bits_are_in_all_splits(void **) {
    for (const Shape &shape : kShapes) {
        const Mix mix = cocktail(shape.n_pages);
        const Rules rules;
        Context context(shape.n_sequences, mix);
        const std::vector<WorkItem> items = context.plan(rules);
        const uint32_t n_raw = mix.n_high + kRecentPages + 1;
        if (n_raw <= rules.n_readers)
            continue;
        double longest = 0;
        for (const WorkItem &item : items) {
            assert_in_range(Context::n_raw(item), n_raw / item.n_splits - 1,
                            n_raw / item.n_splits + 2);
            longest = std::max(longest, context.time_of(item, rules.n_readers));
        }
        // Readers take whole pages: a part takes no longer than its share and one more of them.
        assert_true(longest < context.shared_time(items[0].n_splits, rules.n_readers) +
                                  Context::kMidpointTime);
    }
}

double busiest_worker(const Context &context, const std::vector<WorkItem> &items,
                      const Rules &rules) {
    std::vector<double> workers(kWorkers);
    for (size_t i = 0; i < items.size(); ++i)
        workers[i % kWorkers] += context.cost_of(items[i], rules);
    return *std::max_element(workers.begin(), workers.end());
}

// One, three or seven of the heads have pages of 4 bits, the others of 2.
template <class Check>
void for_contexts_of_different_widths(Check check) {
    for (const Shape &shape : kShapes)
        for (const uint32_t n_wide : {1u, 3u, 7u}) {
            Context context(shape.n_sequences, {shape.n_pages, 0, 0}, n_wide);
            check(shape, &context);
        }
}

// Heads of different widths: never slower than the cut for equal heads, and faster where a worker
// has one or two items.
void heads_of_different_widths_are_cut_by_cost(void **) {
    for_contexts_of_different_widths([](const Shape &shape, Context *context) {
        Rules rules;
        rules.n_readers = 16;
        const std::vector<WorkItem> before = context->plan(rules);
        rules.page_bytes = 10300;
        const std::vector<WorkItem> items = context->plan(rules);
        const double busiest = busiest_worker(*context, items, rules);
        const double was = busiest_worker(*context, before, rules);
        assert_true(busiest <= was);
        if (shape.n_sequences == 8)
            assert_true(busiest < 0.95 * was);
    });
}

// Where pages of all widths cost the same, heads of all widths have as many splits.
void heads_of_equal_cost_have_equal_splits(void **) {
    for_contexts_of_different_widths([](const Shape &, Context *context) {
        Rules rules;
        rules.byte_percent = 0;
        const std::vector<WorkItem> items = context->plan(rules);
        for (const WorkItem &item : items)
            assert_int_equal(item.n_splits, items[0].n_splits);
    });
}

// Heads of one width are cut as without a cost of pages.
void equal_heads_are_cut_alike(void **) {
    for (const Shape &shape : kShapes) {
        Rules rules;
        Context context(shape.n_sequences, {shape.n_pages, 0, 0});
        const std::vector<WorkItem> before = context.plan(rules);
        rules.page_bytes = 10300;
        const std::vector<WorkItem> items = context.plan(rules);
        assert_int_equal(items.size(), before.size());
        assert_memory_equal(items.data(), before.data(), items.size() * sizeof(WorkItem));
    }
}

// Where pages cost more than their bytes: no item is empty, none takes longer than by bytes, and
// where a round of all readers takes all pages there are no more items than fill it.
void rounds_of_pages_are_shared(void **) {
    for (const uint32_t n_readers : {3u, 4u, 6u, 8u})
        for (const Shape &shape : kShapes) {
            Rules rules;
            rules.n_readers = n_readers;
            Context context(shape.n_sequences, {shape.n_pages, 0, 0});
            const uint32_t turn_bytes = 10300;
            const auto longest = [&](const std::vector<WorkItem> &items) {
                double most = 0;
                for (const WorkItem &item : items)
                    most = std::max(most, context.busiest_reader(item, n_readers, turn_bytes));
                return most;
            };
            const std::vector<WorkItem> by_bytes = context.plan(rules);
            rules.turn_bytes = turn_bytes;
            const std::vector<WorkItem> items = context.plan(rules);
            const size_t n_workers = std::min<size_t>(kWorkers, items.size());
            if ((by_bytes.size() + kWorkers - 1) / kWorkers ==
                (items.size() + n_workers - 1) / n_workers)
                assert_true(longest(items) <= longest(by_bytes));
            uint32_t most_pages = 0;
            for (const WorkItem &item : items) {
                assert_true(item.packed_count + Context::n_raw(item));
                most_pages = std::max(most_pages, item.packed_count);
            }
            if (most_pages <= n_readers)
                assert_in_range(items[0].n_splits, 1,
                                (shape.n_pages + n_readers - 1) / n_readers + kRecentPages + 1);
        }
}

// Heads of different widths have as many items as by bytes, unless one round takes all pages.
void heads_of_different_widths_keep_their_items(void **) {
    for_contexts_of_different_widths([](const Shape &, Context *context) {
        Rules rules;
        rules.n_readers = 6;
        const std::vector<WorkItem> by_bytes = context->plan(rules);
        rules.turn_bytes = 10300;
        const std::vector<WorkItem> items = context->plan(rules);
        uint32_t most_pages = 0;
        for (const WorkItem &item : items)
            most_pages = std::max(most_pages, item.packed_count);
        if (most_pages > rules.n_readers)
            assert_int_equal(items.size(), by_bytes.size());
    });
}

// Where readers take tiles of raw rows in turn, all items of a work tile share its raw rows, or
// each of these has an item, where there are workers for all items at once.
void raw_rows_are_in_each_split_or_apart(void **) {
    Rules rules;
    rules.splits_packed_only = true;
    bool is_apart_once = false;
    bool is_shared_once = false;
    for (const uint32_t n_readers : {4u, 12u})
        for (const Shape &shape : kShapes) {
            rules.n_readers = n_readers;
            const Mix mix = cocktail(shape.n_pages);
            Context context(shape.n_sequences, mix);
            const uint32_t n_raw = mix.n_high + kRecentPages + 1;
            const std::vector<WorkItem> items = context.plan(rules);
            const bool is_apart = !Context::n_raw(items[0]);
            uint32_t n_alone = 0;
            for (const WorkItem &item : items) {
                assert_int_equal(Context::n_raw(item), is_apart ? 0 : n_raw);
                n_alone += context.key_format(item.packed_begin) == kRaw;
            }
            const uint32_t n_all = n_raw * shape.n_sequences * kHeads;
            assert_int_equal(n_alone, is_apart ? n_all : 0);
            if (is_apart)
                assert_in_range(items.size(), n_all + 1, kWorkers);
            else
                assert_in_range(items.size() + n_all, kWorkers + 1, UINT32_MAX);
            is_apart_once = is_apart_once || is_apart;
            is_shared_once = is_shared_once || !is_apart;
        }
    assert_true(is_apart_once);
    assert_true(is_shared_once);
}

// Readers take pages together, a page each pair of them, where there are workers for all items
// then; fewer workers with twice the readers come first where they have a page each.
void idle_shapes_are_taken_where_they_fit(void **) {
    Rules rules;
    rules.splits_packed_only = true;
    constexpr uint32_t kWideWorkers = 50;
    std::set<uint32_t> taken;
    for (const uint32_t n_readers : {4u, 12u, 24u})
        for (const Shape &shape : kShapes) {
            rules.n_readers = n_readers;
            rules.idle.clear();
            Context context(shape.n_sequences, {shape.n_pages, 0, 0});
            const size_t n_alone = context.plan(rules).size();
            const uint32_t n_tiles = shape.n_sequences * kHeads;
            const uint32_t n_raw = n_tiles * (kRecentPages + 1);
            rules.idle = {{kWorkers, n_readers, 2}, {kWideWorkers, 2 * n_readers, 2}};
            const std::vector<WorkItem> items = context.plan(rules);
            uint32_t variant = 0;
            for (uint32_t i = 0; i < rules.idle.size(); ++i) {
                const uint32_t most_pages = rules.idle[i].n_readers / rules.idle[i].page_parts;
                const uint32_t n_items = (shape.n_pages + most_pages - 1) / most_pages;
                if (n_tiles * n_items + n_raw <= rules.idle[i].n_workers)
                    variant = i + 1;
            }
            assert_int_equal(context.variant(), variant);
            if (variant) {
                const lk::gpu::IdleShape &of = rules.idle[variant - 1];
                for (const WorkItem &item : items)
                    assert_in_range(item.packed_count, 1, of.n_readers / of.page_parts);
                assert_in_range(items.size(), n_raw + 1, of.n_workers);
            } else {
                assert_int_equal(items.size(), n_alone);
            }
            taken.insert(variant);
        }
    assert_int_equal(taken.size(), 3);
}

// Long contexts of several sequences have items for all workers, each with the 16-bit blocks.
void busy_workers_keep_their_items(void **) {
    Rules rules;
    rules.splits_packed_only = true;
    rules.n_workers = 396;
    rules.n_readers = 4;
    constexpr uint32_t kSequences = 8;
    for (const uint32_t page_parts : {1u, 2u}) {
        rules.idle = {{rules.n_workers, rules.n_readers, page_parts}};
        Context context(kSequences, {253, 0, 0});
        const std::vector<WorkItem> items = context.plan(rules);
        assert_int_equal(items.size(), 6 * kSequences * kHeads);
        for (const WorkItem &item : items) {
            assert_int_equal(Context::n_raw(item), kRecentPages + 1);
            assert_in_range(item.packed_count, 42, 43);
        }
    }
}

// Items of pages of one form follow each other, and those of a work tile are splits of it, whatever
// their forms.
void items_are_in_the_order_of_forms(void **) {
    Rules rules;
    rules.splits_packed_only = rules.has_forms = true;
    rules.n_readers = 4;
    for (const Shape &shape : kShapes) {
        Context context(shape.n_sequences, cocktail(shape.n_pages));
        const std::vector<WorkItem> items = context.plan(rules);
        std::vector<std::vector<uint32_t>> splits(shape.n_sequences * kHeads);
        bool is_four = false;
        bool is_raw = false;
        for (const WorkItem &item : items) {
            assert_true(item.packed_count);
            const uint16_t format = context.key_format(item.packed_begin);
            assert_true(format != kTwo || !is_four);
            assert_true(format == kRaw || !is_raw);
            is_four = is_four || format == kFour;
            is_raw = format == kRaw;
            for (uint32_t r = 0; r < item.packed_count; ++r)
                assert_int_equal(context.key_format(item.packed_begin + r), format);
            std::vector<uint32_t> &of = splits[item.sequence * kHeads + item.kv_head];
            of.resize(item.n_splits);
            ++of.at(item.split);
        }
        assert_true(is_four);
        for (const std::vector<uint32_t> &of : splits)
            for (const uint32_t n : of)
                assert_int_equal(n, 1);
    }
}

}  // namespace

int main() {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(uniform_contexts_are_cut_as_before),
        cmocka_unit_test(partial_results_have_the_dim_of_values),
        cmocka_unit_test(rows_at_16_bits_are_in_all_splits),
        cmocka_unit_test(heads_of_different_widths_are_cut_by_cost),
        cmocka_unit_test(heads_of_equal_cost_have_equal_splits),
        cmocka_unit_test(equal_heads_are_cut_alike),
        cmocka_unit_test(rounds_of_pages_are_shared),
        cmocka_unit_test(heads_of_different_widths_keep_their_items),
        cmocka_unit_test(raw_rows_are_in_each_split_or_apart),
        cmocka_unit_test(idle_shapes_are_taken_where_they_fit),
        cmocka_unit_test(busy_workers_keep_their_items),
        cmocka_unit_test(items_are_in_the_order_of_forms),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
