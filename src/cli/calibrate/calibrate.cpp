// lowkey calibrate: statistics of a model's keys and heads.
//
// SPDX-License-Identifier: Apache-2.0
#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/calibrate/costs.h"
#include "cli/calibrate/sampling.h"
#include "cli/common/command.h"
#include "cli/common/numbers.h"
#include "cli/common/output_file.h"
#include "cli/common/report.h"
#include "cli/common/resources.h"

namespace cli {
namespace {

// Seconds for a layer of 32 heads: time grows with the square.
constexpr std::uint32_t kAttentionTokens = 512;

struct CalibrateOptions {
    std::vector<std::string> dumps;
    std::string model;
    std::string text;
    std::string token_ids;
    std::string sentence = kProbeSentence;
    std::string onto;
    std::string output = "stats.safetensors";
    SamplingRequest sampling;
    DumpRequest dump;
    double position_scale = 0;
    DeviceOptions device;
    bool costs = false;
    CostRequest cost;
    bool json = false;
};

// A model of transformers has a tokenizer, which this command does not run.
const char *const kMakeIds =
    "python3 -c 'import sys, transformers; print(*transformers.AutoTokenizer.from_pretrained("
    "sys.argv[1])(open(sys.argv[2]).read()).input_ids)' MODEL TEXT > FILE";

llama::ModelSource read_model(const CalibrateOptions &options) {
    if (!std::filesystem::is_directory(options.model))
        return llama::read_model_file(options.model);
    if (options.token_ids.empty())
        throw UsageError(
            "a folder's model has a tokenizer that this command does not run: give "
            "--token-ids FILE, which this line writes: " +
            std::string(kMakeIds));
    return llama::read_model_folder(options.model);
}

// No pass goes beyond the positions that the model was made for.
void limit_to_positions(std::size_t most_tokens, SamplingRequest &request) {
    const TokenTexts &texts = request.texts;
    request.document_tokens = std::min(request.document_tokens, most_tokens);
    const std::size_t n_left = most_tokens - std::min(most_tokens, texts.prefix.size());
    const std::size_t n_repeats =
        std::min<std::size_t>(request.n_repeats, n_left / texts.sentence.size());
    if (request.document_tokens <= texts.prefix.size() || n_repeats < 2)
        throw llama::Error("the model has " + std::to_string(most_tokens) +
                           " positions, the probe needs a sentence of at most " +
                           std::to_string(n_left / 2) + " tokens");
    request.n_repeats = static_cast<std::uint32_t>(n_repeats);
}

llama::CalibratorHandle calibrate_model(const CalibrateOptions &options) {
    if (!options.dumps.empty() || !options.onto.empty())
        throw UsageError("--model runs a model: give no dumps and no --onto with it");
    if (options.text.empty() && options.token_ids.empty())
        throw UsageError("--model needs --text FILE or --token-ids FILE, what the model reads");
    SamplingRequest request = options.sampling;
    request.pass = options.dump.pass;
    request.position_scale = options.position_scale != 0 ? options.position_scale : 1;
    CostRequest cost = options.cost;
    llama::ModelSource source = read_model(options);
    if (options.token_ids.empty()) {
        const std::string text = read_file(options.text);
        if (text.empty())
            throw llama::Error(options.text + " is empty");
        request.texts = byte_texts(text.substr(0, request.n_tokens), options.sentence);
        if (options.costs)
            request.texts.costs = make_cost_documents(text, cost);
    } else {
        request.texts = read_token_ids(options.token_ids, source.config);
        if (!options.costs)
            request.texts.costs.clear();
    }
    cost.documents = request.texts.costs;
    limit_to_positions(source.config.max_tokens, request);
    cost.prefix = request.texts.prefix;
    llama::ContextHandle context;
    std::unique_ptr<llama::TensorSpace> space;
    if (options.costs) {
        check_cost_documents(cost, source.config.max_tokens);
        context = options.device.open();
        space = options.device.space();
    }
    llama::Model model(std::move(source), options.device.n_threads);
    llama::CalibratorHandle calibrator = sample_model(model, request);
    if (options.costs)
        measure_costs(context.get(), *space, model, cost, calibrator.get());
    return calibrator;
}

llama::CalibratorHandle calibrate(const CalibrateOptions &options) {
    if (!options.model.empty())
        return calibrate_model(options);
    if (options.costs)
        throw UsageError("--costs runs a model: give --model");
    if (options.dumps.empty())
        throw UsageError("give dumps, or --model and what it reads; see lowkey calibrate --help");
    llama::CalibratorHandle calibrator;
    if (!options.onto.empty())
        calibrator = load_statistics(options.onto);
    DumpRequest request = options.dump;
    request.position_scale = options.position_scale;
    sample_dumps(options.dumps, request, calibrator);
    return calibrator;
}

// Numbers of a layer that tell whether its keys need classes, centers and probes.
struct LayerSummary {
    std::uint64_t n_keys = 0, n_queries = 0, n_probe_queries = 0;
    std::uint32_t n_outliers = 0, n_subnormal = 0;
    float largest_range = 0;
    float best_retrieval = 0;
    const char *sensitivity = "";  // its kind
    std::string exponent;          // of key scales
};

// What is known of widths: by gradients first, as lowkey plan pm-kvq takes them.
const char *sensitivity_of(const lk_calibrator *calibrator, std::uint32_t layer) {
    const auto has = [&](lk_sensitivity kind) {
        double cost = 0;
        return lk_calibrator_get_sensitivity(calibrator, layer, 0, 0, kind, 2, &cost) == LK_OK &&
               lk_calibrator_get_sensitivity(calibrator, layer, 0, 1, kind, 2, &cost) == LK_OK;
    };
    return has(LK_SENSITIVITY_GRADIENT) ? "gradient" : has(LK_SENSITIVITY_OUTPUT) ? "output" : "";
}

LayerSummary summarise(const lk_calibrator *calibrator, std::uint32_t layer,
                       const lk_layer &shape) {
    LayerSummary out;
    llama::check(lk_calibrator_get_counts(calibrator, layer, &out.n_keys, &out.n_queries,
                                          &out.n_probe_queries));
    out.sensitivity = sensitivity_of(calibrator, layer);
    double exponent = 0;
    if (lk_calibrator_get_key_scales(calibrator, layer, 0, nullptr, &exponent) == LK_OK)
        out.exponent = format_fixed(exponent, 2);
    std::vector<float> ranges(shape.head_dim);
    std::vector<std::uint8_t> classes(shape.head_dim);
    for (std::uint32_t h = 0; h < shape.n_kv_heads; ++h) {
        if (out.n_keys != 0) {
            llama::check(lk_calibrator_get_channels(calibrator, layer, h, LK_STATISTIC_KEY_RANGE,
                                                    ranges.data()));
            llama::check(lk_calibrator_get_classes(calibrator, layer, h, LK_SCOPE_HEAD,
                                                   classes.data(), nullptr));
        }
        for (std::uint32_t c = 0; c < shape.head_dim && out.n_keys != 0; ++c) {
            out.largest_range = std::max(out.largest_range, ranges[c]);
            out.n_outliers += classes[c] == LK_CHANNEL_OUTLIER;
            out.n_subnormal += classes[c] == LK_CHANNEL_SUBNORMAL;
        }
        float score = 0;
        if (out.n_probe_queries != 0)
            llama::check(lk_calibrator_get_retrieval(calibrator, layer, h, &score));
        out.best_retrieval = std::max(out.best_retrieval, score);
    }
    return out;
}

void report(const lk_calibrator *calibrator, const CalibrateOptions &options, double seconds) {
    const std::vector<lk_layer> layers = geometry_of(calibrator);
    Table table({"layer", "keys", "probe rows", "largest range", "outliers", "subnormal",
                 "best retrieval", "sensitivity", "key scales"});
    Json list = Json::array();
    for (std::uint32_t l = 0; l < layers.size(); ++l) {
        const LayerSummary s = summarise(calibrator, l, layers[l]);
        const auto one_retrieval = static_cast<double>(s.best_retrieval);
        const auto one_range = static_cast<double>(s.largest_range);
        table.add({std::to_string(l), format_count(s.n_keys), format_count(s.n_probe_queries),
                   format_fixed(one_range, 2), std::to_string(s.n_outliers),
                   std::to_string(s.n_subnormal), format_fixed(one_retrieval, 4), s.sensitivity,
                   s.exponent});
        list.push_back({{"layer", l},
                        {"kv_heads", layers[l].n_kv_heads},
                        {"head_dim", layers[l].head_dim},
                        {"keys", s.n_keys},
                        {"queries", s.n_queries},
                        {"probe_rows", s.n_probe_queries},
                        {"largest_range", one_range},
                        {"outliers", s.n_outliers},
                        {"subnormal", s.n_subnormal},
                        {"best_retrieval", one_retrieval},
                        {"sensitivity", s.sensitivity},
                        {"key_scale_exponent", s.exponent}});
    }
    if (options.json) {
        print_json({{"statistics", options.output}, {"seconds", seconds}, {"layers", list}});
        return;
    }
    table.print();
    std::printf(
        "\noutliers and subnormal: channels of all KV heads of the layer; key scales: their "
        "exponent;\nstatistics: %s\n",
        options.output.c_str());
}

int run_calibrate(const CalibrateOptions &options) {
    check_output(options.output);
    check_output(options.cost.resume);
    const auto start = std::chrono::steady_clock::now();
    const llama::CalibratorHandle calibrator = calibrate(options);
    const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
    save_statistics(calibrator.get(), options.output);
    report(calibrator.get(), options, taken.count());
    note("took " + format_fixed(taken.count(), 1) + " s");
    return 0;
}

void add_cost_options(CLI::App &command, CalibrateOptions &options) {
    command.add_flag("--costs", options.costs,
                     "measure how far 2 bits for the keys or the values of a head move the model's "
                     "predictions, on made-up texts or on the documents for costs of "
                     "--token-ids; for plan auto");
    command.add_option("--costs-seed", options.cost.seed, "seed of the made-up texts")
        ->capture_default_str();
    command
        .add_option("--costs-tokens", options.cost.context_tokens,
                    "packed tokens of each text; a quarter as many are predicted after them")
        ->capture_default_str()
        ->check(CLI::Range(std::size_t{320}, std::size_t{131072}));
    command
        .add_option("--costs-documents", options.cost.n_documents, "documents of each kind of text")
        ->capture_default_str()
        ->check(CLI::Range(std::size_t{1}, std::size_t{1000}));
    command.add_option("--costs-resume", options.cost.resume,
                       "file that keeps finished measurements; an interrupted run goes on from it");
}

void add_pass_options(CLI::App &command, CalibrateOptions &options) {
    const char *const group = "Sensitivities and key scales (plan pm-kvq)";
    PassRequest &pass = options.dump.pass;
    pass.attention_tokens = kAttentionTokens;
    command
        .add_option("--attention-tokens", pass.attention_tokens,
                    "first tokens of each pass that are attended where there are no gradients, and "
                    "in the search for key scales; 0 = none, and all in the search")
        ->capture_default_str()
        ->group(group);
    command
        .add_option(
            "--position-scale", options.position_scale,
            "put token t at position t x this number (PM-KVQ takes 4): rotates the keys and "
            "queries of dumps further, and a model reads its texts at these positions")
        ->check(CLI::PositiveNumber)
        ->group(group);
    command
        .add_flag("--scales", pass.search_scales,
                  "look for the key scales of least error in each layer's attention")
        ->group(group);
    command
        .add_option("--scale-bits", pass.scale_bits,
                    "bits of keys and values in the search for key scales")
        ->capture_default_str()
        ->check(CLI::IsMember({2u, 4u, 8u}))
        ->group(group);
    command
        .add_option("--query-step", pass.query_step,
                    "the search for key scales takes every N-th query")
        ->capture_default_str()
        ->check(CLI::Range(1u, 1048576u))
        ->group(group);
}

}  // namespace

void add_calibrate(CLI::App &app, int &exit_code) {
    CLI::App *command = app.add_subcommand(
        "calibrate", "statistics of a model, for plans auto, chanmix and pm-kvq");
    command->footer(
        "Examples:\n"
        "  lowkey calibrate dump.safetensors -o stats.safetensors\n"
        "  lowkey plan auto --stats stats.safetensors --bits 2.5 -o plan.json\n"
        "  lowkey calibrate more.safetensors --onto stats.safetensors -o stats.safetensors\n"
        "  lowkey calibrate --model prover.safetensors --text book.txt\n"
        "  lowkey calibrate --model Qwen3-0.6B --token-ids book.ids\n"
        "  lowkey calibrate dump.safetensors --position-scale 4 --scales\n"
        "A dump has the keys after RoPE as layer.N.k [tokens][heads][head_dim], queries as "
        "layer.N.q,\n"
        "and a probe, one sentence over and over, as layer.N.probe_q and layer.N.probe_k;\n"
        "docs/CALIBRATION.md shows how to write one. Without a probe there are no retrieval "
        "heads.\n"
        "Token ids of a text come from the model's own tokenizer:\n"
        "  python -m lowkey.transformers ids MODEL TEXT -o FILE\n"
        "Sensitivities come from gradients, layer.N.k_grad and v_grad next to layer.N.v,\n"
        "else from the error of attention on layer.N.q, k and v.");
    const auto options = std::make_shared<CalibrateOptions>();
    command->add_option("dumps", options->dumps, "safetensors files with keys and queries");
    command->add_option("-o,--output", options->output, "write the statistics to this file")
        ->capture_default_str();
    command->add_option("--onto", options->onto, "begin with the statistics of this file");
    command
        ->add_option(
            "--query-heads", options->dump.n_query_heads,
            "query heads of a layer, for dumps without queries; default one for each KV head")
        ->check(CLI::Range(1u, 16384u));
    command->add_option("--model", options->model,
                        "run this model: a folder of transformers with a model of Llama, Mistral, "
                        "Qwen2, Qwen3, Gemma 2, Gemma 3 or gpt-oss, or a file of the form of the "
                        "shipped one");
    CLI::Option *text = command->add_option(
        "--text", options->text, "text file that the shipped model reads, whose tokens are bytes");
    CLI::Option *ids = command->add_option(
        "--token-ids", options->token_ids,
        "file that the model reads: a document a line, as token ids with spaces between them");
    ids->excludes(text);
    command
        ->add_option("--tokens", options->sampling.n_tokens,
                     "tokens of the text that the model reads")
        ->capture_default_str()
        ->transform(Count())
        ->check(CLI::Range(std::size_t{1}, std::size_t{1} << 30));
    command
        ->add_option("--document-tokens", options->sampling.document_tokens,
                     "tokens of a document, as which the model reads the text")
        ->capture_default_str()
        ->check(CLI::Range(std::size_t{2}, std::size_t{131072}));
    ids->excludes(command->add_option("--sentence", options->sentence, "sentence of the probe")
                      ->capture_default_str());
    command
        ->add_option("--repeats", options->sampling.n_repeats,
                     "times that the probe has its sentence")
        ->capture_default_str()
        ->check(CLI::Range(2u, 100000u));
    add_cost_options(*command, *options);
    add_pass_options(*command, *options);
    options->device.add_to(*command);
    command->add_flag("--json", options->json, "print JSON");
    command->callback([options, &exit_code] { exit_code = run_calibrate(*options); });
}

}  // namespace cli
