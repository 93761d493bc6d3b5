// Page files: golden ones come out again byte for byte, damaged ones are refused.
//
//   test_page_file GOLDEN [--full]
//
// SPDX-License-Identifier: Apache-2.0
#include "cases.h"
#include "suite.h"

#include <lowkey/base.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <cstdlib>
#include <string>

using namespace lk;

namespace {

std::string g_golden;

std::vector<uint8_t> golden(const lk_test::Case &c) {
    const std::vector<uint8_t> bytes =
        lk_test::read_file((g_golden + "/" + c.name + ".lkpage").c_str());
    if (bytes.empty())
        fail_msg("%s/%s.lkpage cannot be read", g_golden.c_str(), c.name);
    return bytes;
}

// Decodes from a buffer that ends where the bytes end; *out must not change on failure.
lk_status decode(const std::vector<uint8_t> &bytes, size_t n) {
    auto *exact = static_cast<uint8_t *>(std::malloc(n ? n : 1));
    assert_non_null(exact);
    if (n)
        std::memcpy(exact, bytes.data(), n);
    PageFile file = {};
    file.layout.head_dim = 4711;
    const lk_status status = page_file_decode(exact, n, &file);
    if (status != LK_OK) {
        assert_int_equal(file.layout.head_dim, 4711);
        assert_null(file.payload);
        assert_true(std::strlen(last_sentence()) > 10);
    }
    std::free(exact);
    return status;
}

void seal(std::vector<uint8_t> *bytes) {
    const uint64_t body = XXH3_64bits(bytes->data() + 72, bytes->size() - 72);
    std::memcpy(bytes->data() + 56, &body, 8);
    std::memset(bytes->data() + 64, 0, 8);
    const uint64_t header = XXH3_64bits(bytes->data(), 72);
    std::memcpy(bytes->data() + 64, &header, 8);
}

void golden_files_come_out_again(void **) {
    for (const lk_test::Case &c : lk_test::cases()) {
        const std::vector<uint8_t> want = golden(c);
        const std::vector<uint8_t> have = lk_test::pack_case(c, c.seed).file();
        if (want != have)
            fail_msg("%s: today's packer writes other bytes", c.name);
        PageFile file;
        assert_int_equal(page_file_decode(want.data(), want.size(), &file), LK_OK);
        assert_int_equal(page_file_bytes(file), want.size());
        std::vector<uint8_t> again(want.size());
        page_file_encode(file, again.data());
        assert_true(again == want);
    }
}

void the_header_lies_as_documented(void **) {
    const std::vector<uint8_t> bytes = golden(*lk_test::find_case("key-mixed-f8"));
    const uint8_t want[48] = {'L', 'K', 'P', 'G', 1, 0, 72, 0, 0, 1, 2, 0, 96, 0, 128, 0,
                              64,  0,   0,   0,   0, 0, 1,  0, 2, 0, 1, 0, 1,  0, 1,   0,
                              1,   0,   0,   0,   0, 0, 0,  0, 0, 0, 0, 0, 0,  0, 0,   0};
    assert_memory_equal(bytes.data(), want, 40);
    uint64_t counts[2];
    std::memcpy(counts, bytes.data() + 40, sizeof counts);
    assert_int_equal(counts[0], 2 * 128 * (8 + 2 * 4 + 3 + 2 + 1));
    assert_int_equal(counts[1], 2 * 96 * 2);
    assert_int_equal(bytes.size(), 72 + counts[0] + counts[1] + 96);
}

void every_flipped_bit_of_a_header_is_refused(void **) {
    for (const lk_test::Case &c : lk_test::cases()) {
        std::vector<uint8_t> bytes = golden(c);
        for (size_t i = 0; i < kPageFileHeaderBytes; ++i)
            for (uint32_t bit = 0; bit < 8; ++bit) {
                bytes[i] = static_cast<uint8_t>(bytes[i] ^ 1u << bit);
                assert_int_equal(decode(bytes, bytes.size()),
                                 i == 4 || i == 5 ? LK_E_MISMATCH : LK_E_CORRUPT);
                bytes[i] = static_cast<uint8_t>(bytes[i] ^ 1u << bit);
            }
        assert_int_equal(decode(bytes, bytes.size()), LK_OK);
    }
}

void every_header_byte_with_every_value_is_refused(void **) {
    std::vector<uint8_t> bytes = golden(*lk_test::find_case("key-mixed-all"));
    for (size_t i = 0; i < kPageFileHeaderBytes; ++i) {
        const uint8_t right = bytes[i];
        for (uint32_t v = 0; v < 256; ++v)
            if (v != right) {
                bytes[i] = static_cast<uint8_t>(v);
                assert_int_not_equal(decode(bytes, bytes.size()), LK_OK);
            }
        bytes[i] = right;
    }
}

void flipped_bodies_are_refused(void **) {
    for (const lk_test::Case &c : lk_test::cases()) {
        std::vector<uint8_t> bytes = golden(c);
        for (size_t i = kPageFileHeaderBytes; i < bytes.size();
             i += lk_test::full_grid() ? 1 : 41) {
            bytes[i] ^= 0x10;
            assert_int_equal(decode(bytes, bytes.size()), LK_E_CORRUPT);
            bytes[i] ^= 0x10;
        }
    }
}

void every_prefix_and_every_tail_is_refused(void **) {
    for (const lk_test::Case &c : lk_test::cases()) {
        std::vector<uint8_t> bytes = golden(c);
        for (size_t n = 0; n < bytes.size(); ++n)
            assert_int_equal(decode(bytes, n), LK_E_CORRUPT);
        for (const uint8_t tail : {uint8_t{0}, uint8_t{1}}) {
            std::vector<uint8_t> longer = bytes;
            longer.push_back(tail);
            assert_int_equal(decode(longer, longer.size()), LK_E_CORRUPT);
            seal(&longer);
            assert_int_equal(decode(longer, longer.size()), LK_E_CORRUPT);
        }
    }
    PageFile file;
    assert_int_equal(page_file_decode(nullptr, 0, &file), LK_E_CORRUPT);
}

struct Lie {
    const char *name;
    const char *page;
    size_t offset;
    std::vector<uint8_t> bytes;
};

// Hashes fit in each of these; what is wrong is what they say.
void lies_under_a_valid_hash_are_refused(void **) {
    const size_t key2_minima = 72 + payload_bytes(lk_test::find_case("key-2")->layout) + 64;
    const PageLayout f8 = lk_test::find_case("key-2-f8")->layout;
    const size_t f8_ranges = 72 + payload_bytes(f8);
    const size_t f8_minima = f8_ranges + minima_offset_bytes(f8);
    const PageLayout kitty = lk_test::find_case("kitty-query")->layout;
    const size_t own = 72 + payload_bytes(kitty) + permutation_offset_bytes(kitty);
    const PageLayout &wide = lk_test::find_case("kitty-query-head272")->layout;
    const size_t wide_own = 72 + payload_bytes(wide) + permutation_offset_bytes(wide);
    const Lie lies[] = {
        {"header bytes", "key-2", 6, {73}},
        {"side", "key-2", 8, {2}},
        {"side of values", "key-2", 8, {1}},
        {"axis 0", "key-2", 9, {0}},
        {"axis 3", "key-2", 9, {3}},
        {"metadata 0", "key-2", 10, {0}},
        {"metadata 3", "key-2", 10, {3}},
        {"metadata of other size", "key-2", 10, {2}},
        {"permutes 2", "key-2", 11, {2}},
        {"permutes without space", "key-2", 11, {1}},
        {"head_dim 0", "key-2", 12, {0, 0}},
        {"head_dim 65535", "key-2", 12, {255, 255}},
        {"page_tokens 0", "key-2", 14, {0, 0}},
        {"page_tokens 64", "key-2", 14, {64, 0}},
        {"group 0", "key-2", 16, {0, 0}},
        {"group 16", "key-2", 16, {16, 0}},
        {"group 65535", "key-2", 16, {255, 255}},
        {"shared 17", "key-2", 18, {17, 0}},
        {"shared of values", "value-2", 18, {1, 0}},
        {"strips", "key-2", 28, {3, 0}},
        {"strips elsewhere", "key-2", 24, {2, 0, 0, 0, 0, 0}},
        {"flag 1", "key-2", 32, {2}},
        {"flag without space", "key-2", 32, {1}},
        {"flag and own permutation", "kitty-query", 32, {1}},
        {"reserved", "key-2", 36, {0, 0, 1, 0}},
        {"payload bytes", "key-2", 40, {1}},
        {"payload bytes wrap", "key-2", 40, {255, 255, 255, 255, 255, 255, 255, 255}},
        {"metadata bytes", "key-2", 48, {0, 0}},
        {"raw that permutes", "key-16", 11, {1}},
        {"raw without group", "key-16", 16, {0, 0}},
        {"raw and shared", "key-16", 18, {1, 0}},
        {"raw infinity", "key-16", 72, {0, 0x7C}},
        {"raw NaN", "key-16", 74, {1, 0xFE}},
        {"infinity among planes", "key-mixed-all", 72, {0, 0xFC}},
        {"negative range", "key-2", key2_minima - 64, {0, 0x80}},
        {"infinite range", "key-2", key2_minima - 64, {0, 0x7C}},
        {"minus zero", "key-2", key2_minima, {0, 0x80}},
        {"NaN minimum", "key-2", key2_minima, {1, 0x7C}},
        {"negative f8 range", "key-2-f8", f8_ranges, {0x81}},
        {"NaN f8 range", "key-2-f8", f8_ranges, {0x80}},
        {"NaN f8 minimum", "key-2-f8", f8_minima, {0x80}},
        {"channel twice", "kitty-query", own, {5, 5}},
        {"channel beyond", "kitty-query", own, {64}},
        {"channel beyond, of two bytes", "kitty-query-head272", wide_own, {16, 1}},
        {"channel twice, of two bytes", "kitty-query-head272", wide_own, {5, 1, 5, 1}},
        {"few channels in version 2", "key-2", 4, {2}},
        {"many channels in version 1", "kitty-head512", 4, {1}},
    };
    for (const Lie &lie : lies) {
        std::vector<uint8_t> bytes = golden(*lk_test::find_case(lie.page));
        std::memcpy(bytes.data() + lie.offset, lie.bytes.data(), lie.bytes.size());
        seal(&bytes);
        if (decode(bytes, bytes.size()) != LK_E_CORRUPT)
            fail_msg("%s in %s was not refused", lie.name, lie.page);
    }
    std::vector<uint8_t> honest = golden(*lk_test::find_case("key-2"));
    seal(&honest);
    assert_int_equal(decode(honest, honest.size()), LK_OK);
    honest[4] = 3;
    seal(&honest);
    assert_int_equal(decode(honest, honest.size()), LK_E_MISMATCH);
    assert_non_null(std::strstr(last_sentence(), "version 3"));
}

void a_page_has_one_permutation(void **) {
    std::vector<uint8_t> bytes = golden(*lk_test::find_case("kitty-query"));
    for (uint32_t channel = 0; channel < 64; ++channel)
        bytes.push_back(static_cast<uint8_t>(channel));
    bytes[32] = 1;
    seal(&bytes);
    assert_int_equal(decode(bytes, bytes.size()), LK_E_CORRUPT);
    assert_non_null(std::strstr(last_sentence(), "two permutations"));
    bytes = golden(*lk_test::find_case("key-mixed-all"));
    bytes.back() = bytes[bytes.size() - 2];
    seal(&bytes);
    assert_int_equal(decode(bytes, bytes.size()), LK_E_CORRUPT);
}

}  // namespace

int main(int argc, char **argv) {
    lk_test::read_arguments(argc, argv);
    for (int i = 1; i < argc; ++i)
        if (argv[i][0] != '-')
            g_golden = argv[i];
    const CMUnitTest tests[] = {
        cmocka_unit_test(golden_files_come_out_again),
        cmocka_unit_test(the_header_lies_as_documented),
        cmocka_unit_test(every_flipped_bit_of_a_header_is_refused),
        cmocka_unit_test(every_header_byte_with_every_value_is_refused),
        cmocka_unit_test(flipped_bodies_are_refused),
        cmocka_unit_test(every_prefix_and_every_tail_is_refused),
        cmocka_unit_test(lies_under_a_valid_hash_are_refused),
        cmocka_unit_test(a_page_has_one_permutation),
    };
    return cmocka_run_group_tests_name("page files", tests, nullptr, nullptr);
}
