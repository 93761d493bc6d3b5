// A config.json of transformers.
//
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>

#include "config.h"
#include "config_fields.h"
#include "rope.h"

namespace llama {

const char *const kArchitectures =
    "LlamaForCausalLM, MistralForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM, "
    "Gemma2ForCausalLM, Gemma3ForCausalLM or GptOssForCausalLM";

namespace {

using nlohmann::json;

enum class Family { kLlama, kMistral, kQwen2, kQwen3, kGemma2, kGemma3, kGptOss };

constexpr struct {
    const char *architecture;
    Family family;
} kFamilies[] = {{"LlamaForCausalLM", Family::kLlama},   {"MistralForCausalLM", Family::kMistral},
                 {"Qwen2ForCausalLM", Family::kQwen2},   {"Qwen3ForCausalLM", Family::kQwen3},
                 {"Gemma2ForCausalLM", Family::kGemma2}, {"Gemma3ForCausalLM", Family::kGemma3},
                 {"GptOssForCausalLM", Family::kGptOss}};

constexpr std::uint32_t kLargestHead = 1 << 16;
constexpr double kTiny = 1e-9;

Family read_family(Fields &fields) {
    const json &names = fields.at("architectures");
    for (const auto &one : kFamilies)
        if (names.is_array() && names.size() == 1 && names[0] == json(one.architecture))
            return one.family;
    fields.refuse("architectures", std::string("must be one of ") + kArchitectures);
}

bool is_gemma(Family family) { return family == Family::kGemma2 || family == Family::kGemma3; }

void read_heads(Fields &fields, Family family, Config &config) {
    config.n_query_heads = fields.extent("num_attention_heads");
    config.n_kv_heads =
        family == Family::kLlama
            ? fields.extent("num_key_value_heads", kLargestExtent, config.n_query_heads)
            : fields.extent("num_key_value_heads");
    if (config.n_query_heads % config.n_kv_heads != 0)
        fields.refuse("num_key_value_heads",
                      "must divide num_attention_heads " + std::to_string(config.n_query_heads));
    const bool is_stated =
        family == Family::kQwen3 || is_gemma(family) || family == Family::kGptOss;
    if (fields.find("head_dim") != nullptr || is_stated)
        config.head_dim = fields.extent("head_dim", kLargestHead);
    else if (config.width % config.n_query_heads != 0)
        fields.refuse("hidden_size", "must be a multiple of num_attention_heads " +
                                         std::to_string(config.n_query_heads));
    else
        config.head_dim = config.width / config.n_query_heads;
    if (config.head_dim % 2 != 0)
        throw Error("the model's head_dim " + std::to_string(config.head_dim) + " is odd");
    if (config.head_dim > kLargestHead)
        throw Error("the model's head_dim " + std::to_string(config.head_dim) + " is too large, " +
                    std::to_string(kLargestHead) + " at most");
}

// Without a value the defaults are those of transformers.
constexpr std::uint32_t kDefaultWindow = 4096, kDefaultGptOssWindow = 128;
constexpr std::uint32_t kDefaultFullLayers = 28;
constexpr std::uint32_t kDefaultGemma3Period = 6, kAlternating = 2;

// Layers that layer_types lists, in the one way or the other.
std::vector<std::uint32_t> listed_windows(Fields &fields, const json &types, std::uint32_t window,
                                          std::uint32_t n_layers) {
    if (!types.is_array() || types.size() != n_layers)
        fields.refuse("layer_types", "must list " + std::to_string(n_layers) + " layers");
    std::vector<std::uint32_t> windows;
    for (const json &type : types) {
        const bool is_sliding = type == json("sliding_attention");
        if (!is_sliding && type != json("full_attention"))
            fields.refuse("layer_types",
                          "must be full_attention or sliding_attention in each layer");
        if (is_sliding && window == 0)
            fields.refuse("layer_types", "which needs a sliding_window");
        windows.push_back(is_sliding ? window : 0);
    }
    return windows;
}

// The first n_full layers have no window.
std::vector<std::uint32_t> later_windows(std::uint32_t window, std::uint32_t n_layers,
                                         std::uint32_t n_full) {
    std::vector<std::uint32_t> windows(n_layers, window);
    std::fill_n(windows.begin(), std::min(n_full, n_layers), 0);
    return windows;
}

// The last of each `period` layers has no window.
std::vector<std::uint32_t> periodic_windows(std::uint32_t window, std::uint32_t n_layers,
                                            std::uint32_t period) {
    std::vector<std::uint32_t> windows(n_layers, window);
    for (std::size_t i = period - 1; i < n_layers; i += period)
        windows[i] = 0;
    return windows;
}

// Of Qwen, where no layer_types list them.
std::uint32_t full_layers(Fields &fields) {
    const json *value = fields.find("max_window_layers");
    if (value != nullptr && !value->is_number_unsigned())
        fields.refuse("max_window_layers", "must be a count of layers");
    return value == nullptr ? kDefaultFullLayers
                            : static_cast<std::uint32_t>(std::min<std::uint64_t>(
                                  value->get<std::uint64_t>(), kLargestExtent));
}

std::vector<std::uint32_t> read_windows(Fields &fields, Family family, std::uint32_t n_layers) {
    std::uint32_t window = 0;
    if (family != Family::kLlama) {
        const std::uint32_t otherwise =
            family == Family::kGptOss ? kDefaultGptOssWindow : kDefaultWindow;
        window = fields.extent("sliding_window", kLargestPosition,
                               fields.has("sliding_window") ? 0 : otherwise);
    }
    std::vector<std::uint32_t> windows;
    switch (family) {
        case Family::kLlama:
        case Family::kMistral: windows = later_windows(window, n_layers, 0); break;
        case Family::kQwen2:
        case Family::kQwen3:
            if (!fields.flag("use_sliding_window", false))
                window = 0;
            windows = later_windows(window, n_layers, full_layers(fields));
            break;
        case Family::kGemma2:
        case Family::kGptOss: windows = periodic_windows(window, n_layers, kAlternating); break;
        case Family::kGemma3:
            windows = periodic_windows(
                window, n_layers,
                fields.extent("sliding_window_pattern", kLargestExtent, kDefaultGemma3Period));
            break;
    }
    const json *types = fields.find("layer_types");
    return types == nullptr ? windows : listed_windows(fields, *types, window, n_layers);
}

void read_llama3(Fields &fields, Rope &rope) {
    rope.kind = RopeKind::kLlama3;
    rope.low_frequency = fields.number("low_freq_factor", kTiny);
    rope.high_frequency = fields.number("high_freq_factor", kTiny);
    rope.original_tokens = fields.extent("original_max_position_embeddings", kLargestPosition);
    if (rope.high_frequency <= rope.low_frequency)
        fields.refuse("high_freq_factor", "must be above low_freq_factor");
}

void read_yarn(Fields &fields, std::uint32_t max_tokens, Rope &rope) {
    rope.kind = RopeKind::kYarn;
    rope.original_tokens =
        fields.extent("original_max_position_embeddings", kLargestPosition, max_tokens);
    rope.beta_fast = fields.number("beta_fast", kTiny, rope.beta_fast);
    rope.beta_slow = fields.number("beta_slow", kTiny, rope.beta_slow);
    rope.attention_factor = fields.number("attention_factor", kTiny, 0);
    rope.mscale = fields.number("mscale", 0, 0);
    rope.mscale_all = fields.number("mscale_all_dim", 0, 0);
    rope.is_truncated = fields.flag("truncate", true);
}

double read_theta(Fields &fields, const std::string &key, double otherwise) {
    const double theta = fields.number(key, 1, otherwise);
    if (theta == 1)
        fields.refuse(key, "must be more than 1");
    return theta;
}

void refuse_partial_rotation(Fields &fields) {
    if (fields.number("partial_rotary_factor", 0, 1) != 1)
        fields.refuse("partial_rotary_factor", "must be 1: all channels of a head turn");
}

// fields: rope_parameters, a part of it, or rope_scaling. otherwise: a type when none is stated.
Rotation read_rotation(Fields fields, const Config &config, double theta,
                       const std::string &otherwise = "default") {
    Rope rope;
    rope.head_dim = config.head_dim;
    rope.theta = read_theta(fields, "rope_theta", theta);
    refuse_partial_rotation(fields);
    const std::string type = fields.text("rope_type", fields.text("type", otherwise));
    if (type == "linear") {
        rope.kind = RopeKind::kLinear;
    } else if (type == "llama3") {
        read_llama3(fields, rope);
    } else if (type == "yarn") {
        read_yarn(fields, config.max_tokens, rope);
    } else if (type != "default") {
        fields.refuse(fields.has("rope_type") ? "rope_type" : "type",
                      "must be default, linear, llama3 or yarn");
    }
    if (rope.kind != RopeKind::kDefault)
        rope.factor = fields.number("factor", 1);
    fields.refuse_rest();
    return rope.rotation();
}

// Without a value the defaults are those of transformers.
constexpr double kDefaultTheta = 1e4, kDefaultGemma3Theta = 1e6, kDefaultGptOssTheta = 1.5e5;

double default_theta(Family family) {
    return family == Family::kGemma3   ? kDefaultGemma3Theta
           : family == Family::kGptOss ? kDefaultGptOssTheta
                                       : kDefaultTheta;
}

void read_rotations(Fields &fields, Family family, Config &config) {
    const bool is_new = fields.find("rope_parameters") != nullptr;
    const bool is_old = fields.find("rope_scaling") != nullptr;
    if (is_new && is_old)
        fields.refuse("rope_scaling", "and rope_parameters too: one of them must go");
    if (family == Family::kGptOss && !is_new && !is_old)
        fields.refuse("rope_parameters", "which GptOssForCausalLM must state");
    refuse_partial_rotation(fields);
    const double theta = read_theta(fields, "rope_theta", default_theta(family));
    Fields parameters = fields.object("rope_parameters");
    if (!is_new) {
        config.rotations = {
            read_rotation(fields.object("rope_scaling"), config, theta, is_old ? "" : "default")};
    } else if (family != Family::kGemma3) {
        config.rotations = {read_rotation(parameters, config, theta)};
    } else {
        config.rotations = {read_rotation(parameters.object("full_attention"), config, theta)};
    }
    // Gemma 3's layers with a window turn by a theta of their own, without scaling.
    if (family == Family::kGemma3) {
        const double local = read_theta(fields, "rope_local_base_freq", kDefaultTheta);
        config.rotations.push_back(
            read_rotation(parameters.object("sliding_attention"), config, local));
        parameters.refuse_rest();
    }
}

// What Gemma does otherwise than Llama. transformers passes over a soft-cap of Gemma 3, which no
// published model has; here it is applied as Gemma 2's.
void read_gemma(Fields &fields, Family family, Config &config) {
    constexpr double kDefaultScalar = 256, kDefaultCap = 50, kDefaultFinalCap = 30;
    const auto cap = [&](const std::string &key, double gemma2) {
        const bool is_default = family == Family::kGemma2 && !fields.has(key);
        return fields.number(key, kTiny, is_default ? gemma2 : 0);
    };
    if (fields.text("hidden_activation", "gelu_pytorch_tanh") != "gelu_pytorch_tanh")
        fields.refuse("hidden_activation", "must be gelu_pytorch_tanh");
    (void)fields.find("hidden_act");  // of old files, without effect
    config.activation = Activation::kGelu;
    config.attention_scale =
        1 / std::sqrt(fields.number("query_pre_attn_scalar", kTiny, kDefaultScalar));
    config.soft_cap = cap("attn_logit_softcapping", kDefaultCap);
    config.final_soft_cap = cap("final_logit_softcapping", kDefaultFinalCap);
    config.embedding_scale = std::sqrt(static_cast<double>(config.width));
    config.has_branch_norms = true;
    config.has_norms_from_one = true;
}

void read_gpt_oss(Fields &fields, Config &config) {
    constexpr double kDefaultSlope = 1.702, kDefaultLimit = 7;
    for (const char *const key : {"num_local_experts", "num_experts_per_tok"})
        if (fields.extent(key) != 1)
            fields.refuse(key, "must be 1: experts are not routed here");
    config.activation = Activation::kClampedSilu;
    config.activation_slope = fields.number("swiglu_alpha", kTiny, kDefaultSlope);
    config.activation_limit = fields.number("swiglu_limit", kTiny, kDefaultLimit);
    config.has_learned_sinks = true;
    config.has_expert = true;
}

void read_biases(Fields &fields, Family family, Config &config) {
    if (family != Family::kMistral && family != Family::kQwen2)
        config.has_output_bias = fields.flag("attention_bias", family == Family::kGptOss);
    config.has_query_bias = config.has_output_bias || family == Family::kQwen2;
    config.has_value_bias = config.has_query_bias;
}

// The BOS; a tokenizer may begin texts with it or not.
Tokens read_prefix(Fields &fields, std::uint32_t n_vocabulary) {
    const json *bos = fields.find("bos_token_id");
    if (bos == nullptr || !bos->is_number_unsigned() || bos->get<std::uint64_t>() >= n_vocabulary)
        return {};
    return {bos->get<Token>()};
}

}  // namespace

Config read_config(const std::string &text, const std::string &where) {
    const json object = parse_object(text, where);
    Fields fields(object, where);
    const Family family = read_family(fields);
    Config config;
    config.n_vocabulary = fields.extent("vocab_size");
    config.width = fields.extent("hidden_size");
    config.hidden = fields.extent("intermediate_size");
    config.n_layers = fields.extent("num_hidden_layers");
    config.max_tokens = fields.extent("max_position_embeddings", kLargestPosition);
    config.norm_epsilon = fields.number("rms_norm_eps", 0);
    read_heads(fields, family, config);
    config.windows = read_windows(fields, family, config.n_layers);
    read_rotations(fields, family, config);
    read_biases(fields, family, config);
    config.has_head_norms = family == Family::kQwen3 || family == Family::kGemma3;
    if (is_gemma(family))
        read_gemma(fields, family, config);
    else if (fields.text("hidden_act", "silu") != "silu")
        fields.refuse("hidden_act", "must be silu");
    if (family == Family::kGptOss)
        read_gpt_oss(fields, config);
    config.has_tied_head = fields.flag("tie_word_embeddings", is_gemma(family));
    config.prefix = read_prefix(fields, config.n_vocabulary);
    fields.refuse_rest();
    return config;
}

}  // namespace llama
