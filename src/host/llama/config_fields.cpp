// SPDX-License-Identifier: Apache-2.0
#include "config_fields.h"

namespace llama {
namespace {

using nlohmann::json;

constexpr double kLargestNumber = 1e12;

// Fields about text, training, files and the choice of tokens, which change no logit.
const std::set<std::string> kWithoutEffect = {"architectures",
                                              "attention_dropout",
                                              "bad_words_ids",
                                              "begin_suppress_tokens",
                                              "bos_token_id",
                                              "cache_implementation",
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
                                              "router_aux_loss_coef",
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

}  // namespace

const json *Fields::find(const std::string &key) {
    known_.insert(key);
    const auto found = object_.find(key);
    return found == object_.end() || found->is_null() ? nullptr : &*found;
}

const json &Fields::at(const std::string &key) {
    const json *found = find(key);
    if (found == nullptr)
        throw Error(where_ + " has no " + title(key));
    return *found;
}

std::uint32_t Fields::extent(const std::string &key, std::uint32_t most) {
    const json &value = at(key);
    if (!value.is_number_unsigned() || value.get<std::uint64_t>() < 1 ||
        value.get<std::uint64_t>() > most)
        refuse(key, "must be a whole number from 1 to " + std::to_string(most));
    return value.get<std::uint32_t>();
}

std::uint32_t Fields::extent(const std::string &key, std::uint32_t most, std::uint32_t otherwise) {
    return find(key) == nullptr ? otherwise : extent(key, most);
}

double Fields::number(const std::string &key, double least) {
    const json &value = at(key);
    if (!value.is_number() || !(value.get<double>() >= least) ||
        !(value.get<double>() <= kLargestNumber))
        refuse(key, "must be a number of at least " + json(least).dump());
    return value.get<double>();
}

double Fields::number(const std::string &key, double least, double otherwise) {
    return find(key) == nullptr ? otherwise : number(key, least);
}

bool Fields::flag(const std::string &key, bool otherwise) {
    const json *value = find(key);
    if (value != nullptr && !value->is_boolean())
        refuse(key, "must be true or false");
    return value == nullptr ? otherwise : value->get<bool>();
}

std::string Fields::text(const std::string &key, const std::string &otherwise) {
    const json *value = find(key);
    if (value != nullptr && !value->is_string())
        refuse(key, "must be a string");
    return value == nullptr ? otherwise : value->get<std::string>();
}

Fields Fields::object(const std::string &key) {
    static const json none = json::object();
    const json *value = find(key);
    if (value != nullptr && !value->is_object())
        refuse(key, "must be an object");
    return Fields(value == nullptr ? none : *value, where_, title(key));
}

void Fields::refuse(const std::string &key, const std::string &why) const {
    std::string value = object_.contains(key) ? object_.at(key).dump() : "nothing";
    if (value.size() > 64)
        value = value.substr(0, 64) + "...";
    throw Error(where_ + " has " + title(key) + " " + value + ", " + why);
}

void Fields::refuse_rest() const {
    for (const auto &[key, value] : object_.items()) {
        const bool requests =
            !value.is_null() && value != json(false) && !(value.is_structured() && value.empty());
        if (requests && known_.count(key) == 0 && key[0] != '_' &&
            (!name_.empty() || kWithoutEffect.count(key) == 0))
            refuse(key, "which no model here has");
    }
}

std::string Fields::title(const std::string &key) const {
    return name_.empty() ? key : name_ + "." + key;
}

}  // namespace llama
