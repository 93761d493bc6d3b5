// SPDX-License-Identifier: Apache-2.0
#include "cli/calibrate/sampling.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <map>
#include <memory>
#include <sstream>

#include "cli/common/command.h"
#include "cli/common/output_file.h"
#include "cli/common/report.h"
#include "cli/common/resources.h"

namespace cli {

namespace {

constexpr std::size_t kCountDigits = 9;  // of a count that fits 32 bits

using llama::SafetensorsFile;
using llama::Tensor;

// Keys and queries of one step, as the calibrator takes them.
lk_tensor step_tensor(float *data, std::uint32_t n_tokens, std::uint32_t n_heads,
                      std::uint32_t head_dim) {
    return llama::float_tensor(LK_MEMORY_HOST, data, {n_tokens, n_heads, head_dim});
}

void run_documents(llama::Session &session, const std::vector<llama::Tokens> &documents,
                   const char *what) {
    Progress progress(documents.size());
    for (const llama::Tokens &tokens : documents) {
        progress.step(what);
        session.reset();
        (void)session.feed(tokens);
    }
}

// The probe's tokens, after the prefix.
llama::Tokens probe_text(const lk_probe &probe, const SamplingRequest &request) {
    const TokenTexts &texts = request.texts;
    std::uint64_t n_tokens = 0;
    llama::check(lk_probe_tokens(&probe, texts.prefix.data(), texts.sentence.data(),
                                 request.n_repeats, nullptr, 0, &n_tokens));
    llama::Tokens tokens(static_cast<std::size_t>(n_tokens));
    llama::check(lk_probe_tokens(&probe, texts.prefix.data(), texts.sentence.data(),
                                 request.n_repeats, tokens.data(), n_tokens, &n_tokens));
    return tokens;
}

// Queries, keys and values of one causal pass of a layer.
struct Pass {
    lk_tensor queries, keys, values;
    std::uint32_t n_tokens;
};

void add_attention(lk_calibrator *calibrator, std::uint32_t layer, const Pass &pass,
                   const PassRequest &request) {
    const std::uint32_t n_tokens = std::min(pass.n_tokens, request.attention_tokens);
    if (n_tokens != 0)
        llama::check(lk_calibrator_add_attention(calibrator, layer, &pass.queries, &pass.keys,
                                                 &pass.values, n_tokens));
}

void search_scales(lk_calibrator *calibrator, std::uint32_t layer, const Pass &pass,
                   const PassRequest &request, const lk_rope &rope) {
    lk_scale_search search = llama::initialised(lk_scale_search_init);
    search.pairing = rope.pairing;
    search.channels = rope.channels;
    search.key_bits = search.value_bits = request.scale_bits;
    search.query_step = request.query_step;
    const std::uint32_t n_tokens = request.attention_tokens != 0
                                       ? std::min(pass.n_tokens, request.attention_tokens)
                                       : pass.n_tokens;
    llama::check(lk_calibrator_add_scale_search(calibrator, layer, &search, &pass.queries,
                                                &pass.keys, &pass.values, n_tokens));
}

// ---- dumps ----

struct Dump {
    std::string path;
    SafetensorsFile file;
    explicit Dump(const std::string &from) : path(from), file(from) {}

    const Tensor *find(std::uint32_t layer, const char *name) const {
        return file.find("layer." + std::to_string(layer) + "." + name);
    }
    // A number of the file's metadata, of a layer or of all.
    double number(std::uint32_t layer, const std::string &name, double otherwise) const {
        const auto &texts = file.metadata();
        auto found = texts.find("layer." + std::to_string(layer) + "." + name);
        if (found == texts.end())
            found = texts.find(name);
        if (found == texts.end())
            return otherwise;
        char *end = nullptr;
        const double value = std::strtod(found->second.c_str(), &end);
        if (end == found->second.c_str() || *end != '\0')
            throw llama::Error(path + " has the metadata " + found->first + " = " + found->second +
                               ", which is no number");
        return value;
    }
    std::uint32_t whole(std::uint32_t layer, const std::string &name,
                        std::uint32_t otherwise) const {
        const double value = number(layer, name, otherwise);
        if (!(value >= 0 && value <= 4294967295.0) || value != static_cast<std::uint32_t>(value))
            throw llama::Error(path + " has the metadata " + name + ", which is no count");
        return static_cast<std::uint32_t>(value);
    }
};

// [tokens][heads][head_dim], or with leading dimensions that make up the tokens.
struct TensorShape {
    std::uint32_t n_tokens, n_heads, head_dim;
};
TensorShape shape_of(const Tensor &tensor) {
    const std::size_t n = tensor.shape.size();
    if (n < 3 || n > 4)
        throw llama::Error("tensor \"" + tensor.name + "\" has " + std::to_string(n) +
                           " dimensions, must be [tokens][heads][head_dim]");
    const std::uint64_t n_tokens = n == 4 ? tensor.shape[0] * tensor.shape[1] : tensor.shape[0];
    if (n_tokens == 0 || n_tokens > UINT32_MAX || tensor.shape[n - 2] > UINT32_MAX ||
        tensor.shape[n - 1] > UINT32_MAX)
        throw llama::Error("tensor \"" + tensor.name + "\" has a dimension of 0 or beyond 32 bits");
    return {static_cast<std::uint32_t>(n_tokens), static_cast<std::uint32_t>(tensor.shape[n - 2]),
            static_cast<std::uint32_t>(tensor.shape[n - 1])};
}

void expect_heads(const Tensor &tensor, const TensorShape &shape, std::uint32_t n_heads,
                  std::uint32_t head_dim) {
    if (shape.n_heads != n_heads || shape.head_dim != head_dim)
        throw llama::Error("tensor \"" + tensor.name + "\" has " + std::to_string(shape.n_heads) +
                           " heads of " + std::to_string(shape.head_dim) + ", the model has " +
                           std::to_string(n_heads) + " of " + std::to_string(head_dim));
}

// The file's bytes at an aligned address; they stay in the file where they are aligned already.
class Aligned {
  public:
    explicit Aligned(const Tensor &tensor) {
        static const std::map<std::string, lk_dtype> dtypes = {
            {"F16", LK_F16}, {"BF16", LK_BF16}, {"F32", LK_F32}};
        const auto found = dtypes.find(tensor.dtype);
        if (found == dtypes.end())
            throw llama::Error("tensor \"" + tensor.name + "\" is " + tensor.dtype +
                               ", must be F16, BF16 or F32");
        const TensorShape shape = shape_of(tensor);
        tensor_ = llama::initialised(lk_tensor_init);
        tensor_.dtype = found->second;
        tensor_.memory = LK_MEMORY_HOST;
        tensor_.head_stride = shape.head_dim;
        tensor_.token_stride = static_cast<std::int64_t>(shape.n_heads) * shape.head_dim;
        if (reinterpret_cast<std::uintptr_t>(tensor.data) % 4 != 0) {
            copy_.assign(tensor.data, tensor.data + tensor.n_bytes);
            tensor_.data = copy_.data();
        } else {
            tensor_.data = const_cast<std::uint8_t *>(tensor.data);
        }
    }
    const lk_tensor *get() const { return &tensor_; }

  private:
    lk_tensor tensor_;
    std::vector<std::uint8_t> copy_;
};

// Tokens of each pass, from their own beginning: the first of four dimensions counts them, else
// the metadata "passes" lists them, else there is one.
std::vector<std::uint32_t> passes_of(const Dump &dump, const Tensor &tensor) {
    const TensorShape shape = shape_of(tensor);
    if (tensor.shape.size() == 4)
        return std::vector<std::uint32_t>(tensor.shape[0],
                                          static_cast<std::uint32_t>(tensor.shape[1]));
    const auto found = dump.file.metadata().find("passes");
    if (found == dump.file.metadata().end())
        return {shape.n_tokens};
    std::vector<std::uint32_t> passes;
    std::uint64_t sum = 0;
    std::istringstream words(found->second);
    for (std::string word; std::getline(words, word, ',');) {
        if (word.empty() || word.size() > kCountDigits ||
            word.find_first_not_of("0123456789") != std::string::npos || std::stoul(word) == 0)
            throw llama::Error(dump.path + " has the metadata passes with \"" + word +
                               "\", which is no count");
        passes.push_back(static_cast<std::uint32_t>(std::stoul(word)));
        sum += passes.back();
    }
    if (sum != shape.n_tokens)
        throw llama::Error(dump.path + " has passes of " + std::to_string(sum) +
                           " tokens in all, tensor \"" + tensor.name + "\" has " +
                           std::to_string(shape.n_tokens));
    return passes;
}

// How a dump's model turns positions; frequencies point into the vector.
lk_rope rope_of(const Dump &dump, std::uint32_t layer, std::vector<double> &frequencies) {
    lk_rope rope = llama::initialised(lk_rope_init);
    rope.channels = dump.whole(layer, "rope_channels", 0);
    rope.base = dump.number(layer, "rope_base", rope.base);
    rope.pairing =
        dump.whole(layer, "rope_interleaved", 0) != 0 ? LK_ROPE_INTERLEAVED : LK_ROPE_HALVES;
    const Tensor *own = dump.find(layer, "rope_frequencies");
    if (own == nullptr)
        own = dump.file.find("rope_frequencies");
    if (own == nullptr)
        return rope;
    const std::vector<float> values = llama::to_floats(*own);
    frequencies.assign(values.begin(), values.end());
    if (rope.channels == 0)
        rope.channels = static_cast<std::uint32_t>(2 * frequencies.size());
    if (frequencies.size() != rope.channels / 2)
        throw llama::Error("tensor \"" + own->name + "\" has " +
                           std::to_string(frequencies.size()) + " frequencies of " +
                           std::to_string(rope.channels) + " channels");
    rope.frequencies = frequencies.data();
    return rope;
}

// Positions that a dump's keys and queries have, and those that are requested; 0 = none yet.
struct Positions {
    double have, want;
    bool differ() const { return have != want; }
};
Positions positions_of(const Dump &dump, std::uint32_t layer, const DumpRequest &request) {
    const double scale = dump.number(layer, "position_scale", 1);
    if (!(scale > 0))
        throw llama::Error(dump.path + " has a position_scale that is not above 0");
    const bool before_rope = dump.whole(layer, "before_rope", 0) != 0;
    return {before_rope ? 0 : scale, request.position_scale != 0 ? request.position_scale : scale};
}

// A tensor of a dump at the requested positions.
class Sample {
  public:
    Sample(const Dump &dump, std::uint32_t layer, const Tensor &tensor, const Positions &positions)
        : file_(tensor), tensor_(*file_.get()), shape_(shape_of(tensor)) {
        if (positions.differ())
            turn(dump, layer, tensor, positions);
    }
    const lk_tensor *get() const { return &tensor_; }
    const TensorShape &shape() const { return shape_; }
    lk_tensor from(std::uint32_t token) const {
        lk_tensor part = tensor_;
        const std::size_t element_bytes = part.dtype == LK_F32 ? 4 : 2;
        part.data = static_cast<std::uint8_t *>(part.data) +
                    static_cast<std::size_t>(token) * static_cast<std::size_t>(part.token_stride) *
                        element_bytes;
        return part;
    }

  private:
    void turn(const Dump &dump, std::uint32_t layer, const Tensor &tensor,
              const Positions &positions) {
        std::vector<double> frequencies;
        const lk_rope rope = rope_of(dump, layer, frequencies);
        if (dump.number(layer, "rope_base", 0) == 0 && frequencies.empty())
            throw llama::Error(dump.path + " has no metadata rope_base, which new positions need");
        const std::size_t width = static_cast<std::size_t>(shape_.n_heads) * shape_.head_dim;
        turned_.resize(width * shape_.n_tokens);
        std::uint32_t first = 0;
        for (const std::uint32_t n : passes_of(dump, tensor)) {
            lk_tensor part = from(first);
            float *out = turned_.data() + first * width;
            if (positions.have != 0) {
                llama::check(lk_rope_invert(&rope, &part, n, shape_.n_heads, shape_.head_dim, 0,
                                            positions.have, out));
                part = step_tensor(out, n, shape_.n_heads, shape_.head_dim);
            }
            llama::check(lk_rope_apply(&rope, &part, n, shape_.n_heads, shape_.head_dim, 0,
                                       positions.want, out));
            first += n;
        }
        tensor_ = step_tensor(turned_.data(), shape_.n_tokens, shape_.n_heads, shape_.head_dim);
    }

    Aligned file_;
    lk_tensor tensor_;
    TensorShape shape_;
    std::vector<float> turned_;
};

std::uint32_t count_layers(const Dump &dump) {
    std::uint32_t n = 0;
    while (dump.find(n, "k") != nullptr || dump.find(n, "probe_k") != nullptr)
        ++n;
    if (n == 0)
        throw llama::Error(dump.path + " has no tensor \"layer.0.k\": see docs/CALIBRATION.md");
    return n;
}

llama::CalibratorHandle make_from(const Dump &dump, std::uint32_t n_query_heads) {
    std::vector<lk_layer> layers(count_layers(dump), llama::initialised(lk_layer_init));
    std::vector<std::vector<float>> sinks(layers.size());
    for (std::uint32_t l = 0; l < layers.size(); ++l) {
        const Tensor *keys = dump.find(l, "k");
        const TensorShape shape = shape_of(keys != nullptr ? *keys : *dump.find(l, "probe_k"));
        const Tensor *queries = dump.find(l, "q");
        if (queries == nullptr)
            queries = dump.find(l, "probe_q");
        layers[l].n_kv_heads = shape.n_heads;
        layers[l].head_dim = shape.head_dim;
        layers[l].n_query_heads = queries != nullptr   ? shape_of(*queries).n_heads
                                  : n_query_heads != 0 ? n_query_heads
                                                       : shape.n_heads;
        layers[l].window_tokens = dump.whole(l, "window", 0);
        layers[l].window_sink_tokens = dump.whole(l, "window_sinks", 0);
        layers[l].scale = static_cast<float>(dump.number(l, "scale", 0));
        layers[l].soft_cap = static_cast<float>(dump.number(l, "soft_cap", 0));
        if (const Tensor *logits = dump.find(l, "sink_logits")) {
            sinks[l] = llama::to_floats(*logits);
            if (sinks[l].size() != layers[l].n_query_heads)
                throw llama::Error("tensor \"" + logits->name +
                                   "\" has not one number for each query head");
            layers[l].sink_logits = sinks[l].data();
        }
    }
    lk_geometry geometry = llama::initialised(lk_geometry_init);
    geometry.n_layers = static_cast<std::uint32_t>(layers.size());
    geometry.layers = layers.data();
    lk_calibrator *calibrator = nullptr;
    llama::check(lk_calibrator_create(&geometry, &calibrator));
    return llama::CalibratorHandle(calibrator);
}

// Queries, keys and values of a layer, those that there are.
struct LayerDump {
    LayerDump(const Dump &dump, std::uint32_t layer, const lk_layer &model,
              const DumpRequest &request)
        : positions(positions_of(dump, layer, request)) {
        const Positions as_is = {1, 1};
        load(dump, layer, "q", model.n_query_heads, model.head_dim, positions, queries);
        load(dump, layer, "k", model.n_kv_heads, model.head_dim, positions, keys);
        load(dump, layer, "v", model.n_kv_heads, model.head_dim, as_is, values);
        load(dump, layer, "k_grad", model.n_kv_heads, model.head_dim, as_is, key_gradients);
        load(dump, layer, "v_grad", model.n_kv_heads, model.head_dim, as_is, value_gradients);
        if (key_gradients != nullptr && positions.differ())
            throw llama::Error(dump.path +
                               " has gradients, which belong to keys after RoPE at "
                               "their own positions: run the model at the new ones");
    }

    static void load(const Dump &dump, std::uint32_t layer, const char *name, std::uint32_t n_heads,
                     std::uint32_t head_dim, const Positions &positions,
                     std::unique_ptr<Sample> &out) {
        const Tensor *tensor = dump.find(layer, name);
        if (tensor == nullptr)
            return;
        expect_heads(*tensor, shape_of(*tensor), n_heads, head_dim);
        out = std::make_unique<Sample>(dump, layer, *tensor, positions);
    }

    Positions positions;
    std::unique_ptr<Sample> queries, keys, values, key_gradients, value_gradients;
};

// Calls use(pass) for every pass of a layer that has queries, keys and values.
template <typename Use>
void for_each_pass(const Dump &dump, std::uint32_t layer, const LayerDump &own, const Use &use) {
    if (own.queries == nullptr || own.keys == nullptr || own.values == nullptr)
        return;
    const std::uint32_t n_tokens = own.keys->shape().n_tokens;
    if (own.queries->shape().n_tokens != n_tokens || own.values->shape().n_tokens != n_tokens)
        throw llama::Error(dump.path +
                           " has queries, keys and values of different lengths in layer " +
                           std::to_string(layer));
    std::uint32_t first = 0;
    for (const std::uint32_t n : passes_of(dump, *dump.find(layer, "k"))) {
        use(Pass{own.queries->from(first), own.keys->from(first), own.values->from(first), n});
        first += n;
    }
}

void add_gradients(lk_calibrator *calibrator, const Dump &dump, std::uint32_t layer, bool is_value,
                   const Sample *samples, const Sample &gradients) {
    const std::string name = is_value ? "v" : "k";
    const std::string place = "layer." + std::to_string(layer) + "." + name;
    if (samples == nullptr)
        throw llama::Error(dump.path + " has \"" + place + "_grad\" without \"" + place + "\"");
    if (samples->shape().n_tokens != gradients.shape().n_tokens)
        throw llama::Error("tensors \"" + place + "\" and \"" + place +
                           "_grad\" have different lengths");
    llama::check(lk_calibrator_add_gradients(calibrator, layer, is_value ? 1 : 0, samples->get(),
                                             gradients.get(), gradients.shape().n_tokens));
}

void add_samples(lk_calibrator *calibrator, const Dump &dump, std::uint32_t layer,
                 const lk_layer &model, const DumpRequest &request) {
    const LayerDump own(dump, layer, model, request);
    if (own.keys != nullptr)
        llama::check(
            lk_calibrator_add_keys(calibrator, layer, own.keys->get(), own.keys->shape().n_tokens));
    if (own.queries != nullptr)
        llama::check(lk_calibrator_add_queries(calibrator, layer, own.queries->get(),
                                               own.queries->shape().n_tokens));
    if (own.key_gradients != nullptr)
        add_gradients(calibrator, dump, layer, false, own.keys.get(), *own.key_gradients);
    if (own.value_gradients != nullptr)
        add_gradients(calibrator, dump, layer, true, own.values.get(), *own.value_gradients);
    if (own.key_gradients == nullptr || own.value_gradients == nullptr)
        for_each_pass(dump, layer, own, [&](const Pass &pass) {
            add_attention(calibrator, layer, pass, request.pass);
        });
}

void search_dump(lk_calibrator *calibrator, const Dump &dump, std::uint32_t layer,
                 const lk_layer &model, const DumpRequest &request) {
    std::vector<double> frequencies;
    const lk_rope rope = rope_of(dump, layer, frequencies);
    const LayerDump own(dump, layer, model, request);
    for_each_pass(dump, layer, own, [&](const Pass &pass) {
        search_scales(calibrator, layer, pass, request.pass, rope);
    });
}

void add_probe(lk_calibrator *calibrator, const Dump &dump, std::uint32_t layer,
               const lk_layer &model) {
    const Tensor *queries = dump.find(layer, "probe_q");
    const Tensor *keys = dump.find(layer, "probe_k");
    if (queries == nullptr && keys == nullptr)
        return;
    if (queries == nullptr || keys == nullptr)
        throw llama::Error(dump.path + " has only one of probe_q and probe_k in layer " +
                           std::to_string(layer));
    const TensorShape shape = shape_of(*queries);
    expect_heads(*queries, shape, model.n_query_heads, model.head_dim);
    expect_heads(*keys, shape_of(*keys), model.n_kv_heads, model.head_dim);
    if (shape_of(*keys).n_tokens != shape.n_tokens)
        throw llama::Error("tensors \"" + queries->name + "\" and \"" + keys->name +
                           "\" have different lengths");
    lk_probe probe = llama::initialised(lk_probe_init);
    probe.prefix_tokens = dump.whole(layer, "probe_prefix", 0);
    probe.period_tokens = dump.whole(layer, "probe_period", 0);
    if (probe.period_tokens == 0)
        throw llama::Error(dump.path + " has a probe and no metadata probe_period");
    probe.sink_tokens = dump.whole(layer, "probe_sinks", probe.sink_tokens);
    probe.local_tokens =
        dump.whole(layer, "probe_local", std::min(probe.local_tokens, probe.period_tokens - 1));
    llama::check(lk_calibrator_add_probe(calibrator, layer, &probe, Aligned(*queries).get(),
                                         Aligned(*keys).get(), shape.n_tokens));
}

}  // namespace

llama::CalibratorHandle sample_model(llama::Model &model, const SamplingRequest &request) {
    const llama::Config &c = model.config();
    const llama::Geometry shape = model.geometry();
    const lk_geometry geometry = shape.view();
    lk_calibrator *made = nullptr;
    llama::check(lk_calibrator_create(&geometry, &made));
    llama::CalibratorHandle calibrator(made);
    lk_probe probe = llama::initialised(lk_probe_init);
    probe.prefix_tokens = static_cast<std::uint32_t>(request.texts.prefix.size());
    probe.period_tokens = static_cast<std::uint32_t>(request.texts.sentence.size());
    const std::uint32_t nearest = std::max<std::uint32_t>(2, probe.period_tokens) - 1;
    probe.local_tokens = std::min(probe.local_tokens, nearest);
    const llama::Tokens probe_tokens = probe_text(probe, request);
    const std::size_t most = std::max(probe_tokens.size(), request.document_tokens);
    const llama::PlanHandle plan = llama::make_preset("fp16", shape);
    // Samples are taken on the host.
    const llama::ContextHandle context =
        llama::open_context(LK_BACKEND_CPU, 0, model.n_threads(), 0);
    llama::HostSpace space;
    llama::Session session(context.get(), space, model, plan.get(), most,
                           static_cast<std::uint32_t>(most));
    const auto pass_of = [&](std::uint32_t n_tokens, float *q, float *k, float *v) {
        return Pass{step_tensor(q, n_tokens, c.n_query_heads, c.head_dim),
                    step_tensor(k, n_tokens, c.n_kv_heads, c.head_dim),
                    step_tensor(v, n_tokens, c.n_kv_heads, c.head_dim), n_tokens};
    };
    const auto add_keys = [&](std::uint32_t layer, const Pass &pass) {
        llama::check(lk_calibrator_add_keys(made, layer, &pass.keys, pass.n_tokens));
        llama::check(lk_calibrator_add_queries(made, layer, &pass.queries, pass.n_tokens));
    };
    const CutTexts texts = cut_texts(request.texts, request.n_tokens, request.document_tokens);
    const char *const of_text = "keys and queries of the text";
    model.stretch_positions(request.position_scale);
    session.observe([&](std::uint32_t layer, std::uint32_t n_tokens, float *q, float *k, float *v) {
        const Pass pass = pass_of(n_tokens, q, k, v);
        add_keys(layer, pass);
        add_attention(made, layer, pass, request.pass);
    });
    run_documents(session, texts.documents, of_text);
    session.observe([&](std::uint32_t layer, std::uint32_t n_tokens, float *q, float *k, float *v) {
        add_keys(layer, pass_of(n_tokens, q, k, v));
    });
    run_documents(session, texts.costs, "keys and queries of the costs' texts");
    if (request.pass.search_scales) {
        const lk_rope rope = llama::initialised(lk_rope_init);
        session.observe(
            [&](std::uint32_t layer, std::uint32_t n_tokens, float *q, float *k, float *v) {
                search_scales(made, layer, pass_of(n_tokens, q, k, v), request.pass, rope);
            });
        run_documents(session, texts.documents, of_text);
    }
    model.stretch_positions(1);
    Progress progress(c.n_layers);
    session.observe([&](std::uint32_t layer, std::uint32_t n_tokens, float *q, float *k, float *) {
        progress.step("attention of the probe, layer " + std::to_string(layer));
        const lk_tensor keys = step_tensor(k, n_tokens, c.n_kv_heads, c.head_dim);
        const lk_tensor queries = step_tensor(q, n_tokens, c.n_query_heads, c.head_dim);
        llama::check(lk_calibrator_add_probe(made, layer, &probe, &queries, &keys, n_tokens));
    });
    session.reset();
    (void)session.feed(probe_tokens);
    return calibrator;
}

void sample_dumps(const std::vector<std::string> &paths, const DumpRequest &request,
                  llama::CalibratorHandle &calibrator) {
    for (const std::string &path : paths) {
        const Dump dump(path);
        if (calibrator == nullptr)
            calibrator = make_from(dump, request.n_query_heads);
        const std::vector<lk_layer> layers = geometry_of(calibrator.get());
        if (count_layers(dump) > layers.size())
            throw llama::Error(path + " has more layers than the model, " +
                               std::to_string(layers.size()));
        Progress progress(layers.size());
        for (std::uint32_t l = 0; l < layers.size(); ++l) {
            progress.step(path + ", layer " + std::to_string(l));
            add_samples(calibrator.get(), dump, l, layers[l], request);
            add_probe(calibrator.get(), dump, l, layers[l]);
        }
    }
    // Scales are made from the maxima of all keys, so the search follows them.
    for (const std::string &path : paths) {
        if (!request.pass.search_scales)
            break;
        const Dump dump(path);
        const std::vector<lk_layer> layers = geometry_of(calibrator.get());
        Progress progress(layers.size());
        for (std::uint32_t l = 0; l < layers.size(); ++l) {
            progress.step(path + ", key scales of layer " + std::to_string(l));
            search_dump(calibrator.get(), dump, l, layers[l], request);
        }
    }
}

llama::CalibratorHandle load_statistics(const std::string &path) {
    const std::string bytes = read_file(path);
    lk_calibrator *calibrator = nullptr;
    llama::check_bytes_of(path, lk_calibrator_from_bytes(bytes.data(), bytes.size(), &calibrator));
    llama::CalibratorHandle handle(calibrator);
    const std::vector<lk_layer> layers = geometry_of(calibrator);
    for (std::uint32_t l = 0; l < layers.size(); ++l)
        if (layers[l].kv_layer != LK_OWN_KV)
            throw llama::Error(path + ": layer " + std::to_string(l) +
                               " reads the keys and values of layer " +
                               std::to_string(layers[l].kv_layer) +
                               ": make plans of such models in C, Rust, Go or Python");
    return handle;
}

void save_statistics(const lk_calibrator *calibrator, const std::string &path) {
    std::size_t n_bytes = 0;
    llama::check(lk_calibrator_to_bytes(calibrator, nullptr, 0, &n_bytes));
    std::string bytes(n_bytes, '\0');
    llama::check(lk_calibrator_to_bytes(calibrator, bytes.data(), bytes.size(), &n_bytes));
    write_file(path, bytes);
}

std::vector<lk_layer> geometry_of(const lk_calibrator *calibrator) {
    std::uint32_t n_layers = 0;
    llama::check(lk_calibrator_get_geometry(calibrator, nullptr, 0, &n_layers));
    std::vector<lk_layer> layers(n_layers, llama::initialised(lk_layer_init));
    llama::check(lk_calibrator_get_geometry(calibrator, layers.data(), n_layers, &n_layers));
    return layers;
}

}  // namespace cli
