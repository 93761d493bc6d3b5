// What a driver's compiler makes of the kernels of decode: for each measured plan the kernel that a
// step of one new token runs, with the driver's statistics of the compiled code.
//
//   vulkan-statistics [--device N] [--plan NAME] [--variant NAME] [--json] [--texts FOLDER]
//                     [--cache FILE]
//
// lowkey's own code makes the pipelines, as a cache does for its first steps: the core lays out a
// cache of the plan on a device that does no work, DecodeRules and CachePipelines choose shaders
// and constants. Nothing is submitted, so a driver without hardware will do (RADV with
// RADV_FORCE_FAMILY, a driver under a DRM shim). --texts writes the representations of the code
// that the driver gives, one file each; --cache its cache of the pipelines, where some keep machine
// code that other tools read.
//
// Each plan comes with the arithmetic that the device gets, and with FP32 and without operations
// of subgroups, which other devices get. Kernels of cooperative matrices are compiled where the
// device has matrices.
//
// SPDX-License-Identifier: Apache-2.0
#include "captured_device.h"
#include "plan_layouts.h"

#include "backend/vulkan/cache_pipelines.h"
#include "backend/vulkan/decode_rules.h"
#include "base/status.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>

namespace {

using lk::vulkan::CachePipelines;
using lk::vulkan::DecodeRules;
using lk::vulkan::Traits;

struct Options {
    uint32_t device = 0;
    const char *plan = nullptr;     // this one alone
    const char *variant = nullptr;  // likewise
    bool is_json = false;
    const char *texts = nullptr;
    const char *cache = nullptr;
};

// The features of a device that decide about a kernel.
struct Variant {
    const char *name;
    bool has_float16;
    bool has_subgroups;
    bool has_matrices;
};
constexpr Variant kVariants[] = {{"as the device is", true, true, true},
                                 {"no matrices", true, true, false},
                                 {"FP32", false, true, false},
                                 {"no subgroups", true, false, false}};

Traits without(Traits traits, const Variant &variant) {
    traits.cooperative_matrix = traits.cooperative_matrix && variant.has_matrices;
    traits.float16 = traits.float16 && variant.has_float16;
    traits.subgroup = traits.subgroup && variant.has_subgroups;
    return traits;
}

// How the packed pages of a head are cut.
struct HeadForm {
    uint32_t key_strips[17];  // of each width
    uint32_t key_groups;
    uint32_t n_shared;  // pairs of the keys
    uint32_t value_bits;
};
std::vector<HeadForm> forms_of(const lk::CacheLayout &layout) {
    std::vector<HeadForm> forms;
    for (uint32_t head = 0; head < layout.layers[0].n_kv_heads; ++head) {
        const lk::EntryFormats &entry = layout.entry_formats[layout.first_entries[0] + head];
        const lk::PageLayout &key = layout.formats[entry.packed_key].layout;
        const lk::PageLayout &value = layout.formats[entry.packed_value].layout;
        HeadForm form{};
        for (uint32_t plane = 0; plane < lk::kPlaneCount; ++plane)
            form.key_strips[lk::kPlaneBits[plane]] = key.strips[plane];
        form.key_groups = key.is_raw() ? 1 : lk::n_groups(key);
        form.n_shared = key.n_shared;
        form.value_bits = lk::widest_width(value.strips);
        forms.push_back(form);
    }
    return forms;
}

struct Row {
    std::string plan;
    const char *variant;
    uint32_t form;     // of the layer's packed pages
    uint32_t columns;  // of a workgroup
    uint32_t threads;
    uint64_t packed_bytes;  // of 128 tokens of the layer
    uint32_t key_groups;    // bounds of the kernel's loops over a page, as they are pushed
    uint32_t value_steps;
    std::vector<HeadForm> heads;
    const Compiled *code;
};

[[noreturn]] void stop(const std::string &sentence) {
    std::fprintf(stderr, "vulkan-statistics: %s\n", sentence.c_str());
    std::exit(1);
}

// The kernels of a step of one new token of the first layer.
void add_rows(CapturedDevice *device, const NamedPlan &plan, const Variant &variant,
              std::vector<Row> *rows) {
    const PlanLayout layout(plan);
    if (layout.failure())
        stop(plan.name + ": " + layout.failure());
    const Traits traits = without(device->traits(), variant);
    DecodeRules rules(lk::default_allocator(), traits);
    CachePipelines pipelines(lk::default_allocator());
    if (!rules.open(layout.layout()) ||
        pipelines.open(layout.layout(), rules, traits, &device->pipelines()))
        stop(plan.name + ", " + variant.name + ": " + lk::last_sentence());
    if (!rules.takes(0))
        stop(plan.name + ": decode does not take its layer");
    Row row{plan.name,
            variant.name,
            0,
            0,
            0,
            layout.packed_bytes(0),
            rules.key_groups(0),
            rules.value_steps(0),
            forms_of(layout.layout()),
            nullptr};
    row.columns = rules.tile_columns(0, 1);
    row.threads = rules.threads(0, row.columns);
    for (uint32_t i = 0; i < rules.n_forms(0); ++i)
        if (!pipelines.want_decode(0, row.columns, i, 0))
            stop(plan.name + ": no memory");
    if (pipelines.make_wanted())
        stop(plan.name + ", " + variant.name + ": " + lk::last_sentence());
    for (uint32_t i = 0; i < rules.n_forms(0); ++i) {
        row.form = i;
        row.code = device->compiled(pipelines.attend(0, row.columns, i, 0));
        const bool is_known = std::any_of(rows->begin(), rows->end(), [&](const Row &known) {
            return known.plan == row.plan && known.variant == row.variant && known.code == row.code;
        });
        if (!is_known)
            rows->push_back(row);
    }
}

bool is_wanted(const char *wanted, const std::string &name) { return !wanted || name == wanted; }

std::vector<Row> make_rows(const Options &options, CapturedDevice *device) {
    std::vector<Row> rows;
    for (const Variant &variant : kVariants)
        for (const NamedPlan &plan : measured_plans())
            if (is_wanted(options.plan, plan.name) && is_wanted(options.variant, variant.name) &&
                (!variant.has_matrices || device->traits().cooperative_matrix))
                add_rows(device, plan, variant, &rows);
    if (rows.empty())
        stop("no plan or variant of this name");
    for (const Row &row : rows) {
        if (!row.code)
            stop(row.plan + ": the driver was not called for its kernel");
        if (device->has_statistics() && row.code->statistics.empty())
            stop(row.plan + ": the driver has no statistics of " + row.code->shader);
    }
    return rows;
}

void print_table(const CapturedDevice &device, const std::vector<Row> &rows) {
    std::printf("%s (%s)\n", device.host().properties.deviceName, device.driver().c_str());
    for (const Row &row : rows) {
        std::printf("%-10s %-16s form %2u, %-28s columns %u, threads %3u, subgroup %u:",
                    row.plan.c_str(), row.variant, row.form, row.code->shader.c_str(), row.columns,
                    row.threads, row.code->subgroup_size);
        for (const auto &[name, value] : row.code->statistics)
            std::printf(" %s %.10g,", name.c_str(), value);
        std::printf("%s\n", row.code->statistics.empty() ? " no statistics" : "");
    }
}

void print_heads(const Row &row) {
    std::printf("\"heads\": [");
    const char *between = "";
    for (const HeadForm &head : row.heads) {
        std::printf("%s{\"key_strips\": {", between);
        for (const uint32_t bits : {16, 8, 4, 2, 1})
            std::printf("\"%u\": %u%s", bits, head.key_strips[bits], bits == 1 ? "" : ", ");
        std::printf("}, \"key_groups\": %u, \"n_shared\": %u, \"value_bits\": %u}", head.key_groups,
                    head.n_shared, head.value_bits);
        between = ", ";
    }
    std::printf("]");
}

void print_statistics(const Row &row) {
    std::printf("\"statistics\": {");
    const char *between = "";
    for (const auto &[name, value] : row.code->statistics) {
        std::printf("%s\"%s\": %.10g", between, name.c_str(), value);
        between = ", ";
    }
    std::printf("}");
}

void print_json(const CapturedDevice &device, const std::vector<Row> &rows) {
    std::printf("{\"device\": \"%s\", \"driver\": \"%s\", \"rows\": [",
                device.host().properties.deviceName, device.driver().c_str());
    const char *between = "\n";
    for (const Row &row : rows) {
        std::printf(
            "%s  {\"plan\": \"%s\", \"variant\": \"%s\", \"form\": %u, \"kernel\": \"%s\", "
            "\"columns\": %u, \"threads\": %u, \"subgroup_size\": %u, "
            "\"packed_bytes\": %llu, \"key_groups\": %u, \"value_steps\": %u, ",
            between, row.plan.c_str(), row.variant, row.form, row.code->shader.c_str(), row.columns,
            row.threads, row.code->subgroup_size, static_cast<unsigned long long>(row.packed_bytes),
            row.key_groups, row.value_steps);
        print_heads(row);
        std::printf(", ");
        print_statistics(row);
        std::printf("}");
        between = ",\n";
    }
    std::printf("\n]}\n");
}

void write_texts(const char *folder, const std::vector<Row> &rows) {
    for (const Row &row : rows)
        for (const auto &[name, text] : row.code->texts) {
            const std::string path = std::string(folder) + "/" + row.plan + "," + row.variant +
                                     "," + std::to_string(row.form) + "," + name + ".txt";
            std::ofstream(path) << text;
        }
}

void write_cache(const char *path, const lk::vulkan::Pipelines &pipelines) {
    uint64_t n = 0;
    if (pipelines.save(nullptr, 0, &n))
        stop(lk::last_sentence());
    std::vector<char> bytes(n);
    if (pipelines.save(bytes.data(), n, &n))
        stop(lk::last_sentence());
    std::ofstream(path, std::ios::binary).write(bytes.data(), static_cast<std::streamsize>(n));
}

Options parse(int argc, char **argv) {
    Options options;
    for (int i = 1; i < argc; ++i) {
        if (!std::strcmp(argv[i], "--json"))
            options.is_json = true;
        else if (!std::strcmp(argv[i], "--device") && i + 1 < argc)
            options.device = static_cast<uint32_t>(std::strtoul(argv[++i], nullptr, 10));
        else if (!std::strcmp(argv[i], "--plan") && i + 1 < argc)
            options.plan = argv[++i];
        else if (!std::strcmp(argv[i], "--variant") && i + 1 < argc)
            options.variant = argv[++i];
        else if (!std::strcmp(argv[i], "--texts") && i + 1 < argc)
            options.texts = argv[++i];
        else if (!std::strcmp(argv[i], "--cache") && i + 1 < argc)
            options.cache = argv[++i];
        else
            stop(std::string("unknown argument ") + argv[i]);
    }
    return options;
}

}  // namespace

int main(int argc, char **argv) {
    const Options options = parse(argc, argv);
    CapturedDevice device;
    if (const char *failure = device.open(options.device))
        stop(failure);
    const std::vector<Row> rows = make_rows(options, &device);
    if (options.is_json)
        print_json(device, rows);
    else
        print_table(device, rows);
    if (options.texts)
        write_texts(options.texts, rows);
    if (options.cache)
        write_cache(options.cache, device.pipelines());
    return 0;
}
