// SPDX-License-Identifier: Apache-2.0
#include "core/snapshot/reader.h"

#include "core/snapshot/stream.h"
#include "format/bulk.h"
#include "plan/footprint.h"

namespace lk {

lk_status SnapshotReader::take(uint64_t n_bytes, const uint8_t **out) {
    const lk_status status = source_.take(n_bytes, out);
    if (!status)
        done_bytes_ += n_bytes;
    return status;
}

lk_status SnapshotReader::take_chunk(ChunkKind kind, uint64_t least_bytes, uint64_t most_bytes,
                                     const uint8_t **body, uint64_t *n_bytes) {
    const uint64_t left = header_.total_bytes - done_bytes_;
    if (left < sizeof(ChunkHeader))
        return fail_short(sizeof(ChunkHeader), left);
    const uint8_t *bytes = nullptr;
    LK_TRY(take(sizeof(ChunkHeader), &bytes));
    ChunkHeader header;
    lk_status status = read_chunk_header(bytes, kind, n_chunks_++, left - sizeof header, &header);
    if (!status && (header.body_bytes < least_bytes || header.body_bytes > most_bytes))
        status =
            fail(LK_E_CORRUPT, "snapshot: chunk %llu has %llu bytes, not %llu to %llu",
                 ull{header.number}, ull{header.body_bytes}, ull{least_bytes}, ull{most_bytes});
    if (!status)
        status = take(header.body_bytes, body);
    *n_bytes = header.body_bytes;
    return status || header.number == chunk_ahead_ ? status : check_chunk_body(header, *body);
}

lk_status SnapshotReader::keep_chunk(ChunkKind kind, uint64_t least_bytes, uint64_t most_bytes,
                                     Array<uint8_t> *out) {
    const uint8_t *body = nullptr;
    uint64_t n_bytes = 0;
    LK_TRY(take_chunk(kind, least_bytes, most_bytes, &body, &n_bytes));
    return out->assign(body, n_bytes)
               ? LK_OK
               : fail(LK_E_NOMEM, "no memory for a chunk of %llu bytes", ull{n_bytes});
}

lk_status SnapshotReader::open() {
    const uint8_t *bytes = nullptr;
    LK_TRY(take(sizeof header_, &bytes));
    LK_TRY(read_header(bytes, source_.known_bytes(), &header_));
    if (header_.total_bytes < sizeof header_)
        return fail_short(sizeof header_, header_.total_bytes);
    LK_TRY(keep_chunk(ChunkKind::kModel, header_.fingerprint_bytes, header_.fingerprint_bytes,
                      &fingerprint_));
    LK_TRY(keep_chunk(ChunkKind::kPlan, 1, kMaxPlanText, &plan_text_));
    if (hash_bytes(plan_text_.data(), plan_text_.size()) != header_.plan_hash)
        return fail(LK_E_CORRUPT, "snapshot: the plan does not fit its hash");
    constexpr uint64_t kMostClass = sizeof(FormatRecord) + kMaxPermutationBytes;
    LK_TRY(keep_chunk(ChunkKind::kClasses, 0, header_.n_formats * kMostClass, &format_bytes_));
    LK_TRY(read_formats(format_bytes_.data(), format_bytes_.size(), header_.n_formats, &formats_));
    if (!header_.n_states)
        return LK_OK;
    const uint8_t *sizes = nullptr;
    uint64_t n_bytes = 0;
    LK_TRY(take_chunk(ChunkKind::kStateSizes, 0, kMaxStates * sizeof(uint64_t), &sizes, &n_bytes));
    return read_state_sizes(sizes, n_bytes, header_.n_states, &state_bytes_, &version_bytes_);
}

// Chunks that the plan has and the tokens hold, in order where the plan leaves them so.
lk_status SnapshotReader::check_chunks_of_sequence() const {
    const SequenceRecord &record = part_.record;
    const ChunkRule &rule = plan_->chunks;
    const bool has_any = record.flags & kHasChunks || record.deferral;
    const uint64_t sinks = plan_->sink_tokens;
    const uint64_t n_held =
        rule.tokens && record.n_tokens > sinks ? (record.n_tokens - sinks) / rule.tokens : 0;
    if ((has_any && !rule.tokens) || record.n_chunks > n_held)
        return fail(LK_E_CORRUPT,
                    "snapshot: sequence %llu of %llu tokens has deferral %u and %u chunks of %u "
                    "tokens",
                    ull{record.id}, ull{record.n_tokens}, record.deferral, record.n_chunks,
                    rule.tokens);
    for (uint32_t p = 0; !rule.reorder && p < record.n_chunks; ++p)
        if (part_.chunk_at(p) != p)
            return fail(LK_E_CORRUPT,
                        "snapshot: sequence %llu has chunk %u at index %u, the plan reorders none",
                        ull{record.id}, part_.chunk_at(p), p);
    return LK_OK;
}

// The runs give as many blocks as the tokens need.
lk_status SnapshotReader::check_blocks_of_sequence() const {
    const SequenceRecord &record = part_.record;
    constexpr uint64_t kMostTokens = uint64_t{1} << 48;
    uint64_t n_blocks = 0;
    for (uint32_t i = 0; i < record.n_runs; ++i) {
        const BlockRun run = part_.run(i);
        if (!run.n_blocks || run.first_block >= header_.n_blocks ||
            run.n_blocks > header_.n_blocks - run.first_block)
            return fail(LK_E_CORRUPT,
                        "snapshot: run %u of sequence %llu has blocks %llu to %llu + "
                        "%llu of %llu",
                        i, ull{record.id}, ull{run.first_block}, ull{run.first_block},
                        ull{run.n_blocks}, ull{header_.n_blocks});
        n_blocks += run.n_blocks;
        if (n_blocks > kMostTokens)
            break;
    }
    if (record.n_tokens > kMostTokens || n_blocks != block_count(*plan_, record.n_tokens))
        return fail(LK_E_CORRUPT, "snapshot: sequence %llu of %llu tokens has %llu blocks",
                    ull{record.id}, ull{record.n_tokens}, ull{n_blocks});
    return LK_OK;
}

lk_status SnapshotReader::next_sequence(const Plan &plan, const SequencePart **out) {
    plan_ = &plan;
    ++n_sequences_;
    const uint64_t most = header_.total_bytes;
    LK_TRY(keep_chunk(ChunkKind::kSequence, sizeof(SequenceRecord), most, &sequence_));
    LK_TRY(read_sequence(header_.version, sequence_.data(), sequence_.size(), allocator_, &part_));
    LK_TRY(check_blocks_of_sequence());
    LK_TRY(check_chunks_of_sequence());
    n_tokens_ += part_.record.n_tokens;
    block_of_sequence_ = block_of_run_ = 0;
    run_ = 0;
    *out = &part_;
    next_version_ = 0;
    if (!header_.n_states)
        return LK_OK;
    const uint8_t *versions = nullptr;
    uint64_t n_bytes = 0;
    LK_TRY(take_chunk(ChunkKind::kVersions, 0, kMaxVersions * sizeof(VersionRecord), &versions,
                      &n_bytes));
    return read_versions(versions, n_bytes, part_.record.n_tokens, &versions_);
}

// A version that sequences share is after the same tokens of each.
lk_status SnapshotReader::next_version(SnapshotVersion *out) {
    const VersionRecord &version = versions_[next_version_++];
    const uint64_t n_known = version_tokens_.size();
    if (version.number > n_known ||
        (version.number < n_known && version_tokens_[version.number] != version.n_tokens))
        return fail(LK_E_CORRUPT, "snapshot: version %llu after %llu tokens, the next one is %llu",
                    ull{version.number}, ull{version.n_tokens}, ull{n_known});
    *out = {version.number, version.n_tokens, version.number == n_known};
    next_state_byte_ = 0;
    return !out->is_new || version_tokens_.push(version.n_tokens)
               ? LK_OK
               : fail(LK_E_NOMEM, "no memory for a list of %llu versions", ull{n_known + 1});
}

lk_status SnapshotReader::next_states(SnapshotStates *out) {
    const uint8_t *body = nullptr;
    uint64_t n_bytes = 0;
    LK_TRY(take_chunk(ChunkKind::kStates, sizeof(StateRecord) + 1, kMaxPartBytes, &body, &n_bytes));
    StateRecord record;
    std::memcpy(&record, body, sizeof record);
    n_bytes -= sizeof record;
    if (record.number != version_tokens_.size() - 1 || record.first_byte != next_state_byte_ ||
        n_bytes % 16 || n_bytes > version_bytes_ - next_state_byte_)
        return fail(LK_E_CORRUPT,
                    "snapshot: bytes %llu + %llu of version %llu, not %llu of %llu of version %zu",
                    ull{record.first_byte}, ull{n_bytes}, ull{record.number}, ull{next_state_byte_},
                    ull{version_bytes_}, version_tokens_.size() - 1);
    next_state_byte_ += n_bytes;
    *out = {record.first_byte, n_bytes, body + sizeof record};
    return LK_OK;
}

// Shared blocks of a run come together, so that the time of a sequence follows its runs.
lk_status SnapshotReader::next_blocks(SnapshotBlocks *out) {
    const BlockRun run = part_.run(run_);
    const uint64_t number = run.first_block + block_of_run_;
    const uint64_t ordinal = block_of_sequence_;
    const uint64_t n_known = blocks_.size();
    if (number > n_known)
        return fail(LK_E_CORRUPT, "snapshot: sequence %llu has block %llu before block %llu",
                    ull{part_.record.id}, ull{number}, ull{n_known});
    const uint64_t left = run.n_blocks - block_of_run_;
    const bool is_new = number == n_known;
    *out = {number, is_new ? 1 : left < n_known - number ? left : n_known - number, is_new};
    block_of_sequence_ += out->n;
    block_of_run_ += out->n;
    if (block_of_run_ == run.n_blocks) {
        ++run_;
        block_of_run_ = 0;
    }
    if (!is_new)
        return check_shared(*out, ordinal);
    next_entry_ = 0;
    return LK_OK;
}

// Blocks that the sequence has from `ordinal` on are whole, where they were, and within it.
lk_status SnapshotReader::check_shared(const SnapshotBlocks &blocks, uint64_t ordinal) const {
    const KnownBlock &first = blocks_[blocks.number];
    const KnownBlock &last = blocks_[blocks.number + blocks.n - 1];
    if (first.first_token == block_first_token(*plan_, ordinal) &&
        first.n_tokens == block_capacity(*plan_, ordinal) && last.chain <= blocks.number &&
        last.first_token + last.n_tokens <= part_.record.n_tokens)
        return LK_OK;
    return fail(LK_E_CORRUPT,
                "snapshot: blocks %llu to %llu are no whole blocks of sequence %llu from its block "
                "%llu on",
                ull{blocks.number}, ull{blocks.number + blocks.n - 1}, ull{part_.record.id},
                ull{ordinal});
}

lk_status SnapshotReader::add_block(const BlockRecord &record) {
    const uint64_t number = blocks_.size();
    const uint64_t capacity = block_capacity(*plan_, block_of_sequence_ - 1);
    const bool follows =
        number && record.n_tokens == capacity && blocks_[number - 1].is_whole &&
        blocks_[number - 1].first_token + blocks_[number - 1].n_tokens == record.first_token;
    const uint64_t chain = follows ? blocks_[number - 1].chain : number;
    return blocks_.push({record.first_token, chain, record.n_tokens, record.n_tokens == capacity})
               ? LK_OK
               : fail(LK_E_NOMEM, "no memory for a list of %llu blocks", ull{number + 1});
}

// A block begins where the plan says and holds what the sequence has of it.
lk_status SnapshotReader::check_position(const BlockRecord &record) const {
    const uint64_t ordinal = block_of_sequence_ - 1;
    const uint64_t first = block_first_token(*plan_, ordinal);
    const uint64_t left = part_.record.n_tokens - first;
    const uint32_t capacity = block_capacity(*plan_, ordinal);
    const uint64_t n_tokens = left < capacity ? left : capacity;
    if (record.row != blocks_.size() || record.first_token != first || record.n_tokens != n_tokens)
        return fail(
            LK_E_CORRUPT,
            "snapshot: block %llu with %u tokens from %llu on, not block %zu with %llu from "
            "%llu on",
            ull{record.row}, record.n_tokens, ull{record.first_token}, blocks_.size(),
            ull{n_tokens}, ull{first});
    if (record.first_entry != next_entry_ ||
        record.n_entries > header_.n_entries - record.first_entry)
        return fail(LK_E_CORRUPT, "snapshot: block %llu goes on with entries %u + %u of %u",
                    ull{record.row}, record.first_entry, record.n_entries, header_.n_entries);
    const bool is_same = !next_entry_ || (record.n_packed == block_packed_ &&
                                          record.chunk_class == block_chunk_class_);
    if (!is_same || record.n_packed > header_.n_entries)
        return fail(LK_E_CORRUPT,
                    "snapshot: block %llu has %u packed entries of chunk class %u, and %u "
                    "of class %u",
                    ull{record.row}, block_packed_, block_chunk_class_, record.n_packed,
                    record.chunk_class);
    if (record.chunk_class && (!plan_->chunks.tokens || is_sink_block(*plan_, ordinal)))
        return fail(LK_E_CORRUPT, "snapshot: block %llu has chunk class %u, and no chunks",
                    ull{record.row}, record.chunk_class);
    return LK_OK;
}

lk_status SnapshotReader::next_part(BlockPart *out) {
    const uint8_t *body = nullptr;
    uint64_t n_bytes = 0;
    lk_status status =
        take_chunk(ChunkKind::kRows, sizeof(BlockRecord), kMaxPartBytes, &body, &n_bytes);
    if (!status && n_chunks_ - 1 == chunk_ahead_)
        *out = part_ahead_;
    else if (!status)
        status = read_block_part(header_.version, body, n_bytes, formats_, out);
    if (!status)
        status = check_position(out->record);
    if (status)
        return status;
    next_entry_ += out->record.n_entries;
    block_packed_ = out->record.n_packed;
    block_chunk_class_ = out->record.chunk_class;
    return next_entry_ == header_.n_entries ? add_block(out->record) : LK_OK;
}

// What is wrong with it next_part() says.
void SnapshotReader::look_ahead() { chunk_ahead_ = looks_good_ahead() ? n_chunks_ : UINT64_MAX; }

bool SnapshotReader::looks_good_ahead() {
    const uint64_t left = header_.total_bytes - done_bytes_;
    const uint8_t *bytes = source_.peek(sizeof(ChunkHeader));
    ChunkHeader header;
    if (left < sizeof header || !bytes || !is_chunk_of(ChunkKind::kRows, bytes) ||
        read_chunk_header(bytes, ChunkKind::kRows, n_chunks_, left - sizeof header, &header) ||
        !source_.peek(sizeof header + header.body_bytes))
        return false;
    const uint8_t *body = bytes + sizeof header;
    return !check_chunk_body(header, body) &&
           !read_block_part(header_.version, body, header.body_bytes, formats_, &part_ahead_);
}

lk_status SnapshotReader::finish() {
    if (n_sequences_ != header_.n_sequences || blocks_.size() != header_.n_blocks ||
        n_tokens_ != header_.n_tokens || version_tokens_.size() != header_.n_versions ||
        done_bytes_ != header_.total_bytes)
        return fail(LK_E_CORRUPT,
                    "snapshot: %zu blocks, %llu tokens, %zu versions and %llu bytes, its header "
                    "says %llu, %llu, %llu and %llu",
                    blocks_.size(), ull{n_tokens_}, version_tokens_.size(), ull{done_bytes_},
                    ull{header_.n_blocks}, ull{header_.n_tokens}, ull{header_.n_versions},
                    ull{header_.total_bytes});
    return source_.finish();
}

}  // namespace lk
