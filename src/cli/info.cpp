// lowkey info: this build, this machine's devices, and what each supports.
//
// SPDX-License-Identifier: Apache-2.0
#include <build_text.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/common/command.h"
#include "cli/common/report.h"
#include "cli/common/widths.h"

namespace cli {
namespace {

constexpr std::uint32_t kHeadDims[] = {32, 48, 64, 80, 96, 112, 128, 160, 192, 256, 512};

const char *backend_name(lk_backend backend) {
    switch (backend) {
        case LK_BACKEND_CPU: return "cpu";
        case LK_BACKEND_CUDA: return "cuda";
        case LK_BACKEND_VULKAN: return "vulkan";
        default: return "unknown";
    }
}

llama::ContextHandle open_device(const lk_device_info &info) {
    lk_context_desc desc = llama::initialised(lk_context_desc_init);
    desc.backend = info.backend;
    desc.device_index = info.index;
    lk_context *context = nullptr;
    llama::check(lk_context_open(&desc, LK_ABI_VERSION, &context));
    return llama::ContextHandle(context);
}

bool supports(const lk_context *context, const lk_device_info &info, std::uint32_t bits,
              std::uint32_t head_dim) {
    lk_capability question = llama::initialised(lk_capability_init);
    question.head_dim = head_dim;
    question.group_size = 4;
    question.key_bits = bits;
    question.value_bits = bits;
    question.page_tokens = 128;
    question.memory = info.backend == LK_BACKEND_CUDA     ? LK_MEMORY_CUDA
                      : info.backend == LK_BACKEND_VULKAN ? LK_MEMORY_VULKAN
                                                          : LK_MEMORY_HOST;
    question.dtype = LK_F16;
    question.queue = info.backend == LK_BACKEND_CUDA     ? LK_QUEUE_CUDA_STREAM
                     : info.backend == LK_BACKEND_VULKAN ? LK_QUEUE_VULKAN_SUBMIT
                                                         : 0;
    return lk_context_supports(context, &question) == LK_OK;
}

Json support_json(const lk_context *context, const lk_device_info &info) {
    Json support = Json::array();
    for (auto width = kCodeWidths.rbegin(); width != kCodeWidths.rend(); ++width) {
        const std::uint32_t bits = *width;
        Json head_dims = Json::array();
        for (const std::uint32_t head_dim : kHeadDims) {
            if (supports(context, info, bits, head_dim))
                head_dims.push_back(head_dim);
        }
        support.push_back({{"bits", bits}, {"head_dims", head_dims}});
    }
    return support;
}

Json device_json(std::uint32_t ordinal) {
    lk_device_info info = llama::initialised(lk_device_info_init);
    llama::check(lk_device_get(ordinal, &info));
    Json device = {{"backend", backend_name(info.backend)},
                   {"index", info.index},
                   {"name", info.name},
                   {"features", info.features},
                   {"threads", info.n_threads},
                   {"memory_bytes", info.memory_bytes},
                   {"free_bytes", info.free_bytes},
                   {"supports", Json::array()}};
    try {
        device["supports"] = support_json(open_device(info).get(), info);
    } catch (const llama::Error &error) {
        device["refused"] = error.what();
    }
    return device;
}

// Backends without a device: left out of this build, or nothing here to run on.
Json missing_json(const Json &devices) {
    Json missing = Json::array();
    const auto add = [&](const char *backend, bool is_built, const char *text,
                         const std::string &how, const std::string &none) {
        for (const Json &device : devices)
            if (device["backend"] == backend)
                return;
        missing.push_back(
            {{"backend", backend},
             {"why", is_built ? none : "left out of this build: " + std::string(text)},
             {"how", is_built ? "" : how}});
    };
    const std::string no_driver = missing_cuda_driver();
    add("cuda", LK_HAVE_CUDA != 0, LK_CUDA_TEXT,
        "install CUDA 12.2 or newer, then ./dev build -Dcuda=enabled",
        no_driver.empty() ? "no CUDA device was found" : no_driver);
    add("vulkan", LK_HAVE_VULKAN != 0, LK_VULKAN_TEXT,
        "install glslc and libvulkan-dev, then ./dev build -Dvulkan=enabled",
        "no Vulkan device was found; install a driver, such as mesa-vulkan-drivers");
    return missing;
}

Json info_json() {
    Json info = {{"version", lk_version()},
                 {"abi_version", lk_abi_version()},
                 {"build", lk_build_info()},
                 {"presets", preset_names()},
                 {"devices", Json::array()}};
    std::uint32_t n_devices = 0;
    llama::check(lk_device_count(&n_devices));
    for (std::uint32_t i = 0; i < n_devices; ++i)
        info["devices"].push_back(device_json(i));
    info["missing"] = missing_json(info["devices"]);
    return info;
}

void print_device(const Json &device) {
    std::printf("\n%s %u: %s\n", device["backend"].get<std::string>().c_str(),
                device["index"].get<unsigned>(), device["name"].get<std::string>().c_str());
    std::printf("  features    %s\n", device["features"].get<std::string>().c_str());
    if (device["threads"] != 0)
        std::printf("  threads     %u\n", device["threads"].get<unsigned>());
    std::printf("  memory      %s, %s free\n\n",
                format_bytes(device["memory_bytes"].get<double>()).c_str(),
                format_bytes(device["free_bytes"].get<double>()).c_str());
    if (device.contains("refused")) {
        std::printf("  cannot be used: %s\n", device["refused"].get<std::string>().c_str());
        return;
    }
    std::vector<std::string> header = {"bits \\ head_dim"};
    for (const std::uint32_t head_dim : kHeadDims)
        header.push_back(std::to_string(head_dim));
    Table table(header);
    for (const Json &row : device["supports"]) {
        std::vector<std::string> cells = {std::to_string(row["bits"].get<unsigned>())};
        for (const std::uint32_t head_dim : kHeadDims) {
            bool found = false;
            for (const Json &have : row["head_dims"])
                found = found || have == head_dim;
            cells.emplace_back(found ? "yes" : "-");
        }
        table.add(cells);
    }
    table.print();
}

int run_info(bool as_json) {
    const Json info = info_json();
    if (as_json) {
        print_json(info);
        return 0;
    }
    std::printf("lowkey %s, interface %u.%u\n", lk_version(), lk_abi_version() >> 16,
                lk_abi_version() & 0xffffu);
    std::printf("%s\n", lk_build_info());
    for (const Json &device : info["devices"])
        print_device(device);
    for (const Json &one : info["missing"]) {
        const std::string how = one["how"].get<std::string>();
        std::printf("\n%s: %s\n", one["backend"].get<std::string>().c_str(),
                    one["why"].get<std::string>().c_str());
        if (!how.empty())
            std::printf("  to have it: %s\n", how.c_str());
    }
    return 0;
}

}  // namespace

void add_info(CLI::App &app, int &exit_code) {
    CLI::App *command = app.add_subcommand(
        "info", "version, build, devices, and the widths and head sizes that each supports");
    command->footer("Example:\n  lowkey info\nMemory is in bytes in --json.");
    const auto as_json = std::make_shared<bool>(false);
    command->add_flag("--json", *as_json, "print JSON");
    command->callback([as_json, &exit_code] { exit_code = run_info(*as_json); });
}

}  // namespace cli
