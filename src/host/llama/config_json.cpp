// A config.json of transformers. The file is untrusted, and a field that is passed over may change
// every number: so a field that is not known here is refused unless it requests nothing.
//
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <set>

#include "config.h"
#include "json.h"
#include "rope.h"

namespace llama {

const char *const kArchitectures =
    "LlamaForCausalLM, MistralForCausalLM, Qwen2ForCausalLM or Qwen3ForCausalLM";

namespace {

using nlohmann::json;

constexpr std::uint32_t kLargestExtent = 1 << 20;
constexpr std::uint32_t kLargestPosition = 1 << 30;
constexpr double kLargestNumber = 1e12;

// Fields about text, training, files and the choice of tokens, which change no logit.
const std::set<std::string> kWithoutEffect = {"architectures",
                                              "attention_dropout",
                                              "bad_words_ids",
                                              "begin_suppress_tokens",
                                              "bos_token_id",
                                              "decoder_start_token_id",
                                              "diversity_penalty",
                                              "do_sample",
                                              "dtype",
                                              "early_stopping",
                                              "encoder_no_repeat_ngram_size",
                                              "eos_token_id",
                                              "exponential_decay_length_penalty",
                                              "finetuning_task",
                                              "forced_bos_token_id",
                                              "forced_eos_token_id",
                                              "id2label",
                                              "initializer_range",
                                              "label2id",
                                              "length_penalty",
                                              "max_length",
                                              "min_length",
                                              "model_type",
                                              "no_repeat_ngram_size",
                                              "num_beam_groups",
                                              "num_beams",
                                              "num_return_sequences",
                                              "output_attentions",
                                              "output_hidden_states",
                                              "output_scores",
                                              "pad_token_id",
                                              "prefix",
                                              "pretraining_tp",
                                              "problem_type",
                                              "remove_invalid_values",
                                              "repetition_penalty",
                                              "return_dict",
                                              "return_dict_in_generate",
                                              "sep_token_id",
                                              "suppress_tokens",
                                              "task_specific_params",
                                              "temperature",
                                              "tokenizer_class",
                                              "top_k",
                                              "top_p",
                                              "torch_dtype",
                                              "torchscript",
                                              "transformers_version",
                                              "typical_p",
                                              "unk_token_id",
                                              "use_cache"};

// An object's fields, each of which is read here, or has no effect, or is refused.
class Fields {
  public:
    // name: of the object, for sentences; empty for the whole file.
    Fields(const json &object, std::string where, std::string name = "")
        : object_(object), where_(std::move(where)), name_(std::move(name)) {}

    // Null when the field is absent or null.
    const json *find(const std::string &key) {
        known_.insert(key);
        const auto found = object_.find(key);
        return found == object_.end() || found->is_null() ? nullptr : &*found;
    }
    bool has(const std::string &key) const { return object_.contains(key); }
    const json &at(const std::string &key) {
        const json *found = find(key);
        if (found == nullptr)
            throw Error(where_ + " has no " + title(key));
        return *found;
    }
    std::uint32_t extent(const std::string &key, std::uint32_t most = kLargestExtent) {
        const json &value = at(key);
        if (!value.is_number_unsigned() || value.get<std::uint64_t>() < 1 ||
            value.get<std::uint64_t>() > most)
            refuse(key, "must be a whole number from 1 to " + std::to_string(most));
        return value.get<std::uint32_t>();
    }
    std::uint32_t extent(const std::string &key, std::uint32_t most, std::uint32_t otherwise) {
        return find(key) == nullptr ? otherwise : extent(key, most);
    }
    double number(const std::string &key, double least, double otherwise) {
        return find(key) == nullptr ? otherwise : number(key, least);
    }
    double number(const std::string &key, double least) {
        const json &value = at(key);
        if (!value.is_number() || !(value.get<double>() >= least) ||
            !(value.get<double>() <= kLargestNumber))
            refuse(key, "must be a number of at least " + json(least).dump());
        return value.get<double>();
    }
    bool flag(const std::string &key, bool otherwise) {
        const json *value = find(key);
        if (value != nullptr && !value->is_boolean())
            refuse(key, "must be true or false");
        return value == nullptr ? otherwise : value->get<bool>();
    }
    std::string text(const std::string &key, const std::string &otherwise) {
        const json *value = find(key);
        if (value != nullptr && !value->is_string())
            refuse(key, "must be a string");
        return value == nullptr ? otherwise : value->get<std::string>();
    }
    [[noreturn]] void refuse(const std::string &key, const std::string &why) const {
        std::string value = object_.contains(key) ? object_.at(key).dump() : "nothing";
        if (value.size() > 64)
            value = value.substr(0, 64) + "...";
        throw Error(where_ + " has " + title(key) + " " + value + ", " + why);
    }
    // Refuses the fields that nobody has read and that request something.
    void refuse_rest() const {
        for (const auto &[key, value] : object_.items()) {
            const bool requests = !value.is_null() && value != json(false) &&
                                  !(value.is_structured() && value.empty());
            if (requests && known_.count(key) == 0 && key[0] != '_' &&
                (!name_.empty() || kWithoutEffect.count(key) == 0))
                refuse(key, "which no model here has");
        }
    }

  private:
    std::string title(const std::string &key) const {
        return name_.empty() ? key : name_ + "." + key;
    }

    const json &object_;
    std::string where_, name_;
    std::set<std::string> known_;
};

enum class Family { kLlama, kMistral, kQwen2, kQwen3 };

Family read_family(Fields &fields) {
    const json &names = fields.at("architectures");
    const std::string name = names.is_array() && names.size() == 1 && names[0].is_string()
                                 ? names[0].get<std::string>()
                                 : "";
    if (name == "LlamaForCausalLM")
        return Family::kLlama;
    if (name == "MistralForCausalLM")
        return Family::kMistral;
    if (name == "Qwen2ForCausalLM")
        return Family::kQwen2;
    if (name == "Qwen3ForCausalLM")
        return Family::kQwen3;
    fields.refuse("architectures", std::string("must be one of ") + kArchitectures);
}

void read_heads(Fields &fields, Family family, Config &config) {
    config.n_query_heads = fields.extent("num_attention_heads");
    config.n_kv_heads =
        family == Family::kLlama
            ? fields.extent("num_key_value_heads", kLargestExtent, config.n_query_heads)
            : fields.extent("num_key_value_heads");
    if (config.n_query_heads % config.n_kv_heads != 0)
        fields.refuse("num_key_value_heads",
                      "must divide num_attention_heads " + std::to_string(config.n_query_heads));
    if (fields.find("head_dim") != nullptr || family == Family::kQwen3)
        config.head_dim = fields.extent("head_dim");
    else if (config.width % config.n_query_heads != 0)
        fields.refuse("hidden_size", "must be a multiple of num_attention_heads " +
                                         std::to_string(config.n_query_heads));
    else
        config.head_dim = config.width / config.n_query_heads;
    if (config.head_dim % 2 != 0)
        throw Error("the model's head_dim " + std::to_string(config.head_dim) + " is odd");
}

// Without a value the defaults are those of transformers.
constexpr std::uint32_t kDefaultWindow = 4096;
constexpr std::uint32_t kDefaultFullLayers = 28;

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

std::vector<std::uint32_t> read_windows(Fields &fields, Family family, std::uint32_t n_layers) {
    if (family == Family::kLlama) {
        const json *types = fields.find("layer_types");
        return types == nullptr ? std::vector<std::uint32_t>(n_layers, 0)
                                : listed_windows(fields, *types, 0, n_layers);
    }
    const std::uint32_t absent = fields.has("sliding_window") ? 0 : kDefaultWindow;
    std::uint32_t window = fields.extent("sliding_window", kLargestPosition, absent);
    std::uint32_t n_full = 0;
    if (family != Family::kMistral) {
        if (!fields.flag("use_sliding_window", false))
            window = 0;
        const json *value = fields.find("max_window_layers");
        if (value != nullptr && !value->is_number_unsigned())
            fields.refuse("max_window_layers", "must be a count of layers");
        n_full = value == nullptr ? kDefaultFullLayers
                                  : static_cast<std::uint32_t>(std::min<std::uint64_t>(
                                        value->get<std::uint64_t>(), n_layers));
    }
    if (const json *types = fields.find("layer_types"))
        return listed_windows(fields, *types, window, n_layers);
    std::vector<std::uint32_t> windows(n_layers, window);
    std::fill_n(windows.begin(), std::min(n_full, n_layers), 0);
    return windows;
}

void read_rope(Fields &fields, const std::string &where, Config &config) {
    const bool is_new = fields.find("rope_parameters") != nullptr;
    if (is_new && fields.find("rope_scaling") != nullptr)
        fields.refuse("rope_scaling", "and rope_parameters too: one of them must go");
    const std::string name = is_new ? "rope_parameters" : "rope_scaling";
    const json none = json::object();
    const json *found = fields.find(name);
    if (found != nullptr && !found->is_object())
        fields.refuse(name, "must be an object");
    Fields own(found == nullptr ? none : *found, where, name);
    constexpr double kLeast = 1, kDefaultTheta = 10000, kTiny = 1e-9;
    Rope rope;
    rope.head_dim = config.head_dim;
    rope.theta =
        own.number("rope_theta", kLeast, fields.number("rope_theta", kLeast, kDefaultTheta));
    if (rope.theta == 1)
        throw Error(where + " has rope_theta 1, must be more");
    for (Fields *each : {&fields, &own})
        if (each->number("partial_rotary_factor", 0, 1) != 1)
            each->refuse("partial_rotary_factor", "must be 1: all channels of a head turn");
    const std::string old_name = own.text("type", found == nullptr || is_new ? "default" : "");
    const std::string type = own.text("rope_type", old_name);
    if (type == "linear") {
        rope.kind = RopeKind::kLinear;
    } else if (type == "llama3") {
        rope.kind = RopeKind::kLlama3;
    } else if (type == "yarn") {
        rope.kind = RopeKind::kYarn;
    } else if (type != "default") {
        own.refuse(own.has("rope_type") ? "rope_type" : "type",
                   "must be default, linear, llama3 or yarn");
    }
    if (rope.kind != RopeKind::kDefault)
        rope.factor = own.number("factor", kLeast);
    if (rope.kind == RopeKind::kLlama3) {
        rope.low_frequency = own.number("low_freq_factor", kTiny);
        rope.high_frequency = own.number("high_freq_factor", kTiny);
        rope.original_tokens = own.extent("original_max_position_embeddings", kLargestPosition);
        if (rope.high_frequency <= rope.low_frequency)
            own.refuse("high_freq_factor", "must be above low_freq_factor");
    }
    if (rope.kind == RopeKind::kYarn) {
        rope.original_tokens =
            own.extent("original_max_position_embeddings", kLargestPosition, config.max_tokens);
        rope.beta_fast = own.number("beta_fast", kTiny, rope.beta_fast);
        rope.beta_slow = own.number("beta_slow", kTiny, rope.beta_slow);
        rope.attention_factor = own.number("attention_factor", kTiny, 0);
        rope.mscale = own.number("mscale", 0, 0);
        rope.mscale_all = own.number("mscale_all_dim", 0, 0);
        rope.is_truncated = own.flag("truncate", true);
    }
    own.refuse_rest();
    config.rope_frequencies = rope.frequencies();
    config.rope_amplitude = rope.amplitude();
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
    read_rope(fields, where, config);
    if (fields.text("hidden_act", "silu") != "silu")
        fields.refuse("hidden_act", "must be silu");
    if (family == Family::kLlama || family == Family::kQwen3)
        config.has_output_bias = fields.flag("attention_bias", false);
    config.has_query_bias = config.has_output_bias || family == Family::kQwen2;
    config.has_value_bias = config.has_query_bias;
    config.has_head_norms = family == Family::kQwen3;
    config.has_tied_head = fields.flag("tie_word_embeddings", false);
    config.prefix = read_prefix(fields, config.n_vocabulary);
    fields.refuse_rest();
    return config;
}

}  // namespace llama
