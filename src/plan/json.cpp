// A plan from untrusted JSON text. The parser throws, so this file is built with exceptions and
// lets none out. What the text says once is kept once, however many layers and heads it stands for.
//
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cfloat>
#include <cstdio>
#include <initializer_list>
#include <new>
#include <optional>
#include <string>
#include <vector>

#include "base/json_text.h"
#include "base/refused.h"
#include "plan/check.h"

namespace lk {

namespace {

constexpr size_t kMaxTextBytes = size_t{64} << 20;
constexpr JsonLimits kLimits = {32, 64};

// A value and the path to it.
struct Node {
    JsonValue value;
    std::string path;

    bool has(const char *name) const {
        JsonValue unused = value;
        return value.find(name, &unused);
    }
};

// Calls visit(element) for each element of an array.
template <class Visit>
void for_each(const Node &array, const Visit &visit) {
    size_t i = 0;
    array.value.for_each_element([&](const JsonValue &element) {
        visit(Node{element, array.path + "/" + std::to_string(i++)});
    });
}

[[noreturn]] void refuse_type(const Node &node, const char *rule) {
    fail(LK_E_CORRUPT, "%s is of type %s, must be %s", node.path.c_str(), node.value.kind_name(),
         rule);
    throw Refused{LK_E_CORRUPT};
}

void expect_object(const Node &node, std::initializer_list<const char *> names) {
    if (!node.value.is(JsonKind::kObject))
        refuse_type(node, "an object");
    node.value.for_each_key([&](std::string_view key, const JsonValue &) {
        bool known = false;
        for (const char *name : names)
            known |= key == name;
        if (!known)
            expect(fail(LK_E_CORRUPT, "%s/%s is not a key of a plan", node.path.c_str(),
                        shown(std::string(key)).c_str()));
    });
}

Node member(const Node &node, const char *name) {
    Node found = {node.value, node.path + "/" + name};
    if (!node.value.find(name, &found.value))
        expect(fail(LK_E_CORRUPT, "%s is missing", found.path.c_str()));
    return found;
}

uint32_t whole_number(const Node &node, uint32_t most = UINT32_MAX) {
    if (!node.value.is(JsonKind::kUnsigned))
        refuse_type(node, "a whole number of at least 0");
    const uint64_t number = node.value.number();
    if (number > most)
        expect(fail(LK_E_CORRUPT, "%s is %llu, must be at most %u", node.path.c_str(),
                    static_cast<unsigned long long>(number), most));
    return static_cast<uint32_t>(number);
}

uint32_t number_member(const Node &node, const char *name) {
    return whole_number(member(node, name));
}

uint32_t number_or(const Node &node, const char *name, uint32_t otherwise) {
    return node.has(name) ? number_member(node, name) : otherwise;
}

float real_or(const Node &node, const char *name, float otherwise) {
    if (!node.has(name))
        return otherwise;
    const Node found = member(node, name);
    if (!found.value.is_number())
        refuse_type(found, "a number");
    const double number = found.value.real();
    if (!(number >= 0 && number <= static_cast<double>(FLT_MAX)))
        expect(fail(LK_E_CORRUPT, "%s is %g, must be from 0 to %g", found.path.c_str(), number,
                    static_cast<double>(FLT_MAX)));
    return static_cast<float>(number);
}

uint32_t truth_or(const Node &node, const char *name, uint32_t otherwise) {
    if (!node.has(name))
        return otherwise;
    const Node found = member(node, name);
    if (!found.value.is(JsonKind::kBoolean))
        refuse_type(found, "true or false");
    return found.value.truth() ? 1 : 0;
}

std::string text_of(const Node &node) {
    if (!node.value.is(JsonKind::kString))
        refuse_type(node, "a string");
    return std::string(node.value.text());
}

struct Word {
    const char *text;
    uint32_t number;
};

uint32_t word_or(const Node &node, const char *name, std::initializer_list<Word> words) {
    if (!node.has(name))
        return words.begin()->number;
    const Node found = member(node, name);
    const std::string text = text_of(found);
    std::string choices;
    for (const Word &word : words) {
        if (text == word.text)
            return word.number;
        choices += (choices.empty() ? "\"" : " or \"") + std::string(word.text) + "\"";
    }
    fail(LK_E_CORRUPT, "%s is \"%s\", must be %s", found.path.c_str(), shown(text).c_str(),
         choices.c_str());
    throw Refused{LK_E_CORRUPT};
}

Node array_member(const Node &node, const char *name) {
    Node found = member(node, name);
    if (!found.value.is(JsonKind::kArray))
        refuse_type(found, "an array");
    return found;
}

// How many layers or heads an element stands for, of which `left` are not described yet.
uint32_t count_of(const Node &element, uint32_t left, const char *what) {
    const uint32_t count = number_or(element, "count", 1);
    if (!count || count > left)
        expect(fail(LK_E_CORRUPT, "%s/count is %u, must be from 1 to the %u %s left",
                    element.path.c_str(), count, left, what));
    return count;
}

Subject subject_at(const std::string &prefix) { return {prefix.c_str(), true, LK_E_CORRUPT}; }

lk_layer read_geometry_layer(const Node &node) {
    expect_object(node, {"count", "query_heads", "kv_heads", "head_dim", "window", "window_sinks",
                         "scale", "soft_cap", "kv_layer", "value_dim", "latent"});
    lk_layer layer = default_layer();
    layer.n_query_heads = number_member(node, "query_heads");
    layer.n_kv_heads = number_member(node, "kv_heads");
    layer.head_dim = number_member(node, "head_dim");
    layer.window_tokens = number_or(node, "window", 0);
    layer.window_sink_tokens = number_or(node, "window_sinks", 0);
    layer.scale = real_or(node, "scale", 0);
    layer.soft_cap = real_or(node, "soft_cap", 0);
    if (node.has("kv_layer"))
        layer.kv_layer = whole_number(member(node, "kv_layer"), kMaxLayers - 1);
    layer.value_dim = number_or(node, "value_dim", 0);
    layer.flags = truth_or(node, "latent", 0) ? LK_LAYER_LATENT : 0;
    const std::string prefix = node.path + "/";
    expect(check_layer(layer, subject_at(prefix)));
    return layer;
}

void expect_hash(const Plan &plan, const Node &node) {
    const std::string text = text_of(node);
    char hash[20];
    std::snprintf(hash, sizeof hash, "%016llx",
                  static_cast<unsigned long long>(geometry_hash(plan)));
    if (text.size() != 16 || text.find_first_not_of("0123456789abcdef") != std::string::npos)
        expect(fail(LK_E_CORRUPT, "%s is \"%s\", must be 16 digits of 0-9a-f", node.path.c_str(),
                    shown(text).c_str()));
    if (text != hash)
        expect(fail(LK_E_MISMATCH, "%s is %s, that of its layers is %s", node.path.c_str(),
                    text.c_str(), hash));
}

void read_geometry(const Node &node, Plan *plan) {
    expect_object(node, {"hash", "layers"});
    const Node elements = array_member(node, "layers");
    Array<lk_layer> layers;
    for_each(elements, [&](const Node &element) {
        const lk_layer layer = read_geometry_layer(element);
        const auto left = static_cast<uint32_t>(kMaxLayers - layers.size());
        const uint32_t count = count_of(element, left, "layers");
        const std::string prefix = element.path + "/";
        for (uint32_t n = 0; n < count; ++n) {
            if (!layers.push(layer))
                throw std::bad_alloc();
            expect(take_kv_layer(layers.data(), static_cast<uint32_t>(layers.size()) - 1,
                                 subject_at(prefix)));
        }
    });
    if (layers.empty())
        expect(fail(LK_E_CORRUPT, "%s is empty, must have a layer", elements.path.c_str()));
    expect(set_layers(plan, layers));
    expect_hash(*plan, member(node, "hash"));
}

// Calls visit(element, path) for each element of an array of at most `most`; path() is made where a
// sentence needs it.
template <class Visit>
void for_each_number(const Node &array, size_t most, const Visit &visit) {
    size_t i = 0;
    if (array.value.size() > most)
        expect(fail(LK_E_CORRUPT, "%s has %zu elements, must have at most %zu", array.path.c_str(),
                    array.value.size(), most));
    array.value.for_each_element([&](const JsonValue &element) {
        visit(element, [&] { return Node{element, array.path + "/" + std::to_string(i)}; });
        ++i;
    });
}

std::vector<uint8_t> read_bytes(const Node &node, size_t most) {
    std::vector<uint8_t> out;
    for_each_number(node, most, [&](const JsonValue &element, const auto &at) {
        const bool is_byte = element.is(JsonKind::kUnsigned) && element.number() <= UINT8_MAX;
        out.push_back(
            static_cast<uint8_t>(is_byte ? element.number() : whole_number(at(), UINT8_MAX)));
    });
    return out;
}

void read_boost(const Node &node, lk_key_rule *rule) {
    expect_object(node, {"channels", "bits", "score"});
    rule->boost_channels = number_member(node, "channels");
    rule->boost_bits = number_member(node, "bits");
    rule->boost_ranking =
        word_or(node, "score", {{"key", LK_RANKING_KEY}, {"query-range", LK_RANKING_QUERY_RANGE}});
}

lk_one_bit read_one_bit(const Node &node) {
    return word_or(node, "one_bit",
                   {{"deviation", LK_ONE_BIT_DEVIATION}, {"range", LK_ONE_BIT_RANGE}});
}

using CheckNumbers = lk_status (*)(const float *numbers, uint32_t n, const Subject &subject);

// Numbers of key channels, under this name.
std::vector<float> read_key_numbers(const Node &key, const char *name, CheckNumbers check) {
    const Node node = array_member(key, name);
    constexpr double kMost = FLT_MAX;
    std::vector<float> out;
    for_each_number(node, LK_MAX_HEAD_DIM, [&](const JsonValue &element, const auto &at) {
        if (!element.is_number())
            refuse_type(at(), "a number");
        const double clamped = std::min(std::max(element.real(), -kMost), kMost);
        out.push_back(static_cast<float>(clamped));
    });
    expect(check(out.data(), static_cast<uint32_t>(out.size()), subject_at(key.path + "/")));
    return out;
}

lk_key_rule read_key(const Node &node, std::vector<uint8_t> *classes) {
    expect_object(node, {"bits", "axis", "group", "one_bit", "clip", "boost", "classes", "centers",
                         "scales"});
    lk_key_rule rule = {};
    rule.size = sizeof rule;
    rule.bits = number_member(node, "bits");
    rule.axis = word_or(node, "axis", {{"channel", LK_AXIS_CHANNEL}, {"token", LK_AXIS_TOKEN}});
    rule.group = number_or(node, "group", 0);
    rule.one_bit = read_one_bit(node);
    rule.clip = real_or(node, "clip", 1);
    if (node.has("boost"))
        read_boost(member(node, "boost"), &rule);
    if (node.has("classes")) {
        *classes = read_bytes(array_member(node, "classes"), LK_MAX_HEAD_DIM);
        classes->reserve(1);
        rule.channel_bits = classes->data();
    }
    return rule;
}

lk_value_rule read_value(const Node &node) {
    expect_object(node, {"bits", "group", "one_bit", "clip"});
    lk_value_rule rule = {};
    rule.size = sizeof rule;
    rule.bits = number_member(node, "bits");
    rule.group = number_or(node, "group", 0);
    rule.one_bit = read_one_bit(node);
    rule.clip = real_or(node, "clip", 1);
    return rule;
}

// The rules of an element of "heads".
struct ReadRules {
    lk_key_rule key;
    lk_value_rule value;
    std::vector<uint8_t> classes;
    std::optional<std::vector<float>> centers;
    std::optional<std::vector<float>> scales;
    std::string key_prefix;
    std::string value_prefix;
};

void read_value_of(const Node &node, ReadRules *out) {
    const Node value = member(node, "value");
    out->value_prefix = value.path + "/";
    out->value = read_value(value);
    expect(check_value_rule(out->value, subject_at(out->value_prefix)));
}

// Values of a latent layer have no rule: that of 16 bits stands for it.
void read_latent_value(const Node &node, ReadRules *out) {
    if (node.has("value"))
        expect(
            fail(LK_E_CORRUPT,
                 "%s/value is there, must not be in a latent layer, whose values are channels of "
                 "its keys",
                 node.path.c_str()));
    for (const char *name : {"centers", "scales"})
        if (member(node, "key").has(name))
            expect(fail(LK_E_CORRUPT,
                        "%s/key/%s is there, must not be in a latent layer, whose values would "
                        "change with it",
                        node.path.c_str(), name));
    out->value = {};
    out->value.size = sizeof out->value;
    out->value.bits = 16;
    out->value.one_bit = LK_ONE_BIT_DEVIATION;
    out->value.clip = 1;
}

void read_head(const Node &node, bool is_latent, ReadRules *out) {
    expect_object(node, {"count", "key", "value"});
    const Node key = member(node, "key");
    out->key_prefix = key.path + "/";
    out->key = read_key(key, &out->classes);
    if (key.has("centers"))
        out->centers = read_key_numbers(key, "centers", check_centers);
    if (key.has("scales"))
        out->scales = read_key_numbers(key, "scales", check_scales);
    expect(check_key_rule(out->key, subject_at(out->key_prefix)));
    is_latent ? read_latent_value(node, out) : read_value_of(node, out);
}

void expect_channels(const ReadRules &rules, const char *name, size_t n, uint32_t head_dim) {
    if (n != head_dim)
        expect(fail(LK_E_CORRUPT, "%s%s has %zu elements, must have one for each of head_dim %u",
                    rules.key_prefix.c_str(), name, n, head_dim));
}

// Gives a layer its heads [first, end).
void set_heads(const ReadRules &rules, uint32_t layer, uint32_t first, uint32_t end, Plan *plan) {
    const Subject subject = subject_at(rules.key_prefix);
    const uint32_t head_dim = plan->layers[layer].geometry.head_dim;
    if (rules.key.channel_bits) {
        expect_channels(rules, "classes", rules.classes.size(), head_dim);
        expect(check_classes(rules.classes.data(), head_dim, subject));
    }
    if (rules.centers)
        expect_channels(rules, "centers", rules.centers->size(), head_dim);
    if (rules.scales)
        expect_channels(rules, "scales", rules.scales->size(), head_dim);
    expect(add_head_run(plan, layer, first == 0, end,
                        {&rules.key, rules.centers ? rules.centers->data() : nullptr,
                         rules.scales ? rules.scales->data() : nullptr, &rules.value}));
    expect(check_key(*plan, layer, first, subject));
    expect(check_value(*plan, layer, first, subject_at(rules.value_prefix)));
}

struct LayerRun {
    uint32_t first;
    uint32_t count;
};

// One element has layers of one shape, so its heads are read and checked once for all of them.
void expect_one_shape(const Node &elements, const LayerRun &run, const Plan &plan) {
    const lk_layer &first = plan.layers[run.first].geometry;
    for (uint32_t l = run.first; l < run.first + run.count; ++l) {
        const lk_layer &own = plan.layers[l].geometry;
        if (own.n_kv_heads != first.n_kv_heads)
            expect(fail(LK_E_CORRUPT, "%s is for layers of %u and of %u KV heads",
                        elements.path.c_str(), first.n_kv_heads, own.n_kv_heads));
        if (own.head_dim != first.head_dim)
            expect(fail(LK_E_CORRUPT, "%s is for layers of head_dim %u and %u",
                        elements.path.c_str(), first.head_dim, own.head_dim));
        if (!same_pages(own, first))
            expect(fail(LK_E_CORRUPT, "%s is for layers of value_dim %u%s and %u%s",
                        elements.path.c_str(), value_dim_of(first),
                        is_latent(first) ? " (latent)" : "", value_dim_of(own),
                        is_latent(own) ? " (latent)" : ""));
    }
}

void read_heads(const Node &elements, const LayerRun &run, Plan *plan) {
    expect_one_shape(elements, run, *plan);
    const uint32_t n_heads = plan->layers[run.first].geometry.n_kv_heads;
    uint32_t head = 0;
    for_each(elements, [&](const Node &element) {
        ReadRules rules;
        read_head(element, is_latent(plan->layers[run.first].geometry), &rules);
        const uint32_t count = count_of(element, n_heads - head, "KV heads");
        set_heads(rules, run.first, head, head + count, plan);
        head += count;
    });
    if (head != n_heads)
        expect(fail(LK_E_CORRUPT, "%s has %u KV heads, the layer has %u", elements.path.c_str(),
                    head, n_heads));
    share_runs(plan, run.first, run.count);
}

void read_layer_budget(const Node &node, const LayerRun &run, Plan *plan) {
    if (!node.has("budget_bytes"))
        return;
    const Node found = member(node, "budget_bytes");
    if (!found.value.is(JsonKind::kUnsigned))
        refuse_type(found, "a whole number of at least 1");
    if (!plan->layers[run.first].n_rungs)
        expect(fail(LK_E_CORRUPT, "%s is there without %s/ladder", found.path.c_str(),
                    node.path.c_str()));
    const uint64_t budget_bytes = found.value.number();
    const std::string prefix = node.path + "/";
    expect(check_layer_budget(budget_bytes, subject_at(prefix)));
    for (uint32_t l = run.first; l < run.first + run.count; ++l)
        expect(set_layer_budget(plan, l, budget_bytes));
    expect(check_budget(*plan, run.first, subject_at(prefix)));
}

void read_ladder(const Node &node, const LayerRun &run, Plan *plan) {
    std::vector<uint8_t> rungs;
    if (node.has("ladder"))
        rungs = read_bytes(array_member(node, "ladder"), kMaxRungs);
    const uint32_t rung = number_or(node, "rung", 0);
    const std::string prefix = node.path + "/";
    const auto n_rungs = static_cast<uint32_t>(rungs.size());
    expect(check_ladder(rungs.data(), n_rungs, rung, subject_at(prefix)));
    for (uint32_t l = run.first; l < run.first + run.count; ++l)
        expect(set_ladder(plan, l, rungs.data(), n_rungs, rung));
    const uint32_t order = number_or(node, "shrink_order", 0);
    expect(check_shrink_order(order, subject_at(prefix)));
    for (uint32_t l = run.first; l < run.first + run.count; ++l)
        expect(set_shrink_order(plan, l, order));
    read_layer_budget(node, run, plan);
}

void read_rotation(const Node &node, const LayerRun &run, Plan *plan) {
    const lk_rotation rotation = word_or(
        node, "key_rotation", {{"none", LK_ROTATION_NONE}, {"hadamard", LK_ROTATION_HADAMARD}});
    const std::string prefix = node.path + "/";
    for (uint32_t l = run.first; l < run.first + run.count; ++l)
        expect(set_key_rotation(plan, l, rotation, subject_at(prefix)));
}

#define LK_WORD_OF_FORMAT(name, number, bytes, text) {#text, number},
void read_layer(const Node &node, const LayerRun &run, Plan *plan) {
    const uint32_t metadata = word_or(node, "metadata", {LK_PARAMETER_FORMATS(LK_WORD_OF_FORMAT)});
    for (uint32_t l = run.first; l < run.first + run.count; ++l)
        expect(set_metadata(plan, l, metadata));
    read_rotation(node, run, plan);
    read_ladder(node, run, plan);
    read_heads(array_member(node, "heads"), run, plan);
}
#undef LK_WORD_OF_FORMAT

void read_layers(const Node &elements, Plan *plan) {
    const auto n_layers = static_cast<uint32_t>(plan->layers.size());
    uint32_t layer = 0;
    for_each(elements, [&](const Node &element) {
        expect_object(element, {"count", "metadata", "key_rotation", "ladder", "rung",
                                "shrink_order", "budget_bytes", "heads"});
        const uint32_t count = count_of(element, n_layers - layer, "layers");
        read_layer(element, {layer, count}, plan);
        layer += count;
    });
    if (layer != n_layers)
        expect(fail(LK_E_CORRUPT, "%s has %u layers, the geometry has %u", elements.path.c_str(),
                    layer, n_layers));
    for (uint32_t l = 0; l < layer; ++l)
        if (!same_layer(*plan, l, plan->kv_layer(l)))
            expect(fail(LK_E_CORRUPT,
                        "%s gives layer %u other rules than layer %u, whose keys and values it "
                        "reads",
                        elements.path.c_str(), l, plan->kv_layer(l)));
    follow_kv_layers(plan);
}

void read_chunks(const Node &node, Plan *plan) {
    expect_object(node, {"tokens", "low", "middle", "high", "alpha", "beta", "reorder", "hold"});
    lk_chunk_rule rule = default_chunk_rule();
    rule.chunk_tokens = number_member(node, "tokens");
    rule.low_bits = number_or(node, "low", rule.low_bits);
    rule.middle_bits = number_or(node, "middle", rule.middle_bits);
    rule.high_bits = number_or(node, "high", rule.high_bits);
    rule.alpha = real_or(node, "alpha", rule.alpha);
    rule.beta = real_or(node, "beta", rule.beta);
    rule.reorder = truth_or(node, "reorder", rule.reorder);
    rule.hold = truth_or(node, "hold", rule.hold);
    const std::string prefix = node.path + "/";
    const Subject subject = subject_at(prefix);
    expect(check_chunk_rule(rule, subject));
    set_chunks(plan, rule);
    expect(check_chunks(*plan, subject));
}

void read_name(const Node &node, Plan *plan) {
    const std::string name = text_of(node);
    if (name.find('\0') != std::string::npos)
        expect(fail(LK_E_CORRUPT, "%s has a zero byte", node.path.c_str()));
    expect(check_name(name.c_str(), {"/", true, LK_E_CORRUPT}));
    set_name(plan, name.c_str());
}

void read_plan(const Node &root, Plan *plan) {
    expect_object(root, {"lowkey_plan", "name", "geometry", "page_tokens", "sink_tokens",
                         "window_tokens", "chunks", "layers"});
    constexpr Subject kRoot = {"/", true, LK_E_CORRUPT};
    read_name(member(root, "name"), plan);
    const uint32_t page_tokens = number_member(root, "page_tokens");
    expect(check_pages(page_tokens, kRoot));
    set_pages(plan, page_tokens);
    const uint32_t sink_tokens = number_member(root, "sink_tokens");
    const uint32_t recent_tokens = number_member(root, "window_tokens");
    expect(check_recent(sink_tokens, recent_tokens, kRoot));
    set_recent(plan, sink_tokens, recent_tokens);
    read_geometry(member(root, "geometry"), plan);
    if (root.has("chunks"))
        read_chunks(member(root, "chunks"), plan);
    read_layers(array_member(root, "layers"), plan);
}

void expect_version(const JsonValue &root) {
    JsonValue version = root;
    const bool is_there = root.is(JsonKind::kObject) && root.find("lowkey_plan", &version);
    if (!is_there || !version.is(JsonKind::kUnsigned))
        expect(fail(LK_E_CORRUPT, "/lowkey_plan is not there as a whole number: not a plan"));
    if (version.number() != 1)
        expect(fail(LK_E_MISMATCH, "/lowkey_plan is %llu, this library reads version 1",
                    static_cast<unsigned long long>(version.number())));
}

void read_text(const char *text, size_t text_bytes, Plan *plan) {
    const JsonText read(text, text_bytes, kLimits);
    expect_version(read.root());
    read_plan({read.root(), ""}, plan);
}

}  // namespace

lk_status plan_from_json(const char *text, size_t text_bytes, Plan *out) {
    if (text_bytes > kMaxTextBytes)
        return fail(LK_E_ARGUMENT, "text_bytes is %zu, must be at most 64 MiB", text_bytes);
    try {
        read_text(text, text_bytes, out);
        return LK_OK;
    } catch (const Refused &refused) {
        return refused.status;
    } catch (const std::bad_alloc &) {
        return fail(LK_E_NOMEM, "no memory to read a plan of %zu bytes", text_bytes);
    } catch (...) {
        return fail(LK_E_CORRUPT, "the text is not the JSON of a plan");
    }
}

}  // namespace lk
