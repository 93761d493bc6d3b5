// Statistics as a safetensors file (docs/CALIBRATION.md).
//
// SPDX-License-Identifier: Apache-2.0
#include <cstdio>

#include "format/fp16.h"
#include "stats/file.h"
#include "stats/file_format.h"
#include "stats/sums.h"

namespace lk {

namespace {

// Counts the bytes of what is put, and writes them where there is a place.
class Sink {
  public:
    explicit Sink(uint8_t *place) : place_(place) {}
    void put(const void *bytes, size_t n) {
        if (place_)
            std::memcpy(place_ + at_, bytes, n);
        at_ += n;
    }
    template <class T>
    void put_value(T value) {
        put(&value, sizeof value);
    }
    uint64_t at() const { return at_; }

  private:
    uint8_t *place_;
    uint64_t at_ = 0;
};

// The half of a value that came from one.
uint16_t half_bits(float value) {
    bool saturated = false;
    return float_to_half(value, &saturated);
}

bool has_tensor(const lk_layer &shape, const LayerSamples *own, LayerTensor tensor) {
    switch (tensor) {
        case LayerTensor::kSinks: return shape.sink_logits != nullptr;
        case LayerTensor::kQueryAbsSum: return own && own->n_queries;
        case LayerTensor::kRetrievalSum: return own && own->n_probe_queries;
        case LayerTensor::kKeyGradientSum: return own && own->n_gradients[0];
        case LayerTensor::kValueGradientSum: return own && own->n_gradients[1];
        case LayerTensor::kOutputErrorSum:
        case LayerTensor::kOutputSquareSum: return own && own->n_outputs;
        case LayerTensor::kPairMax:
        case LayerTensor::kScaleErrorSum: return own && own->n_searched;
        case LayerTensor::kCost: return own && own->costs.size();
        case LayerTensor::kClipCost: return own && own->clip_costs.size();
        default: return own && own->n_keys;
    }
}

void put_channel(const ChannelSums &sums, LayerTensor tensor, Sink *out) {
    switch (tensor) {
        case LayerTensor::kKeySum: return out->put_value(sums.sum);
        case LayerTensor::kKeyAbsSum: return out->put_value(sums.magnitude);
        case LayerTensor::kKeyMin: return out->put_value(half_bits(channel_low(sums)));
        default: return out->put_value(half_bits(channel_high(sums)));
    }
}

// The sums of a tensor that is kept as it is written, else null.
const Array<double> *plain_sums(const LayerSamples &own, LayerTensor tensor) {
    switch (tensor) {
        case LayerTensor::kQueryAbsSum: return &own.queries;
        case LayerTensor::kRetrievalSum: return &own.retrieval;
        case LayerTensor::kKeyGradientSum: return &own.key_gradients;
        case LayerTensor::kValueGradientSum: return &own.value_gradients;
        case LayerTensor::kOutputErrorSum: return &own.output_errors;
        case LayerTensor::kOutputSquareSum: return &own.output_squares;
        case LayerTensor::kScaleErrorSum: return &own.scale_errors;
        case LayerTensor::kCost: return &own.costs;
        case LayerTensor::kClipCost: return &own.clip_costs;
        default: return nullptr;
    }
}

void put_layer_tensor(const lk_layer &shape, const LayerSamples *own, LayerTensor tensor,
                      Sink *out) {
    if (tensor == LayerTensor::kSinks) {
        for (uint32_t h = 0; h < shape.n_query_heads; ++h)
            out->put_value(double{shape.sink_logits[h]});
    } else if (const Array<double> *sums = plain_sums(*own, tensor)) {
        out->put(sums->data(), sums->size() * sizeof(double));
    } else if (tensor == LayerTensor::kPairMax) {
        for (const float maximum : own->pair_maxima)
            out->put_value(half_bits(maximum));
    } else {
        for (const ChannelSums &channel : own->keys)
            put_channel(channel, tensor, out);
    }
}

// Of "counts".
uint64_t count_of(const LayerSamples &own, uint64_t column) {
    const uint64_t counts[kCountColumns] = {own.n_keys,          own.n_queries,
                                            own.n_probe_queries, own.n_gradients[0],
                                            own.n_gradients[1],  own.n_outputs};
    return counts[column];
}

bool has_search(const Calibrator &calibrator) {
    for (const LayerSamples *own : calibrator.layers)
        if (own && own->n_searched)
            return true;
    return false;
}

bool has_reading_layer(const Calibrator &calibrator) {
    for (const lk_layer &layer : calibrator.geometry)
        if (layer.kv_layer != LK_OWN_KV)
            return true;
    return false;
}

// "kv_layer".
void put_kv_layers(const Calibrator &calibrator, Sink *out) {
    int64_t own = 0;
    for (const lk_layer &layer : calibrator.geometry) {
        out->put_value(layer.kv_layer == LK_OWN_KV ? own : int64_t{layer.kv_layer});
        ++own;
    }
}

// "scale_search"; layers without a search have zeros.
void put_searches(const Calibrator &calibrator, Sink *out) {
    const LayerSamples none(*calibrator.allocator);
    for (const LayerSamples *layer : calibrator.layers) {
        const LayerSamples &own = layer && layer->n_searched ? *layer : none;
        const ScaleRule &rule = own.scale_rule;
        out->put_value(own.n_searched);
        for (const uint64_t number : {rule.pairing, rule.channels, rule.key_bits, rule.value_bits})
            out->put_value(number);
    }
}

void put_geometry(const Calibrator &calibrator, Sink *out) {
    for (const lk_layer &layer : calibrator.geometry)
        for (const uint32_t number : {layer.n_query_heads, layer.n_kv_heads, layer.head_dim,
                                      layer.window_tokens, layer.window_sink_tokens})
            out->put_value(static_cast<int64_t>(number));
    for (const lk_layer &layer : calibrator.geometry)
        for (const float number : {layer.scale, layer.soft_cap})
            out->put_value(double{number});
    for (const LayerSamples *own : calibrator.layers)
        for (uint64_t i = 0; i < kCountColumns; ++i)
            out->put_value(own ? count_of(*own, i) : uint64_t{0});
}

// Header entries and data, in one order.
class Writer {
  public:
    Writer(const Calibrator &calibrator, uint8_t *place, uint64_t header_bytes)
        : calibrator_(calibrator), out_(place), header_bytes_(header_bytes) {}

    // Bytes of the header alone, padded.
    uint64_t write_header();
    uint64_t write_data();

  private:
    void entry(const char *name, const char *dtype, uint64_t rows, uint64_t columns,
               uint64_t n_bytes);
    void text(const char *text) { out_.put(text, std::strlen(text)); }

    const Calibrator &calibrator_;
    Sink out_;
    uint64_t header_bytes_;
    uint64_t offset_ = 0;
};

// columns 0: one dimension.
void Writer::entry(const char *name, const char *dtype, uint64_t rows, uint64_t columns,
                   uint64_t n_bytes) {
    char shape[48];
    char line[192];
    const auto n = static_cast<unsigned long long>(rows);
    if (columns)
        std::snprintf(shape, sizeof shape, "%llu,%llu", n,
                      static_cast<unsigned long long>(columns));
    else
        std::snprintf(shape, sizeof shape, "%llu", n);
    std::snprintf(line, sizeof line,
                  ",\"%s\":{\"dtype\":\"%s\",\"shape\":[%s],\"data_offsets\":[%llu,%llu]}", name,
                  dtype, shape, static_cast<unsigned long long>(offset_),
                  static_cast<unsigned long long>(offset_ + n_bytes));
    text(line);
    offset_ += n_bytes;
}

uint64_t Writer::write_header() {
    const uint64_t n_layers = calibrator_.geometry.size();
    out_.put_value(header_bytes_);
    char line[96];
    std::snprintf(line, sizeof line, "{\"__metadata__\":{\"format\":\"%s\",\"version\":\"%s\"}",
                  kStatsFormat, kStatsVersion);
    text(line);
    entry("geometry", "I64", n_layers, kGeometryColumns, n_layers * kGeometryColumns * 8);
    entry("geometry_real", "F64", n_layers, kRealColumns, n_layers * kRealColumns * 8);
    entry("counts", "I64", n_layers, kCountColumns, n_layers * kCountColumns * 8);
    if (has_reading_layer(calibrator_))
        entry(kKvLayerName, "I64", n_layers, 0, n_layers * 8);
    if (has_search(calibrator_))
        entry(kSearchName, "I64", n_layers, kSearchColumns, n_layers * kSearchColumns * 8);
    for (uint32_t l = 0; l < n_layers; ++l)
        for (size_t t = 0; t < kLayerTensors; ++t) {
            const lk_layer &shape = calibrator_.geometry[l];
            if (!has_tensor(shape, calibrator_.layers[l], static_cast<LayerTensor>(t)))
                continue;
            const LayerTensorInfo &info = kLayerTensorInfo[t];
            std::snprintf(line, sizeof line, "layer.%u.%s", l, info.name);
            const Extents extents = extents_of(info.shape, shape);
            entry(line, info.dtype, extents.rows, extents.columns,
                  extents.count() * info.element_bytes);
        }
    text("}");
    while (out_.at() % kHeaderAlign)
        text(" ");
    return out_.at() - kLengthBytes;
}

uint64_t Writer::write_data() {
    put_geometry(calibrator_, &out_);
    if (has_reading_layer(calibrator_))
        put_kv_layers(calibrator_, &out_);
    if (has_search(calibrator_))
        put_searches(calibrator_, &out_);
    for (uint32_t l = 0; l < calibrator_.geometry.size(); ++l)
        for (size_t t = 0; t < kLayerTensors; ++t)
            if (has_tensor(calibrator_.geometry[l], calibrator_.layers[l],
                           static_cast<LayerTensor>(t)))
                put_layer_tensor(calibrator_.geometry[l], calibrator_.layers[l],
                                 static_cast<LayerTensor>(t), &out_);
    return out_.at();
}

}  // namespace

lk_status stats_to_bytes(const Calibrator &calibrator, void *buffer, size_t capacity_bytes,
                         size_t *needed_bytes) {
    Writer counter(calibrator, nullptr, 0);
    const uint64_t header_bytes = counter.write_header();
    const uint64_t needed = counter.write_data();
    *needed_bytes = needed;
    if (!capacity_bytes)
        return LK_OK;
    if (capacity_bytes < needed)
        return fail(LK_E_ARGUMENT, "capacity_bytes is %zu, the statistics take %llu",
                    capacity_bytes, static_cast<unsigned long long>(needed));
    Writer writer(calibrator, static_cast<uint8_t *>(buffer), header_bytes);
    (void)writer.write_header();
    (void)writer.write_data();
    return LK_OK;
}

}  // namespace lk
