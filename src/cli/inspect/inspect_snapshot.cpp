// SPDX-License-Identifier: Apache-2.0
#include "cli/inspect/inspect_snapshot.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/common/command.h"
#include "cli/common/report.h"
#include "cli/common/widths.h"
#include "cli/picture/canvas.h"
#include "cli/plan/plan_view.h"
#include "llama/safetensors.h"

namespace cli {
namespace {

constexpr std::size_t kMostShown = 40;  // sequences in a table

struct CloseSnapshot {
    void operator()(lk_snapshot *snapshot) const { lk_snapshot_close(&snapshot); }
};
using SnapshotHandle = std::unique_ptr<lk_snapshot, CloseSnapshot>;

struct Contents {
    lk_snapshot_info info;
    std::vector<lk_snapshot_sequence> sequences;
    std::vector<lk_snapshot_format> formats;  // that it has pages of
};

Contents read_contents(const lk_snapshot *snapshot) {
    Contents out;
    out.info = llama::initialised(lk_snapshot_info_init);
    llama::check(lk_snapshot_get_info(snapshot, &out.info));
    for (std::uint32_t i = 0; i < out.info.n_sequences; ++i) {
        out.sequences.push_back(llama::initialised(lk_snapshot_sequence_init));
        llama::check(lk_snapshot_get_sequence(snapshot, i, &out.sequences.back()));
    }
    for (std::uint32_t i = 0; i < out.info.n_formats; ++i) {
        auto kind = llama::initialised(lk_snapshot_format_init);
        llama::check(lk_snapshot_get_format(snapshot, i, &kind));
        if (kind.n_pages > 0)
            out.formats.push_back(kind);
    }
    return out;
}

std::string hex(std::uint64_t value) {
    char text[20];
    std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(value));
    return text;
}

std::string fingerprint_text(const lk_snapshot_info &info) {
    std::string text;
    char byte[4];
    for (std::uint32_t i = 0; i < info.fingerprint_bytes; ++i) {
        std::snprintf(byte, sizeof byte, "%02x", info.fingerprint[i]);
        text += byte;
    }
    return text;
}

std::uint64_t bytes_of(const lk_snapshot_format &kind) {
    return kind.payload_bytes + kind.metadata_bytes;
}

// "keys 4: 16, 2: 112"
std::string format_text(const lk_snapshot_format &kind) {
    std::string text = kind.is_value ? "values" : "keys";
    const char *before = " ";
    for (std::size_t i = 0; i < kCodeWidths.size(); ++i) {
        if (kind.channels[i] == 0)
            continue;
        text += before + std::to_string(kCodeWidths[i]) + ": " + std::to_string(kind.channels[i]);
        before = ", ";
    }
    return text;
}

Json format_json(const lk_snapshot_format &kind) {
    Json channels = Json::object();
    for (std::size_t i = 0; i < kCodeWidths.size(); ++i) {
        if (kind.channels[i] > 0)
            channels[std::to_string(kCodeWidths[i])] = kind.channels[i];
    }
    return {{"side", kind.is_value ? "values" : "keys"},
            {"head_dim", kind.head_dim},
            {"page_tokens", kind.page_tokens},
            {"channels_by_bits", channels},
            {"pages", kind.n_pages},
            {"code_bytes", kind.payload_bytes},
            {"metadata_bytes", kind.metadata_bytes}};
}

Json contents_json(const std::string &path, const lk_snapshot *snapshot, const Contents &contents) {
    const lk_snapshot_info &info = contents.info;
    Json sequences = Json::array(), formats = Json::array();
    for (const lk_snapshot_sequence &s : contents.sequences) {
        sequences.push_back({{"id", s.id},
                             {"tokens", s.n_tokens},
                             {"blocks", s.n_blocks},
                             {"shared_blocks", s.n_shared_blocks}});
    }
    for (const lk_snapshot_format &kind : contents.formats)
        formats.push_back(format_json(kind));
    const lk_plan *plan = lk_snapshot_plan(snapshot);
    return {{"file", path},
            {"version", info.version},
            {"bytes", info.total_bytes},
            {"tokens", info.n_tokens},
            {"blocks", info.n_blocks},
            {"states", info.n_states},
            {"state_versions", info.n_state_versions},
            {"version_bytes", info.version_bytes},
            {"fingerprint", fingerprint_text(info)},
            {"geometry_hash", hex(info.geometry_hash)},
            {"plan_hash", hex(info.plan_hash)},
            {"plan_name", lk_plan_name(plan)},
            {"sequences", sequences},
            {"classes", formats},
            {"plan", Json::parse(plan_json(plan))}};
}

void print_contents(const lk_snapshot *snapshot, const Contents &contents) {
    const lk_snapshot_info &info = contents.info;
    std::printf("snapshot of %s, %u sequences, %s tokens in %s blocks\n",
                format_bytes(static_cast<double>(info.total_bytes)).c_str(), info.n_sequences,
                format_count(info.n_tokens).c_str(), format_count(info.n_blocks).c_str());
    std::printf("plan %s, hash %s, geometry %s\n", lk_plan_name(lk_snapshot_plan(snapshot)),
                hex(info.plan_hash).c_str(), hex(info.geometry_hash).c_str());
    const std::string fingerprint = fingerprint_text(info);
    std::printf("fingerprint %s\n", fingerprint.empty() ? "none" : fingerprint.c_str());
    if (info.n_states)
        std::printf("%s versions of %u recurrent states, %s each\n",
                    format_count(info.n_state_versions).c_str(), info.n_states,
                    format_bytes(static_cast<double>(info.version_bytes)).c_str());
    std::printf("\n");
    Table sequences({"sequence", "tokens", "blocks", "shared"});
    for (std::size_t i = 0; i < std::min(contents.sequences.size(), kMostShown); ++i) {
        const lk_snapshot_sequence &s = contents.sequences[i];
        sequences.add({std::to_string(s.id), format_count(s.n_tokens), format_count(s.n_blocks),
                       format_count(s.n_shared_blocks)});
    }
    sequences.print();
    if (contents.sequences.size() > kMostShown)
        std::printf("and %zu more\n", contents.sequences.size() - kMostShown);
    std::printf("\n");
    Table formats({"page format, bits: channels", "tokens", "pages", "bytes", "of which metadata"});
    for (const lk_snapshot_format &kind : contents.formats) {
        formats.add({format_text(kind), std::to_string(kind.page_tokens),
                     format_count(kind.n_pages), format_count(bytes_of(kind)),
                     format_count(kind.metadata_bytes)});
    }
    formats.print();
}

// A bar for each format, as long as its bytes.
void draw_contents(const Contents &contents, const std::string &path) {
    std::uint64_t largest = 1;
    for (const lk_snapshot_format &kind : contents.formats)
        largest = std::max(largest, bytes_of(kind));
    constexpr double kLeft = 330, kTop = 90, kBar = 620, kRow = 34;
    Canvas canvas(
        1180, static_cast<int>(kTop + kRow * static_cast<double>(contents.formats.size())) + 70);
    canvas.text(40, 44, "Bytes of a snapshot by page format", 15, kInk);
    double y = kTop;
    for (const lk_snapshot_format &kind : contents.formats) {
        const double scale = kBar / static_cast<double>(largest);
        const double payload = static_cast<double>(kind.payload_bytes) * scale;
        const double metadata = static_cast<double>(kind.metadata_bytes) * scale;
        canvas.text(kLeft - 14, y + 16, format_text(kind), 9, kInk, Align::kRight);
        canvas.rect(kLeft, y, payload, kRow - 10, series_color(kind.is_value));
        canvas.rect(kLeft + payload, y, metadata, kRow - 10, kMuted);
        canvas.text(kLeft + payload + metadata + 12, y + 16,
                    format_bytes(static_cast<double>(bytes_of(kind))) + ", " +
                        format_count(kind.n_pages) + " pages",
                    9, kMuted);
        y += kRow;
    }
    double x = kLeft;
    const std::pair<const char *, Color> legend[] = {{"codes of keys", series_color(0)},
                                                     {"codes of values", series_color(1)},
                                                     {"metadata", kMuted}};
    for (const auto &[name, color] : legend) {
        canvas.rect(x, y + 20, 14, 14, color);
        canvas.text(x + 22, y + 32, name, 9, kMuted);
        x += 190;
    }
    canvas.write_png(path);
}

}  // namespace

bool is_snapshot_file(const std::string &path) {
    llama::check_file(path);
    std::ifstream in(path, std::ios::binary);
    char magic[4] = {};
    return in.read(magic, sizeof magic) && std::memcmp(magic, "LKSN", sizeof magic) == 0;
}

void inspect_snapshot(const std::string &path, bool as_json, const std::string &png) {
    lk_snapshot *raw = nullptr;
    const lk_status status = lk_snapshot_open_file(path.c_str(), &raw);
    if (status == LK_E_IO)
        llama::check(status);  // the sentence has the path already
    llama::check_bytes_of(path, status);
    const SnapshotHandle snapshot(raw);
    const Contents contents = read_contents(snapshot.get());
    if (as_json)
        print_json(contents_json(path, snapshot.get(), contents));
    else
        print_contents(snapshot.get(), contents);
    if (!png.empty()) {
        draw_contents(contents, png);
        note("picture: " + png);
    }
}

}  // namespace cli
