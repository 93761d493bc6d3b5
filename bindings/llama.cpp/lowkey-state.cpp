// Saved states: which cells hold which tokens, then a snapshot of lowkey.
//
//   u32 magic, version    kMagic, kVersion
//   u32 n_sequences       of the state, at most LLAMA_MAX_SEQ
//   u32 n_spans
//   u64 snapshot_bytes
//   i32 [n_sequences]     llama.cpp's numbers, in the order of the snapshot
//   u64 [n_sequences]     the length at which sliding windows last freed pages; 0 = never
//   spans                 cells of consecutive positions that the same sequences share:
//     i32 first           position of the first one
//     u32 n_cells, n_ids
//     i32 [n_ids]         the sequences
//   snapshot              docs/FORMAT.md, section 16
//
// Numbers have the byte order of the machine, as in the rest of llama.cpp's states. In a hybrid
// model llama.cpp's state of the recurrent layers follows.
//
// SPDX-License-Identifier: Apache-2.0
#include <llama-batch.h>
#include <llama-cparams.h>
#include <llama-io.h>
#include <llama-memory-recurrent.h>

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "lowkey-kv.h"

namespace lowkey {
namespace {

constexpr uint32_t kMagic = 0x766b6b6c;  // "lkkv"
constexpr uint32_t kVersion = 2;

struct Span {
    llama_pos first;
    uint32_t n_cells;
    std::vector<llama_seq_id> ids;
};

template <typename T>
void put(llama_io_write_i &io, T value) {
    io.write(&value, sizeof value);
}
template <typename T>
T get(llama_io_read_i &io) {
    T value;
    io.read(&value, sizeof value);
    return value;
}

[[noreturn]] void damaged(const std::string &what) {
    throw std::runtime_error("lowkey: the saved state is damaged: " + what);
}

// Cells of all sequences of a state, in the order of the cells.
std::vector<Span> spans_of(const llama_kv_cells &cells, const std::vector<int32_t> &sequences) {
    std::vector<Span> spans;
    for (uint32_t i = 0; i < cells.size(); ++i) {
        if (cells.is_empty(i))
            continue;
        std::vector<llama_seq_id> ids;
        for (const int32_t sequence : sequences) {
            if (cells.seq_has(i, sequence))
                ids.push_back(sequence);
        }
        if (ids.empty())
            continue;
        const llama_pos position = cells.pos_get(i);
        if (!spans.empty()) {
            Span &last = spans.back();
            if (last.ids == ids && last.first + static_cast<llama_pos>(last.n_cells) == position) {
                ++last.n_cells;
                continue;
            }
        }
        spans.push_back(Span{position, 1, std::move(ids)});
    }
    return spans;
}

// Reads and checks all but the snapshot: each sequence has the positions 0 .. n - 1, once.
struct Header {
    std::vector<int32_t> sequences;
    std::vector<uint64_t> freed_lengths;  // for each sequence
    std::vector<Span> spans;
    uint64_t snapshot_bytes;
};

std::vector<int32_t> read_sequences(llama_io_read_i &io, uint32_t n_sequences) {
    std::vector<int32_t> sequences;
    for (uint32_t i = 0; i < n_sequences; ++i) {
        const int32_t sequence = get<int32_t>(io);
        if (sequence < 0 || sequence >= LLAMA_MAX_SEQ ||
            std::find(sequences.begin(), sequences.end(), sequence) != sequences.end())
            damaged("sequence " + std::to_string(sequence));
        sequences.push_back(sequence);
    }
    return sequences;
}

Span read_span(llama_io_read_i &io, const std::vector<int32_t> &sequences) {
    Span span;
    span.first = get<int32_t>(io);
    span.n_cells = get<uint32_t>(io);
    const uint32_t n_ids = get<uint32_t>(io);
    if (span.first < 0 || span.n_cells == 0 || n_ids == 0 || n_ids > sequences.size())
        damaged("cells at position " + std::to_string(span.first));
    for (uint32_t i = 0; i < n_ids; ++i) {
        const llama_seq_id id = get<int32_t>(io);
        if (std::find(sequences.begin(), sequences.end(), id) == sequences.end() ||
            std::find(span.ids.begin(), span.ids.end(), id) != span.ids.end())
            damaged("cells of sequence " + std::to_string(id));
        span.ids.push_back(id);
    }
    return span;
}

// The number of tokens of a sequence.
uint64_t length_of(const std::vector<Span> &spans, int32_t sequence) {
    std::vector<std::pair<llama_pos, uint32_t>> parts;
    for (const Span &span : spans) {
        if (std::find(span.ids.begin(), span.ids.end(), sequence) != span.ids.end())
            parts.emplace_back(span.first, span.n_cells);
    }
    std::sort(parts.begin(), parts.end());
    uint64_t length = 0;
    for (const auto &[first, n_cells] : parts) {
        if (static_cast<uint64_t>(first) != length)
            damaged("positions of sequence " + std::to_string(sequence));
        length += n_cells;
    }
    return length;
}

Header read_header(llama_io_read_i &io, uint32_t n_cells) {
    if (get<uint32_t>(io) != kMagic || get<uint32_t>(io) != kVersion)
        throw std::runtime_error(
            "lowkey: the saved state is not one of lowkey, or one of another version");
    Header header;
    const uint32_t n_sequences = get<uint32_t>(io), n_spans = get<uint32_t>(io);
    header.snapshot_bytes = get<uint64_t>(io);
    if (n_sequences > LLAMA_MAX_SEQ)
        damaged(std::to_string(n_sequences) + " sequences");
    header.sequences = read_sequences(io, n_sequences);
    for (uint32_t i = 0; i < n_sequences; ++i)
        header.freed_lengths.push_back(get<uint64_t>(io));
    uint64_t n_used = 0;
    for (uint32_t i = 0; i < n_spans; ++i) {
        header.spans.push_back(read_span(io, header.sequences));
        n_used += header.spans.back().n_cells;
        if (n_used > n_cells)
            throw std::runtime_error("lowkey: the saved state has more tokens than the " +
                                     std::to_string(n_cells) + " of the context");
    }
    return header;
}

// Callbacks of a snapshot. llama.cpp's readers and writers throw; the sentence waits here.
struct Target {
    llama_io_write_i &io;
    std::string sentence;
};
int32_t write_snapshot(void *user, const void *data, size_t n_bytes) {
    Target &target = *static_cast<Target *>(user);
    try {
        target.io.write(data, n_bytes);
        return 0;
    } catch (const std::exception &error) {
        target.sentence = error.what();
        return 1;
    }
}

struct Source {
    llama_io_read_i &io;
    uint64_t left_bytes;
    std::string sentence;
};
int64_t read_snapshot(void *user, void *data, size_t n_bytes) {
    Source &source = *static_cast<Source *>(user);
    const size_t n = static_cast<size_t>(std::min<uint64_t>(n_bytes, source.left_bytes));
    try {
        if (n > 0)
            source.io.read(data, n);
        source.left_bytes -= n;
        return static_cast<int64_t>(n);
    } catch (const std::exception &error) {
        source.sentence = error.what();
        return -1;
    }
}

// Occupies cells for the tokens of a state.
void place(Cells &cells, const std::vector<Span> &spans) {
    uint32_t n_cells = 0;
    for (const Span &span : spans)
        n_cells += span.n_cells;
    llama_batch_allocr allocator(/*n_pos_per_embd=*/1);
    llama_ubatch ubatch = allocator.ubatch_reserve(n_cells, 1);
    std::vector<Span> owned = spans;  // a ubatch points to ids that it may write to
    uint32_t i = 0;
    for (Span &span : owned) {
        for (uint32_t k = 0; k < span.n_cells; ++k, ++i) {
            ubatch.pos[i] = span.first + static_cast<llama_pos>(k);
            ubatch.n_seq_id[i] = static_cast<int32_t>(span.ids.size());
            ubatch.seq_id[i] = span.ids.data();
        }
    }
    ubatch.seq_id_unq[0] = owned.front().ids.front();
    if (!cells.place(ubatch))
        throw std::runtime_error("the context has no " + std::to_string(n_cells) + " free cells");
}

}  // namespace

void KvCache::write_store(llama_io_write_i &io, llama_seq_id sequence) const {
    store_.commit();
    if (!store_.fault().empty())
        throw std::runtime_error("lowkey: no state is saved, since a step failed: " +
                                 store_.fault());
    std::vector<int32_t> sequences = store_.sequences();
    if (sequence >= 0)
        sequences =
            store_.length(sequence) ? std::vector<int32_t>{sequence} : std::vector<int32_t>{};
    const std::vector<Span> spans = spans_of(cells_->read(), sequences);
    put(io, kMagic);
    put(io, kVersion);
    put(io, static_cast<uint32_t>(sequences.size()));
    put(io, static_cast<uint32_t>(spans.size()));
    put(io, sequences.empty() ? uint64_t{0} : store_.snapshot_bytes(sequences));
    for (const int32_t number : sequences)
        put(io, number);
    for (const int32_t number : sequences)
        put(io, store_.freed_length(number));
    for (const Span &span : spans) {
        put(io, static_cast<int32_t>(span.first));
        put(io, span.n_cells);
        put(io, static_cast<uint32_t>(span.ids.size()));
        for (const llama_seq_id id : span.ids)
            put(io, static_cast<int32_t>(id));
    }
    if (sequences.empty())
        return;
    Target target{io, {}};
    try {
        store_.save(sequences, write_snapshot, &target);
    } catch (const std::exception &error) {
        throw std::runtime_error("lowkey: " +
                                 (target.sentence.empty() ? error.what() : target.sentence));
    }
}

void KvCache::read_store(llama_io_read_i &io, llama_seq_id sequence) {
    store_.commit();
    if (sequence >= 0)
        seq_rm(sequence, -1, -1);
    else
        clear(true);
    Header header = read_header(io, n_cells_);
    if (sequence >= 0) {
        if (header.sequences.size() > 1)
            throw std::runtime_error("lowkey: the saved state has several sequences, not one");
        for (int32_t &number : header.sequences)
            number = sequence;
        for (Span &span : header.spans)
            span.ids.assign(1, sequence);
    }
    if (header.sequences.empty())
        return;
    for (const int32_t number : header.sequences) {
        if (length_of(header.spans, number) == 0)
            damaged("sequence " + std::to_string(number) + " has no cells");
    }
    Source source{io, header.snapshot_bytes, {}};
    try {
        store_.load(header.sequences, header.freed_lengths, read_snapshot, &source);
        if (source.left_bytes != 0)
            damaged(std::to_string(source.left_bytes) + " bytes follow the snapshot");
        for (const int32_t number : header.sequences) {
            if (store_.length(number) != length_of(header.spans, number))
                damaged("cells and tokens of sequence " + std::to_string(number));
        }
        place(*cells_, header.spans);
    } catch (const std::exception &error) {
        for (const int32_t number : header.sequences) {
            (void)seq_rm(number, -1, -1);
            store_.remove(number);
        }
        throw std::runtime_error("lowkey: " +
                                 (source.sentence.empty() ? error.what() : source.sentence));
    }
}

// Partial states are what a host keeps of a sequence to go back to: those of recurrent layers,
// since keys and values go back by seq_rm(). Without recurrent layers they are whole.
void KvCache::state_write(llama_io_write_i &io, llama_seq_id sequence,
                          llama_state_seq_flags flags) const {
    const bool is_partial = (flags & LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY) != 0;
    if (recurrent_ == nullptr || !is_partial)
        write_store(io, sequence);
    if (recurrent_ != nullptr)
        recurrent_->state_write(io, sequence, flags);
}

void KvCache::state_read(llama_io_read_i &io, llama_seq_id sequence, llama_state_seq_flags flags) {
    const bool is_partial = (flags & LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY) != 0;
    if (recurrent_ == nullptr || !is_partial)
        read_store(io, sequence);
    if (recurrent_ == nullptr)
        return;
    try {
        recurrent_->state_read(io, sequence, flags);
        for (const int32_t number : store_.sequences()) {
            if (!is_partial && (sequence < 0 || number == sequence) &&
                recurrent_->seq_pos_max(number) + 1 !=
                    static_cast<llama_pos>(store_.length(number)))
                damaged("recurrent layers of sequence " + std::to_string(number));
        }
    } catch (...) {
        if (sequence >= 0)
            (void)seq_rm(sequence, -1, -1);
        else
            clear(true);
        throw;
    }
}

}  // namespace lowkey
