// SPDX-License-Identifier: Apache-2.0
#include "format/pagefile.h"

#include "format/bulk.h"
#include "format/codec.h"
#include "format/layout_record.h"

#include <cstring>

namespace lk {

namespace {

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the header is copied as it lies");

constexpr uint32_t kHasFixedPermutation = 1;

struct Header {
    char magic[4];
    uint16_t version;
    uint16_t header_bytes;
    LayoutRecord layout;
    uint32_t flags;
    uint32_t reserved;
    uint64_t payload_bytes;
    uint64_t metadata_bytes;
    uint64_t body_hash;
    uint64_t header_hash;
};
static_assert(sizeof(Header) == kPageFileHeaderBytes, "the table of docs/FORMAT.md");

constexpr char kPageFileMagic[4] = {'L', 'K', 'P', 'G'};

uint64_t hash_header(Header header) {
    header.header_hash = 0;
    return hash_bytes(&header, sizeof header);
}

Header make_header(const PageFile &file) {
    const PageLayout &layout = file.layout;
    Header header = {};
    std::memcpy(header.magic, kPageFileMagic, sizeof kPageFileMagic);
    header.version = LK_FORMAT_VERSION_OF(layout.head_dim);
    header.header_bytes = kPageFileHeaderBytes;
    header.layout = record_of(layout);
    header.flags = file.fixed_permutation ? kHasFixedPermutation : 0;
    header.payload_bytes = payload_bytes(layout);
    header.metadata_bytes = metadata_bytes(layout);
    return header;
}

lk_status check_fields(const Header &h) {
    if (!names_layout(h.layout))
        return fail(LK_E_CORRUPT,
                    "page file: side %u, axis %u, metadata %u, permutes %u: one is out of range",
                    h.layout.side, h.layout.axis, h.layout.metadata, h.layout.permutes);
    if (h.flags & ~kHasFixedPermutation || h.reserved)
        return fail(LK_E_CORRUPT, "page file: unknown flags %#x or reserved bytes %#x", h.flags,
                    h.reserved);
    if (h.flags && h.layout.permutes)
        return fail(LK_E_CORRUPT, "page file: two permutations, the page's own and a fixed one");
    return LK_OK;
}

lk_status read_header(const uint8_t *bytes, uint64_t n_bytes, Header *header) {
    if (!bytes || n_bytes < sizeof *header)
        return fail(LK_E_CORRUPT, "page file: %llu bytes, the header alone has %llu",
                    static_cast<unsigned long long>(n_bytes),
                    static_cast<unsigned long long>(sizeof *header));
    std::memcpy(header, bytes, sizeof *header);
    if (std::memcmp(header->magic, kPageFileMagic, sizeof kPageFileMagic) != 0)
        return fail(LK_E_CORRUPT, "page file: does not start with LKPG");
    if (!header->version || header->version > LK_FORMAT_VERSION)
        return fail(LK_E_MISMATCH, "page file: format version %u, this library reads 1 to %u",
                    header->version, LK_FORMAT_VERSION);
    if (header->header_bytes != sizeof *header)
        return fail(LK_E_CORRUPT, "page file: header of %u bytes, version %u has %llu",
                    header->header_bytes, header->version,
                    static_cast<unsigned long long>(sizeof *header));
    if (header->header_hash != hash_header(*header))
        return fail(LK_E_CORRUPT, "page file: the header does not fit its hash");
    return check_fields(*header);
}

lk_status check_sizes(const Header &h, const PageLayout &layout, uint64_t n_bytes) {
    if (const char *error = layout_error(layout))
        return fail(LK_E_CORRUPT, "page file: %s", error);
    if (h.version != LK_FORMAT_VERSION_OF(layout.head_dim))
        return fail(LK_E_CORRUPT, "page file: head_dim is %u, which version %u does not have",
                    layout.head_dim, h.version);
    if (h.payload_bytes != payload_bytes(layout) || h.metadata_bytes != metadata_bytes(layout))
        return fail(LK_E_CORRUPT,
                    "page file: %llu payload and %llu metadata bytes, the layout has %llu and %llu",
                    static_cast<unsigned long long>(h.payload_bytes),
                    static_cast<unsigned long long>(h.metadata_bytes),
                    static_cast<unsigned long long>(payload_bytes(layout)),
                    static_cast<unsigned long long>(metadata_bytes(layout)));
    const uint64_t whole = sizeof h + h.payload_bytes + h.metadata_bytes +
                           (h.flags ? permutation_bytes(layout.head_dim) : 0);
    if (n_bytes != whole)
        return fail(LK_E_CORRUPT, "page file: %llu bytes, its header says %llu",
                    static_cast<unsigned long long>(n_bytes),
                    static_cast<unsigned long long>(whole));
    return LK_OK;
}

lk_status check_parameters(const PageLayout &layout, const uint8_t *metadata) {
    const uint64_t n = n_parameters(layout);
    const uint8_t *ranges = metadata + ranges_offset_bytes(layout);
    const uint8_t *minima = metadata + minima_offset_bytes(layout);
    const bool is_f8 = layout.metadata == Metadata::kF8;
    const uint64_t bad_ranges = count_bad(is_f8 ? Stored::kF8Range : Stored::kF16Range, ranges, n);
    if (bad_ranges)
        return fail(LK_E_CORRUPT, "page: %llu ranges are negative or not finite",
                    static_cast<unsigned long long>(bad_ranges));
    const uint64_t bad_minima =
        count_bad(is_f8 ? Stored::kF8Minimum : Stored::kF16Minimum, minima, n);
    if (bad_minima)
        return fail(LK_E_CORRUPT, "page: %llu minima are -0 or not finite",
                    static_cast<unsigned long long>(bad_minima));
    return LK_OK;
}

lk_status check_raw_values(const PageLayout &layout, const uint8_t *payload) {
    const uint64_t n =
        static_cast<uint64_t>(layout.strips[kPlane16]) * LK_STRIP_CHANNELS * layout.page_tokens;
    const uint64_t n_bad = count_bad(Stored::kF16Value, payload, n);
    if (n_bad)
        return fail(LK_E_CORRUPT, "page: %llu 16-bit values are not finite",
                    static_cast<unsigned long long>(n_bad));
    return LK_OK;
}

}  // namespace

bool is_permutation(const uint8_t *permutation, uint32_t head_dim) {
    bool seen[LK_MAX_HEAD_DIM] = {};
    for (uint32_t slot = 0; slot < head_dim; ++slot) {
        const uint32_t channel = load_channel(permutation, head_dim, slot);
        if (channel >= head_dim || seen[channel])
            return false;
        seen[channel] = true;
    }
    return true;
}

lk_status check_page_contents(const PageFile &half) {
    const PageLayout &layout = half.layout;
    const uint8_t *own =
        layout.permutes ? half.metadata + permutation_offset_bytes(layout) : half.fixed_permutation;
    if (own && !is_permutation(own, layout.head_dim))
        return fail(LK_E_CORRUPT, "page: the permutation does not hold every channel once");
    if (half.metadata) {
        const lk_status status = check_parameters(layout, half.metadata);
        if (status != LK_OK)
            return status;
    }
    return check_raw_values(layout, half.payload);
}

uint64_t page_file_bytes(const PageFile &file) {
    return sizeof(Header) + payload_bytes(file.layout) + metadata_bytes(file.layout) +
           (file.fixed_permutation ? permutation_bytes(file.layout.head_dim) : 0);
}

void page_file_encode(const PageFile &file, uint8_t *bytes) {
    Header header = make_header(file);
    uint8_t *body = bytes + sizeof header;
    std::memcpy(body, file.payload, header.payload_bytes);
    if (header.metadata_bytes)
        std::memcpy(body + header.payload_bytes, file.metadata, header.metadata_bytes);
    if (file.fixed_permutation)
        std::memcpy(body + header.payload_bytes + header.metadata_bytes, file.fixed_permutation,
                    permutation_bytes(file.layout.head_dim));
    header.body_hash = hash_bytes(body, page_file_bytes(file) - sizeof header);
    header.header_hash = hash_header(header);
    std::memcpy(bytes, &header, sizeof header);
}

lk_status page_file_decode(const uint8_t *bytes, uint64_t n_bytes, PageFile *out) {
    Header header;
    lk_status status = read_header(bytes, n_bytes, &header);
    if (status != LK_OK)
        return status;
    PageFile file;
    file.layout = layout_of(header.layout);
    status = check_sizes(header, file.layout, n_bytes);
    if (status != LK_OK)
        return status;
    const uint8_t *body = bytes + sizeof header;
    if (header.body_hash != hash_bytes(body, n_bytes - sizeof header))
        return fail(LK_E_CORRUPT,
                    "page file: payload, metadata or permutation do not fit their hash");
    file.payload = body;
    file.metadata = header.metadata_bytes ? body + header.payload_bytes : nullptr;
    file.fixed_permutation =
        header.flags ? body + header.payload_bytes + header.metadata_bytes : nullptr;
    status = check_page_contents(file);
    if (status == LK_OK)
        *out = file;
    return status;
}

}  // namespace lk
