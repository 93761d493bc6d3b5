// What a call costs through each binding, next to the same calls from C.
//
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>

#include "cli/bench/bench.h"
#include "cli/common/output_file.h"
#include "cli/common/report.h"
#include "cli/common/resources.h"

#if defined(__unix__)
#include <dlfcn.h>
#include <sys/wait.h>
#include <unistd.h>
#endif

namespace cli {

#if defined(__unix__)
namespace {

namespace fs = std::filesystem;

// A program of the binding prints {"rows": {NAME: TIMES}}; TIMES has append_us and attend_us, or
// layer_us of one call for both.
struct Binding {
    const char *name;
    const char *tool;     // that builds or runs it
    double limit_us;      // that a call may take beyond C's
    const char *command;  // in the folder of the sources; the number of steps follows it
};
constexpr Binding kBindings[] = {
    {"rust", "cargo", 1,
     "cd bindings/rust && cargo run --release --offline --quiet --example bench --"},
    {"go", "go", 2, "cd bindings/go/lowkey && go run ./bench"},
    {"python", "python3", 20, "python3 -B bindings/python/bench.py"},
};

struct CallRow {
    std::string binding, arrays;
    std::optional<double> append_us, attend_us;  // none where one call does both
    double layer_us = 0;                         // of append and attend
    double over_us = 0;                          // attend's, or the one call's, beyond C's
    double limit_us = 0;
};

std::string quoted(const std::string &word) {
    std::string out = "'";
    for (const char c : word)
        out += c == '\'' ? std::string("'\\''") : std::string(1, c);
    return out + "'";
}

// What a shell command prints; nothing when it fails.
std::optional<std::string> output_of(const std::string &command) {
    FILE *pipe = popen(command.c_str(), "r");
    if (pipe == nullptr)
        throw llama::Error("cannot start a shell");
    std::string text;
    char piece[4096];
    for (std::size_t n; (n = std::fread(piece, 1, sizeof piece, pipe)) != 0;)
        text.append(piece, n);
    const int status = pclose(pipe);
    return WIFEXITED(status) && WEXITSTATUS(status) == 0 ? std::optional(text) : std::nullopt;
}

// A folder that is gone at the end, with a description of the library that this program runs on.
class Workshop {
  public:
    Workshop() {
        Dl_info info = {};
        if (dladdr(reinterpret_cast<const void *>(&lk_version), &info) == 0 ||
            fs::path(info.dli_fname).filename().string().find(".so") == std::string::npos)
            throw llama::Error(
                "the bindings need the shared library, and this program has its own");
        library_ = fs::canonical(info.dli_fname);
        const std::string script = find_resource({"bindings/python/bench.py"});
        if (script.empty())
            throw llama::Error("no bindings/ here: run this in the folder of lowkey's sources");
        sources_ = fs::absolute(script).parent_path().parent_path().parent_path();
        std::string name = (fs::temp_directory_path() / "lowkey-bench-XXXXXX").string();
        if (mkdtemp(name.data()) == nullptr)
            throw llama::Error("cannot make a folder in " + fs::temp_directory_path().string());
        folder_ = name;
        fs::create_symlink(library_, folder_ / "liblowkey.so");
        write_file((folder_ / "lowkey.pc").string(),
                   "Name: lowkey\nDescription: the library that is measured\nVersion: " +
                       std::string(lk_version()) + "\nCflags: -I" +
                       (sources_ / "include").string() + "\nLibs: -L" + folder_.string() +
                       " -llowkey\n");
    }
    ~Workshop() {
        std::error_code ignored;
        fs::remove_all(folder_, ignored);
    }
    Workshop(const Workshop &) = delete;
    Workshop &operator=(const Workshop &) = delete;

    // The program's rows by their names, or nothing when it did not run.
    Json run(const Binding &binding, std::uint32_t n_steps) const {
        const std::string folder = quoted(folder_.string());
        std::ostringstream command;
        // Go's cache does not depend on pkg-config's answer; by a flag it tells this folder from
        // others.
        command << "cd " << quoted(sources_.string())
                << " && export LOWKEY_LIBRARY=" << quoted(library_.string())
                << " PKG_CONFIG_PATH=" << folder << " CGO_LDFLAGS=-L" << folder
                << " CARGO_TARGET_DIR=" << folder
                << "/target LD_LIBRARY_PATH=" << quoted(library_.parent_path().string())
                << " && unset LOWKEY_LIB_DIR PKG_CONFIG_SYSROOT_DIR && " << binding.command << ' '
                << n_steps;
        const std::optional<std::string> text = output_of(command.str());
        if (!text)
            return nullptr;
        const Json found = Json::parse(*text, nullptr, false);
        return found.is_object() && found.contains("rows") ? found["rows"] : Json(nullptr);
    }

  private:
    fs::path library_, sources_, folder_;
};

// The same calls as the bindings' programs make.
CallRow time_c(std::uint32_t n_steps) {
    const Shape shape = {1, 1, 32};
    const llama::Geometry geometry = shape.geometry();
    const llama::ContextHandle context = llama::open_context(LK_BACKEND_CPU, 0, 1, 0);
    const llama::PlanHandle plan = llama::make_preset("fp16", geometry);
    llama::HostSpace space;
    SyntheticCache cache(context.get(), space, plan.get(), shape, {1, 1});
    std::vector<float> zeros(shape.head_dim), out(shape.head_dim);
    lk_tensor q = llama::initialised(lk_tensor_init);
    q.dtype = LK_F32;
    q.memory = LK_MEMORY_HOST;
    q.token_stride = q.head_stride = shape.head_dim;
    q.data = zeros.data();
    lk_tensor result = q;
    result.data = out.data();
    std::vector<double> append, attend;
    for (std::uint32_t i = 0; i < n_steps; ++i) {
        cache.begin(1);
        const auto begin = Clock::now();
        cache.append(q, q);
        const auto middle = Clock::now();
        cache.attend(q, result);
        attend.push_back(seconds_since(middle));
        append.push_back(std::chrono::duration<double>(middle - begin).count());
        cache.discard();
    }
    CallRow row;
    row.binding = "c";
    row.arrays = "pointers";
    row.append_us = summarise(append).median_s * 1e6;
    row.attend_us = summarise(attend).median_s * 1e6;
    row.layer_us = *row.append_us + *row.attend_us;
    return row;
}

std::vector<CallRow> rows_of(const Binding &binding, const Json &found, const CallRow &c) {
    std::vector<CallRow> rows;
    for (const auto &[arrays, times] : found.items()) {
        CallRow row;
        row.binding = binding.name;
        row.arrays = arrays;
        row.limit_us = binding.limit_us;
        if (times.contains("layer_us")) {
            row.layer_us = times["layer_us"].get<double>();
            row.over_us = row.layer_us - c.layer_us;
        } else {
            row.append_us = times.at("append_us").get<double>();
            row.attend_us = times.at("attend_us").get<double>();
            row.layer_us = *row.append_us + *row.attend_us;
            row.over_us = *row.attend_us - *c.attend_us;
        }
        rows.push_back(row);
    }
    return rows;
}

Json to_json(const std::optional<double> &number) { return number ? Json(*number) : Json(nullptr); }

void print_rows(const std::vector<CallRow> &rows, std::uint32_t n_steps) {
    std::printf("calls of one step on an empty sequence, medians of %u, microseconds\n\n", n_steps);
    Table table({"binding", "arrays", "append", "attend", "both", "beyond C", "limit"});
    for (const CallRow &row : rows) {
        const auto text = [](const std::optional<double> &number) {
            return number ? format_fixed(*number, 2) : std::string("-");
        };
        const bool is_c = row.limit_us == 0;
        table.add({row.binding, row.arrays, text(row.append_us), text(row.attend_us),
                   format_fixed(row.layer_us, 2), is_c ? "-" : format_fixed(row.over_us, 2),
                   is_c ? "-" : format_fixed(row.limit_us, 0)});
    }
    table.print();
}

Json to_json(const std::vector<CallRow> &rows, const std::vector<std::string> &missing,
             std::uint32_t n_steps) {
    Json json = {{"build", lk_build_info()},
                 {"steps", n_steps},
                 {"rows", Json::array()},
                 {"not_measured", missing}};
    for (const CallRow &row : rows)
        json["rows"].push_back({{"binding", row.binding},
                                {"arrays", row.arrays},
                                {"append_us", to_json(row.append_us)},
                                {"attend_us", to_json(row.attend_us)},
                                {"layer_us", row.layer_us},
                                {"beyond_c_us", row.over_us},
                                {"limit_us", row.limit_us}});
    return json;
}

}  // namespace

int run_bindings_bench(const BenchOptions &options) {
    const auto is_chosen = [&options](const std::string &name) {
        const auto &names = options.bindings;
        return std::find(names.begin(), names.end(), name) != names.end();
    };
    const std::uint32_t n_steps = options.n_repeats;
    const Workshop workshop;
    std::vector<CallRow> rows = {time_c(n_steps)};
    const CallRow c = rows.front();
    std::vector<std::string> missing;
    bool is_within = true;
    for (const Binding &binding : kBindings) {
        if (!is_chosen("all") && !is_chosen(binding.name))
            continue;
        note(std::string(binding.name) + ": building and running its program");
        const bool has_tool =
            output_of(std::string("command -v ") + binding.tool + " 2>/dev/null").has_value();
        const Json found = has_tool ? workshop.run(binding, n_steps) : Json(nullptr);
        if (found.is_null())
            missing.push_back(binding.name +
                              std::string(has_tool ? ": its program failed" : ": there is no ") +
                              (has_tool ? "" : binding.tool));
        for (const CallRow &row : rows_of(binding, found, c)) {
            is_within = is_within && row.over_us < row.limit_us;
            rows.push_back(row);
        }
    }
    if (options.json)
        print_json(to_json(rows, missing, n_steps));
    else
        print_rows(rows, n_steps);
    for (const std::string &sentence : missing)
        std::fprintf(stderr, "lowkey: not measured: %s\n", sentence.c_str());
    return missing.empty() && is_within ? 0 : 1;
}
#else
int run_bindings_bench(const BenchOptions &) {
    throw llama::Error("programs of other languages are started on Unix systems only");
}
#endif

}  // namespace cli
