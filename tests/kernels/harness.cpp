// SPDX-License-Identifier: Apache-2.0
#include "harness.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>

using namespace lk;

std::string describe(const Case &c) {
    char text[512];
    std::snprintf(text, sizeof text,
                  "D %u group %u heads %u K%u V%u boosted %u shared %u kgroup %u vgroup %u ktoken "
                  "%u f8 %u P %u "
                  "sinkrow %u pages %u tail %u new %u inrows %u window %u+%u cap %g sinks %u tree "
                  "%u dtype %u seqs %u",
                  c.head_dim, c.group, c.n_kv_heads, c.key_bits, c.value_bits, c.boosted,
                  c.n_shared, c.key_group, c.value_group, c.per_token_keys, c.f8, c.page_tokens,
                  c.sink_tokens, c.packed_pages, c.tail_tokens, c.n_new, c.new_in_rows, c.window,
                  c.window_sinks, static_cast<double>(c.soft_cap), c.sinks, c.tree, c.dtype,
                  c.n_sequences);
    return text;
}

Guarded::Guarded(size_t bytes) : bytes_(bytes + 2 * kZone, 0xA5) {}
bool Guarded::intact() const {
    for (size_t i = 0; i < kZone; ++i)
        if (bytes_[i] != 0xA5 || bytes_[bytes_.size() - 1 - i] != 0xA5)
            return false;
    return true;
}

void *Guarded::place(Machine *machine) {
    address_ = machine->place(bytes_.data(), bytes_.size());
    return reinterpret_cast<void *>(address_ + kZone);
}
void Guarded::fetch(Machine *machine) { machine->fetch(bytes_.data(), bytes_.size(), address_); }

bool Outputs::operator==(const Outputs &other) const {
    return out.size() == other.out.size() && lse.size() == other.lse.size() &&
           std::memcmp(out.data(), other.out.data(), out.size() * 4) == 0 &&
           std::memcmp(lse.data(), other.lse.data(), lse.size() * 4) == 0;
}

HalfShape packed_shape(const Case &c, Side side) {
    const uint32_t bits = side == Side::kKey ? c.key_bits : c.value_bits;
    if (bits == 16)
        return raw_shape(side, c.head_dim, c.page_tokens);
    HalfShape shape;
    shape.side = side;
    shape.axis = side == Side::kKey && !c.per_token_keys ? Axis::kChannel : Axis::kToken;
    shape.metadata = c.f8 ? Metadata::kF8 : Metadata::kF16;
    shape.head_dim = static_cast<uint16_t>(c.head_dim);
    shape.page_tokens = static_cast<uint16_t>(c.page_tokens);
    const uint32_t group =
        shape.axis == Axis::kChannel
            ? (c.key_group ? std::min(c.key_group, c.page_tokens) : c.page_tokens)
            : (c.value_group ? std::min(c.value_group, c.head_dim) : c.head_dim);
    shape.group = static_cast<uint16_t>(group);
    const Plane plane = bits == 8   ? kPlane8
                        : bits == 4 ? kPlane4
                        : bits == 3 ? kPlane3
                        : bits == 2 ? kPlane2
                                    : kPlane1;
    const auto strips = static_cast<uint16_t>(c.head_dim / 16);
    shape.strips[plane] = strips;
    if (side == Side::kKey && bits == 2) {
        const uint32_t boosted = std::min(c.boosted / 16, strips - 1u);
        shape.strips[kPlane4] = static_cast<uint16_t>(boosted);
        shape.strips[kPlane2] = static_cast<uint16_t>(strips - boosted);
        shape.permutes = boosted > 0;
        shape.n_shared = static_cast<uint16_t>(std::min(c.n_shared, shape.strips[kPlane2] * 8u));
    }
    return shape;
}

Machine::~Machine() { backend_close(default_allocator(), backend); }
uint64_t Machine::place(void *bytes, size_t) { return reinterpret_cast<uint64_t>(bytes); }
void Machine::fetch(void *, size_t, uint64_t) {}

MachinePtr open_cpu(uint32_t cpu_mask, uint32_t n_threads) {
    lk_context_desc desc = {};
    desc.backend = LK_BACKEND_CPU;
    desc.cpu_mask = cpu_mask;
    desc.n_threads = n_threads;
    Backend *backend = nullptr;
    const lk_status status = backend_open(desc, default_allocator(), &backend);
    return MachinePtr(status == LK_OK ? new Machine(backend) : nullptr);
}

OpenCache::OpenCache(const Machine &machine, const std::vector<HalfClass> &classes,
                     const LayerView &layer, uint32_t page_tokens, uint32_t max_sequences,
                     uint32_t max_step_tokens)
    : backend_(machine.backend), classes_(classes), layer_(layer) {
    CacheLayout layout = {};
    layout.classes = classes_.data();
    layout.n_classes = static_cast<uint32_t>(classes_.size());
    layout.layers = &layer_;
    layout.first_entries = &first_entry_;
    layout.n_layers = 1;
    layout.n_entries = first_entry_ + layer.n_kv_heads;
    layout.page_tokens = page_tokens;
    layout.max_sequences = max_sequences;
    layout.max_step_tokens = max_step_tokens;
    layout.max_rows = 1024;
    if (backend_->cache_open(layout, &device_) != LK_OK ||
        device_->set_queue(machine.queue()) != LK_OK)
        std::abort();
}
OpenCache::~OpenCache() { backend_->cache_close(device_); }

uint64_t Rows::end_token() const {
    return rows.empty() ? 0 : rows.back().first_token + rows.back().capacity_tokens;
}
void Rows::add(uint32_t capacity_tokens, std::vector<PageEntry> of_row) {
    PageRow row{};
    row.first_token = end_token();
    row.capacity_tokens = capacity_tokens;
    row.n_entries = static_cast<uint32_t>(of_row.size());
    rows.push_back(row);
    entries.push_back(std::move(of_row));
}
void Rows::open(const OpenCache &cache) {
    pointers.clear();
    for (size_t i = 0; i < rows.size(); ++i) {
        rows[i].entries = entries[i].data();
        if (cache->row_create(&rows[i]) != LK_OK || cache->entries_changed(&rows[i]) != LK_OK)
            std::abort();
        pointers.push_back(&rows[i]);
    }
}
void Rows::close(const OpenCache &cache) {
    for (PageRow &row : rows)
        cache->row_destroy(&row);
}

Scene::Scene(const Case &c) : case_(c), state_(1469598103934665603ull) {
    for (const char letter : describe(c))
        state_ = (state_ ^ static_cast<uint8_t>(letter)) * 1099511628211ull;
    make_classes();
    sequences_.resize(c.n_sequences);
    for (uint32_t s = 0; s < c.n_sequences; ++s)
        make_sequence(s);
    make_tensors();
}

uint64_t Scene::next() {
    state_ += 0x9E3779B97F4A7C15ull;
    uint64_t z = state_;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    return z ^ (z >> 31);
}
float Scene::random_normal() {
    double sum = 0;
    for (int i = 0; i < 4; ++i)
        sum += static_cast<double>(next() >> 11) * 0x1p-53 - 0.5;
    return static_cast<float>(sum * 1.7320508);
}
uint16_t Scene::random_half(double scale) {
    bool saturated = false;
    return float_to_half(static_cast<float>(static_cast<double>(random_normal()) * scale),
                         &saturated);
}
uint64_t Scene::keep(std::vector<uint8_t> bytes) {
    memory_.push_back(std::move(bytes));
    return memory_.size();
}

void Scene::make_classes() {
    permutation_.resize(case_.head_dim);
    for (uint32_t i = 0; i < case_.head_dim; ++i)
        permutation_[i] = static_cast<uint8_t>(i);
    if (case_.n_shared)
        for (uint32_t i = case_.head_dim - 1; i > 0; --i)
            std::swap(permutation_[i], permutation_[next() % (i + 1)]);
    const uint8_t *fixed = case_.n_shared ? permutation_.data() : nullptr;
    classes_.push_back(
        {packed_shape(case_, Side::kKey), case_.boosted ? nullptr : fixed, Ranking::kNone, 0});
    classes_.push_back({packed_shape(case_, Side::kValue), nullptr, Ranking::kNone, 0});
    for (const uint32_t tokens : {case_.sink_tokens, case_.page_tokens})
        for (const Side side : {Side::kKey, Side::kValue})
            classes_.push_back(
                {raw_shape(side, case_.head_dim, tokens), nullptr, Ranking::kNone, 0});
}

// used: tokens that are filled; a raw half behind them holds bytes of anything, NaN included.
void Scene::add_row(Sequence *sequence, uint32_t tokens, bool packed, bool is_sink, uint32_t used) {
    std::vector<PageEntry> entries(OpenCache::kFirstEntry + case_.n_kv_heads);
    for (uint32_t head = 0; head < case_.n_kv_heads; ++head)
        for (const bool is_value : {false, true}) {
            const auto index = static_cast<uint16_t>((packed ? 0 : is_sink ? 2 : 4) + is_value);
            const HalfShape &shape = classes_[index].shape;
            std::vector<uint16_t> values(static_cast<size_t>(tokens) * case_.head_dim);
            for (uint32_t t = 0; t < tokens; ++t)
                for (uint32_t c = 0; c < case_.head_dim; ++c)
                    values[t * case_.head_dim + c] = t < used ? random_half(is_value      ? 2.0
                                                                            : c % 16 == 3 ? 4.0
                                                                                          : 1.0)
                                                              : static_cast<uint16_t>(0x7E00);
            std::vector<uint8_t> payload(payload_bytes(shape)), metadata(metadata_bytes(shape));
            std::vector<uint8_t> own(permutation_);
            if (shape.permutes)
                rank_by_key({values.data(), case_.head_dim}, case_.head_dim, tokens,
                            shape.strips[kPlane4] * 16, own.data());
            const uint8_t *permutation = shape.permutes ? own.data() : classes_[index].permutation;
            pack_half(shape, {values.data(), case_.head_dim}, permutation, payload.data(),
                      metadata.empty() ? nullptr : metadata.data());
            float &range = is_value ? value_range_ : key_range_;
            float &highest = is_value ? value_max_ : key_max_;
            for (uint32_t slot = 0; slot < case_.head_dim; ++slot)
                for (uint32_t t = 0; t < used; ++t) {
                    if (slot_bits(shape, slot) < 16)
                        range =
                            std::max(range, read_parameters(shape, metadata.data(), slot, t).range);
                    highest = std::max(highest, std::fabs(unpack_value(shape, payload.data(),
                                                                       metadata.data(), slot, t)));
                }
            PageEntry &entry = entries[OpenCache::kFirstEntry + head];
            (is_value ? entry.value_payload : entry.key_payload) = keep(std::move(payload));
            (is_value ? entry.value_metadata : entry.key_metadata) =
                metadata.empty() ? 0 : keep(std::move(metadata));
            (is_value ? entry.value_class : entry.key_class) = index;
        }
    sequence->rows.add(tokens, std::move(entries));
}

void Scene::make_sequence(uint32_t index) {
    Sequence &sequence = sequences_[index];
    if (case_.sink_tokens)
        add_row(&sequence, case_.sink_tokens, false, true, case_.sink_tokens);
    for (uint32_t i = 0; i < case_.packed_pages + index; ++i)
        add_row(&sequence, case_.page_tokens, true, false, case_.page_tokens);
    sequence.n_history = case_.tail_tokens + sequence.rows.end_token();
    uint32_t rest = case_.tail_tokens + (case_.new_in_rows ? case_.n_new : 0);
    while (rest) {
        const uint32_t used = std::min(rest, case_.page_tokens);
        add_row(&sequence, case_.page_tokens, false, false, used);
        rest -= used;
    }
    for (uint32_t i = 0; case_.tree && i < case_.n_new; ++i)
        sequence.parent.push_back(static_cast<int32_t>(next() % (i + 1)) - 1);
    sequence.first_new = n_tokens_;
    n_tokens_ += case_.n_new;
}

void Scene::make_tensors() {
    const uint32_t heads = case_.group * case_.n_kv_heads;
    const size_t n = static_cast<size_t>(n_tokens_) * heads * case_.head_dim;
    q_.resize(n * (case_.dtype == LK_F32 ? 4 : 2));
    for (size_t i = 0; i < n; ++i) {
        float f = random_normal() * 1.5f;
        q_max_ = std::max(q_max_, std::fabs(f));
        if (case_.dtype == LK_F32) {
            std::memcpy(q_.data() + 4 * i, &f, 4);
            continue;
        }
        bool saturated = false;
        const uint16_t h = case_.dtype == LK_F16 ? float_to_half(f, &saturated)
                                                 : static_cast<uint16_t>(float_to_bits(f) >> 16);
        std::memcpy(q_.data() + 2 * i, &h, 2);
    }
    for (uint32_t h = 0; h < heads; ++h)
        sinks_.push_back(random_normal() * 2);
    const size_t staged = static_cast<size_t>(n_tokens_) * case_.n_kv_heads * case_.head_dim;
    for (size_t i = 0; i < staged; ++i) {
        staged_keys_.push_back(random_half(1.0));
        staged_values_.push_back(random_half(2.0));
        key_max_ = std::max(key_max_, std::fabs(half_to_float(staged_keys_.back())));
        value_max_ = std::max(value_max_, std::fabs(half_to_float(staged_values_.back())));
    }
}

LayerView Scene::layer() const {
    return {case_.group * case_.n_kv_heads,
            case_.n_kv_heads,
            case_.head_dim,
            case_.window,
            case_.window_sinks,
            1.0f / std::sqrt(static_cast<float>(case_.head_dim)),
            case_.soft_cap,
            case_.sinks ? sinks_.data() : nullptr};
}

std::vector<Rows> Scene::place_rows(Machine *machine) {
    std::vector<uint64_t> addresses = {0};
    for (std::vector<uint8_t> &bytes : memory_)
        addresses.push_back(machine->place(bytes.data(), bytes.size()));
    std::vector<Rows> placed;
    for (const Sequence &sequence : sequences_) {
        placed.push_back(sequence.rows);
        for (std::vector<PageEntry> &entries : placed.back().entries)
            for (PageEntry &entry : entries)
                for (uint64_t *address : {&entry.key_payload, &entry.key_metadata,
                                          &entry.value_payload, &entry.value_metadata})
                    *address = addresses[*address];
    }
    return placed;
}

AttendArgs Scene::place_inputs(Machine *machine, const LayerView &layer) {
    AttendArgs args = {};
    args.layer = layer;
    args.first_entry = OpenCache::kFirstEntry;
    args.q = {machine->place(&q_), case_.dtype,
              static_cast<int64_t>(layer.n_query_heads) * case_.head_dim, case_.head_dim};
    args.out = args.q;
    args.lse_token_stride = layer.n_query_heads;
    args.lse_head_stride = 1;
    args.staging = {machine->place(&staged_keys_), machine->place(&staged_values_), n_tokens_};
    return args;
}

bool Scene::run(Machine *machine, Outputs *outputs, std::string *message) {
    const uint32_t heads = case_.group * case_.n_kv_heads;
    Guarded out(static_cast<size_t>(n_tokens_) * heads * case_.head_dim *
                (case_.dtype == LK_F32 ? 4 : 2));
    Guarded lse(static_cast<size_t>(n_tokens_) * heads * 4);
    const OpenCache cache(*machine, classes_, layer(), case_.page_tokens, case_.n_sequences,
                          n_tokens_);
    std::vector<Rows> placed = place_rows(machine);
    std::vector<BatchSequence> batch;
    for (size_t s = 0; s < placed.size(); ++s) {
        placed[s].open(cache);
        const auto n_rows = static_cast<uint32_t>(placed[s].rows.size());
        batch.push_back({placed[s].pointers.data(), n_rows, n_rows, s + 1, sequences_[s].n_history,
                         case_.n_new, sequences_[s].first_new,
                         static_cast<int32_t>(case_.new_in_rows),
                         case_.tree ? sequences_[s].parent.data() : nullptr});
    }
    AttendArgs args = place_inputs(machine, cache.layer());
    args.out.data = out.place(machine);
    args.lse = static_cast<float *>(lse.place(machine));
    const bool ran = cache->begin({batch.data(), case_.n_sequences, n_tokens_}) == LK_OK &&
                     cache->attend(args) == LK_OK;
    out.fetch(machine);
    lse.fetch(machine);
    for (Rows &rows : placed)
        rows.close(cache);
    machine->release();
    if (!ran || !out.intact() || !lse.intact()) {
        *message = ran ? "a guard zone was written" : "attend failed";
        return false;
    }
    read_outputs(out, lse, outputs);
    return true;
}

void Scene::read_outputs(const Guarded &out, const Guarded &lse, Outputs *outputs) const {
    const size_t n_rows = static_cast<size_t>(n_tokens_) * case_.group * case_.n_kv_heads;
    outputs->out.resize(n_rows * case_.head_dim);
    for (size_t i = 0; i < outputs->out.size(); ++i) {
        uint16_t h;
        std::memcpy(&h, out.data() + 2 * i, 2);
        if (case_.dtype == LK_F32)
            std::memcpy(&outputs->out[i], out.data() + 4 * i, 4);
        else
            outputs->out[i] = case_.dtype == LK_F16 ? half_to_float(h)
                                                    : bits_to_float(static_cast<uint32_t>(h) << 16);
    }
    outputs->lse.resize(n_rows);
    std::memcpy(outputs->lse.data(), lse.data(), n_rows * sizeof(float));
}

std::string Scene::compare(const Outputs &fast, const Outputs &reference) const {
    // A logit: FP32 sums of head_dim products, and the rounding of q * range to 16 bits of the
    // page's largest, times codes up to their top: half a unit for each channel.
    const double scale = 1.0 / std::sqrt(static_cast<double>(case_.head_dim));
    const double head_dim = case_.head_dim;
    const double q_max = static_cast<double>(q_max_);
    const double key_max = static_cast<double>(key_max_);
    const double value_max = static_cast<double>(value_max_);
    const double folded = head_dim * 0.5 / 32767 * q_max * static_cast<double>(key_range_);
    const double logit = scale * (folded + 4 * head_dim * 0x1p-24 * q_max * key_max) +
                         static_cast<double>(case_.soft_cap) * 5e-7 + 1e-5;
    // An output: weights off by exp(2 * logit error), and half a unit of the page's largest weight
    // times range for each token; the largest weights of all pages sum to 1 at most.
    const double dtype = case_.dtype == LK_F32 ? 0x1p-22 : case_.dtype == LK_F16 ? 0x1p-10 : 0x1p-7;
    const double bound = std::expm1(2 * logit) * value_max +
                         kBlockBound * static_cast<double>(value_range_) + 2e-5 * value_max +
                         dtype * value_max;
    char text[160];
    for (size_t i = 0; i < reference.out.size(); ++i)
        if (!(std::fabs(static_cast<double>(fast.out[i]) - static_cast<double>(reference.out[i])) <=
              bound)) {
            std::snprintf(text, sizeof text, "output %zu is %g, not %g within %g", i,
                          static_cast<double>(fast.out[i]), static_cast<double>(reference.out[i]),
                          bound);
            return text;
        }
    for (size_t i = 0; i < reference.lse.size(); ++i)
        if (!(std::fabs(static_cast<double>(fast.lse[i]) - static_cast<double>(reference.lse[i])) <=
              2 * logit)) {
            std::snprintf(text, sizeof text, "lse %zu is %g, not %g within %g", i,
                          static_cast<double>(fast.lse[i]), static_cast<double>(reference.lse[i]),
                          2 * logit);
            return text;
        }
    return "";
}
