// Statistics from an untrusted safetensors file. The parser of the header throws, so this file is
// built with exceptions and lets none out. Nothing is allocated for a layer before the
// bytes that fill it were found.
//
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <new>
#include <string>
#include <vector>

#include "base/json_text.h"
#include "base/refused.h"
#include "format/fp16.h"
#include "plan/check.h"
#include "plan/plan.h"
#include "stats/file.h"
#include "stats/file_format.h"
#include "stats/sums.h"

namespace lk {

namespace {

using ull = unsigned long long;

constexpr JsonLimits kLimits = {3, SIZE_MAX};  // deep: header, tensor, its shape
constexpr uint64_t kMaxCount = uint64_t{1} << 53;
constexpr double kAnySum = 1e300;   // of what has no bound of its own
constexpr double kSumSlack = 1e-6;  // what rounding may add to a sum, of its size

struct Entry {
    std::string dtype;
    std::vector<uint64_t> shape;
    uint64_t begin = 0;
    uint64_t end = 0;
    bool is_used = false;
};

uint64_t number_of(const JsonValue &value, const std::string &name) {
    if (!value.is(JsonKind::kUnsigned))
        expect(fail(LK_E_CORRUPT, "tensor \"%s\" has a shape or an offset that is no whole number",
                    shown(name).c_str()));
    return value.number();
}

// A member of an object.
JsonValue member(const JsonValue &object, const char *key, JsonKind kind, const std::string &name) {
    JsonValue found = object;
    if (!object.is(JsonKind::kObject) || !object.find(key, &found) || !found.is(kind))
        expect(fail(LK_E_CORRUPT, "tensor \"%s\" has no %s of its type", shown(name).c_str(), key));
    return found;
}

// The tensors of a file by name, over the bytes after its header.
class File {
  public:
    File(const uint8_t *bytes, size_t n_bytes) {
        uint64_t header_bytes = 0;
        if (n_bytes < kLengthBytes)
            expect(fail(LK_E_CORRUPT, "%zu bytes are too few for a safetensors file", n_bytes));
        std::memcpy(&header_bytes, bytes, sizeof header_bytes);
        if (header_bytes > n_bytes - kLengthBytes || header_bytes > kMaxHeaderBytes)
            expect(fail(LK_E_CORRUPT,
                        "the first 8 bytes state a header of %llu bytes, more than a safetensors "
                        "file of %zu bytes holds",
                        ull{header_bytes}, n_bytes));
        data_ = bytes + kLengthBytes + header_bytes;
        n_data_bytes_ = n_bytes - kLengthBytes - header_bytes;
        const auto *text = reinterpret_cast<const char *>(bytes + kLengthBytes);
        const JsonText header(text, header_bytes, kLimits);
        read_header(header.root());
        check_layout();
    }

    bool has(const std::string &name) const { return entries_.count(name) != 0; }

    // Its bytes; the tensor is there, of this type and shape.
    const uint8_t *take(const std::string &name, const char *dtype,
                        const std::vector<uint64_t> &shape, uint64_t element_bytes) {
        const auto found = entries_.find(name);
        if (found == entries_.end())
            expect(fail(LK_E_CORRUPT, "tensor \"%s\" is missing", name.c_str()));
        Entry &entry = found->second;
        uint64_t n_bytes = element_bytes;
        for (const uint64_t extent : shape)
            n_bytes *= extent;
        if (entry.dtype != dtype || entry.shape != shape || entry.end - entry.begin != n_bytes)
            expect(fail(LK_E_CORRUPT, "tensor \"%s\" is not %s [%llu][%llu]", name.c_str(), dtype,
                        ull{shape[0]}, ull{shape.size() > 1 ? shape[1] : 1}));
        entry.is_used = true;
        return data_ + entry.begin;
    }
    // Rows of a tensor with this many columns, whose number only the file knows.
    uint64_t rows(const std::string &name, uint64_t columns) const {
        const auto found = entries_.find(name);
        if (found == entries_.end() || found->second.shape.size() != 2 ||
            found->second.shape[1] != columns)
            expect(fail(LK_E_CORRUPT, "tensor \"%s\" is missing or not [n][%llu]", name.c_str(),
                        ull{columns}));
        return found->second.shape[0];
    }
    void expect_all_used() const {
        for (const auto &item : entries_)
            if (!item.second.is_used)
                expect(fail(LK_E_CORRUPT, "tensor \"%s\" is not one of statistics",
                            shown(item.first).c_str()));
    }

  private:
    void read_header(const JsonValue &header) {
        if (!header.is(JsonKind::kObject))
            expect(fail(LK_E_CORRUPT, "the header is not an object"));
        JsonValue metadata = header;
        if (!header.find(kMetadata, &metadata) || text_of(metadata, "format") != kStatsFormat)
            expect(fail(LK_E_CORRUPT, "the file does not say that it is %s", kStatsFormat));
        const std::string version = text_of(metadata, "version");
        if (version != kStatsVersion)
            expect(fail(LK_E_MISMATCH, "version is \"%s\", this library reads \"%s\"",
                        shown(version).c_str(), kStatsVersion));
        header.for_each_key([&](std::string_view key, const JsonValue &value) {
            const std::string name(key);
            if (name != kMetadata)
                entries_[name] = read_entry(name, value);
        });
    }
    // "" without such a text.
    static std::string text_of(const JsonValue &metadata, const char *key) {
        JsonValue found = metadata;
        const bool is_there = metadata.is(JsonKind::kObject) && metadata.find(key, &found) &&
                              found.is(JsonKind::kString);
        return is_there ? std::string(found.text()) : "";
    }
    Entry read_entry(const std::string &name, const JsonValue &value) const {
        Entry entry;
        entry.dtype = std::string(member(value, "dtype", JsonKind::kString, name).text());
        member(value, "shape", JsonKind::kArray, name)
            .for_each_element(
                [&](const JsonValue &extent) { entry.shape.push_back(number_of(extent, name)); });
        const JsonValue offsets = member(value, "data_offsets", JsonKind::kArray, name);
        if (offsets.size() != 2)
            expect(fail(LK_E_CORRUPT, "tensor \"%s\" has no two offsets", shown(name).c_str()));
        uint64_t *to = &entry.begin;
        offsets.for_each_element([&](const JsonValue &offset) {
            *to = number_of(offset, name);
            to = &entry.end;
        });
        if (entry.begin > entry.end || entry.end > n_data_bytes_)
            expect(fail(LK_E_CORRUPT, "tensor \"%s\" lies outside the file", shown(name).c_str()));
        return entry;
    }
    // No holes and no overlaps: every byte has one owner.
    void check_layout() const {
        std::vector<std::pair<uint64_t, uint64_t>> places;
        for (const auto &item : entries_)
            places.emplace_back(item.second.begin, item.second.end);
        std::sort(places.begin(), places.end());
        uint64_t at = 0;
        for (const auto &place : places) {
            if (place.first != at)
                expect(fail(LK_E_CORRUPT, "tensors overlap or leave a hole at byte %llu", ull{at}));
            at = place.second;
        }
        if (at != n_data_bytes_)
            expect(fail(LK_E_CORRUPT, "no tensor owns the bytes from %llu on", ull{at}));
    }

    static constexpr const char *kMetadata = "__metadata__";
    const uint8_t *data_;
    uint64_t n_data_bytes_;
    std::map<std::string, Entry> entries_;
};

template <class T>
T load(const uint8_t *bytes, uint64_t index) {
    T value;
    std::memcpy(&value, bytes + index * sizeof value, sizeof value);
    return value;
}

uint32_t dimension(int64_t value, uint64_t layer) {
    if (value < 0 || value > UINT32_MAX)
        expect(fail(LK_E_CORRUPT, "tensor \"geometry\" has %lld in layer %llu",
                    static_cast<long long>(value), ull{layer}));
    return static_cast<uint32_t>(value);
}

float real(const uint8_t *bytes, uint64_t index, const char *name) {
    const double value = load<double>(bytes, index);
    const auto narrow = static_cast<float>(value);
    if (!std::isfinite(narrow) || double{narrow} != value)
        expect(fail(LK_E_CORRUPT, "tensor \"%s\" has an element %llu that is no float", name,
                    ull{index}));
    return narrow;
}

class Reader {
  public:
    Reader(const uint8_t *bytes, size_t n_bytes, Calibrator *out)
        : file_(bytes, n_bytes), out_(out) {}

    void read() {
        const uint64_t n_layers = file_.rows("geometry", kGeometryColumns);
        if (!n_layers || n_layers > kMaxLayers)
            expect(fail(LK_E_CORRUPT, "tensor \"geometry\" has %llu layers, must be from 1 to %u",
                        ull{n_layers}, kMaxLayers));
        read_geometry(n_layers);
        const uint8_t *counts = file_.take("counts", "I64", {n_layers, kCountColumns}, 8);
        for (uint32_t l = 0; l < n_layers; ++l)
            read_layer(l, counts);
        for (uint32_t l = 0; l < n_layers; ++l) {
            read_costs(l, LayerTensor::kCost, &LayerSamples::costs);
            read_costs(l, LayerTensor::kClipCost, &LayerSamples::clip_costs);
        }
        if (file_.has(kSearchName)) {
            const uint8_t *searches = file_.take(kSearchName, "I64", {n_layers, kSearchColumns}, 8);
            for (uint32_t l = 0; l < n_layers; ++l)
                read_search(l, searches);
        }
        for (uint32_t l = 0; l < n_layers; ++l)
            if (!owns_kv(out_->geometry[l]) && out_->layers[l])
                expect(fail(LK_E_CORRUPT,
                            "layer %u has statistics and reads the keys and values of layer %u", l,
                            out_->geometry[l].kv_layer));
        file_.expect_all_used();
    }

  private:
    void read_geometry(uint64_t n_layers) {
        const uint8_t *whole = file_.take("geometry", "I64", {n_layers, kGeometryColumns}, 8);
        const uint8_t *reals = file_.take("geometry_real", "F64", {n_layers, kRealColumns}, 8);
        const uint8_t *kv_layers =
            file_.has(kKvLayerName) ? file_.take(kKvLayerName, "I64", {n_layers}, 8) : nullptr;
        Array<lk_layer> layers(*out_->allocator);
        std::vector<std::vector<float>> sinks(n_layers);
        for (uint64_t l = 0; l < n_layers; ++l) {
            lk_layer layer = default_layer();
            uint32_t *const numbers[kGeometryColumns] = {&layer.n_query_heads, &layer.n_kv_heads,
                                                         &layer.head_dim, &layer.window_tokens,
                                                         &layer.window_sink_tokens};
            for (uint64_t i = 0; i < kGeometryColumns; ++i)
                *numbers[i] = dimension(load<int64_t>(whole, l * kGeometryColumns + i), l);
            layer.scale = real(reals, l * kRealColumns, "geometry_real");
            layer.soft_cap = real(reals, l * kRealColumns + 1, "geometry_real");
            const std::string prefix = "layer " + std::to_string(l) + ": ";
            const Subject subject = {prefix.c_str(), false, LK_E_CORRUPT};
            expect(check_layer(layer, subject));
            if (kv_layers)
                layer.kv_layer = std::min(dimension(load<int64_t>(kv_layers, l), l), kMaxLayers);
            sinks[l] = read_sinks(static_cast<uint32_t>(l), layer);
            layer.sink_logits = sinks[l].empty() ? nullptr : sinks[l].data();
            if (!layers.push(layer))
                throw std::bad_alloc();
            expect(take_kv_layer(layers.data(), static_cast<uint32_t>(l), subject));
        }
        expect(set_geometry(out_, layers));
    }

    std::vector<float> read_sinks(uint32_t layer, const lk_layer &shape) {
        const std::string name = name_of(layer, LayerTensor::kSinks);
        std::vector<float> out;
        if (!file_.has(name))
            return out;
        const uint8_t *bytes = file_.take(name, "F64", {shape.n_query_heads}, 8);
        for (uint32_t h = 0; h < shape.n_query_heads; ++h)
            out.push_back(real(bytes, h, name.c_str()));
        return out;
    }

    static std::string name_of(uint32_t layer, LayerTensor tensor) {
        return "layer." + std::to_string(layer) + "." +
               kLayerTensorInfo[static_cast<size_t>(tensor)].name;
    }
    const uint8_t *take(uint32_t layer, LayerTensor tensor) {
        const LayerTensorInfo &info = kLayerTensorInfo[static_cast<size_t>(tensor)];
        const lk_layer &shape = out_->geometry[layer];
        const Extents own = extents_of(info.shape, shape);
        std::vector<uint64_t> extents = {own.rows};
        if (own.columns)
            extents.push_back(own.columns);
        return file_.take(name_of(layer, tensor), info.dtype, extents, info.element_bytes);
    }

    static uint64_t count(const uint8_t *counts, uint32_t layer, uint64_t column) {
        const auto n = load<uint64_t>(counts, layer * kCountColumns + column);
        if (n > kMaxCount)
            expect(fail(LK_E_CORRUPT, "tensor \"counts\" has %llu in layer %u", ull{n}, layer));
        return n;
    }

    void read_layer(uint32_t layer, const uint8_t *counts) {
        uint64_t n[kCountColumns];
        bool has_any = false;
        for (uint64_t i = 0; i < kCountColumns; ++i) {
            n[i] = count(counts, layer, i);
            has_any |= n[i] != 0;
        }
        if (!has_any)
            return;
        LayerSamples *own = samples_of(out_, layer);
        if (!own)
            throw std::bad_alloc();
        if (n[0])
            read_keys(layer, n[0], own);
        const lk_layer &shape = out_->geometry[layer];
        const double group = shape.n_query_heads / shape.n_kv_heads;
        if (n[1])
            read_sums(layer, LayerTensor::kQueryAbsSum,
                      static_cast<double>(n[1]) * double{kHalfMaxValue} * group, &own->queries);
        if (n[2])
            read_sums(layer, LayerTensor::kRetrievalSum, static_cast<double>(n[2]),
                      &own->retrieval);
        if (n[3])
            read_sums(layer, LayerTensor::kKeyGradientSum, kAnySum, &own->key_gradients);
        if (n[4])
            read_sums(layer, LayerTensor::kValueGradientSum, kAnySum, &own->value_gradients);
        if (n[5]) {
            read_sums(layer, LayerTensor::kOutputErrorSum, kAnySum, &own->output_errors);
            read_sums(layer, LayerTensor::kOutputSquareSum, kAnySum, &own->output_squares);
        }
        own->n_keys = n[0];
        own->n_queries = n[1];
        own->n_probe_queries = n[2];
        own->n_gradients[0] = n[3];
        own->n_gradients[1] = n[4];
        own->n_outputs = n[5];
    }

    static bool is_searched_width(uint64_t bits) {
        return bits == 16 || bits == 8 || bits == 4 || bits == 2;
    }

    void read_search(uint32_t layer, const uint8_t *searches) {
        uint64_t n[kSearchColumns];
        for (uint64_t i = 0; i < kSearchColumns; ++i)
            n[i] = load<uint64_t>(searches, layer * kSearchColumns + i);
        if (!n[0])
            return;
        const uint32_t head_dim = out_->geometry[layer].head_dim;
        if (n[0] > kMaxCount || n[1] < LK_ROPE_HALVES || n[1] > LK_ROPE_INTERLEAVED || !n[2] ||
            n[2] > head_dim || n[2] % 2 || !is_searched_width(n[3]) || !is_searched_width(n[4]))
            expect(fail(LK_E_CORRUPT,
                        "tensor \"%s\" has %llu, %llu, %llu, %llu, %llu in layer %u, which is no "
                        "search",
                        kSearchName, ull{n[0]}, ull{n[1]}, ull{n[2]}, ull{n[3]}, ull{n[4]}, layer));
        LayerSamples *own = samples_of(out_, layer);
        if (!own)
            throw std::bad_alloc();
        read_maxima(layer, own);
        read_sums(layer, LayerTensor::kScaleErrorSum, kAnySum, &own->scale_errors);
        own->n_searched = n[0];
        own->scale_rule = {static_cast<uint32_t>(n[1]), static_cast<uint32_t>(n[2]),
                           static_cast<uint32_t>(n[3]), static_cast<uint32_t>(n[4])};
    }

    void read_costs(uint32_t layer, LayerTensor tensor, Array<double> LayerSamples::*costs) {
        if (!file_.has(name_of(layer, tensor)))
            return;
        LayerSamples *own = samples_of(out_, layer);
        if (!own)
            throw std::bad_alloc();
        read_sums(layer, tensor, kMaxCost, &(own->*costs));
    }

    void read_maxima(uint32_t layer, LayerSamples *own) {
        const uint8_t *bytes = take(layer, LayerTensor::kPairMax);
        const lk_layer &shape = out_->geometry[layer];
        const uint64_t n = uint64_t{shape.n_kv_heads} * shape.head_dim;
        if (!own->pair_maxima.resize(n))
            throw std::bad_alloc();
        for (uint64_t i = 0; i < n; ++i) {
            const auto half = load<uint16_t>(bytes, i);
            if (half > kHalfMax)
                expect(fail(LK_E_CORRUPT,
                            "tensor \"%s\" has an element %llu that is negative or not finite",
                            name_of(layer, LayerTensor::kPairMax).c_str(), ull{i}));
            own->pair_maxima[i] = half_to_float(half);
        }
    }

    // From 0 to `most`, rounding aside.
    void read_sums(uint32_t layer, LayerTensor tensor, double most, Array<double> *out) {
        const uint8_t *bytes = take(layer, tensor);
        const uint64_t n =
            extents_of(kLayerTensorInfo[static_cast<size_t>(tensor)].shape, out_->geometry[layer])
                .count();
        if (!out->resize(n))
            throw std::bad_alloc();
        for (uint64_t i = 0; i < n; ++i) {
            (*out)[i] = load<double>(bytes, i);
            if (!((*out)[i] >= 0 && (*out)[i] <= most * (1 + kSumSlack)))
                expect(fail(LK_E_CORRUPT, "tensor \"%s\" has %g at element %llu, must be 0 to %g",
                            name_of(layer, tensor).c_str(), (*out)[i], ull{i}, most));
        }
    }

    void read_keys(uint32_t layer, uint64_t n_keys, LayerSamples *own) {
        const uint8_t *sum = take(layer, LayerTensor::kKeySum);
        const uint8_t *magnitude = take(layer, LayerTensor::kKeyAbsSum);
        const uint8_t *low = take(layer, LayerTensor::kKeyMin);
        const uint8_t *high = take(layer, LayerTensor::kKeyMax);
        const lk_layer &shape = out_->geometry[layer];
        const uint64_t n = uint64_t{shape.n_kv_heads} * shape.head_dim;
        if (!own->keys.resize(n))
            throw std::bad_alloc();
        for (uint64_t i = 0; i < n; ++i) {
            const ChannelSums sums = {static_cast<int16_t>(half_order(load<uint16_t>(low, i))),
                                      static_cast<int16_t>(half_order(load<uint16_t>(high, i))),
                                      load<double>(sum, i), load<double>(magnitude, i)};
            if (!is_possible(sums, static_cast<double>(n_keys)))
                expect(fail(LK_E_CORRUPT,
                            "layer %u, KV head %llu, channel %llu: minimum, maximum "
                            "and sums do not belong together",
                            layer, ull{i / shape.head_dim}, ull{i % shape.head_dim}));
            own->keys[i] = sums;
        }
    }

    static bool is_possible(const ChannelSums &sums, double n) {
        if (sums.low > sums.high || sums.high > kHalfMax ||
            sums.low < -1 - static_cast<int32_t>(kHalfMax))
            return false;
        const double low = double{channel_low(sums)};
        const double high = double{channel_high(sums)};
        const double most = std::max(std::fabs(low), std::fabs(high)) * n;
        const double slack = most * kSumSlack;
        return sums.sum >= low * n - slack && sums.sum <= high * n + slack &&
               sums.magnitude >= std::fabs(sums.sum) - slack && sums.magnitude <= most + slack;
    }

    static constexpr float kHalfMaxValue = 65504;
    File file_;
    Calibrator *out_;
};

}  // namespace

lk_status stats_from_bytes(const uint8_t *bytes, size_t n_bytes, Calibrator *out) {
    try {
        Reader(bytes, n_bytes, out).read();
        return LK_OK;
    } catch (const Refused &refused) {
        return refused.status;
    } catch (const std::bad_alloc &) {
        return fail(LK_E_NOMEM, "no memory to read statistics of %zu bytes", n_bytes);
    } catch (...) {
        return fail(LK_E_CORRUPT, "the header is not that of a safetensors file");
    }
}

}  // namespace lk
