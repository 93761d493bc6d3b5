// Where the bytes of a snapshot go to and come from: memory and callbacks.
//
// SPDX-License-Identifier: Apache-2.0
#include "core/snapshot/stream.h"

#include "cache_rig.h"

#include <string>

namespace {

void memory_is_written_up_to_its_end(void **) {
    char bytes[8] = {};
    lk::MemorySink sink(bytes, sizeof bytes);
    uint8_t *first = sink.reserve(5);
    std::memcpy(first, "hello", 5);
    assert_int_equal(sink.put(3), LK_OK);  // a chunk may be shorter than its memory
    std::memcpy(sink.reserve(5), "lo wo", 5);
    assert_int_equal(sink.put(5), LK_OK);
    assert_memory_equal(bytes, "hello wo", 8);
    assert_null(sink.reserve(1));
    assert_non_null(sink.reserve(0));
}

void memory_is_read_where_it_is(void **) {
    const uint8_t bytes[6] = {1, 2, 3, 4, 5, 6};
    lk::MemorySource source(bytes, sizeof bytes);
    const uint8_t *out = nullptr;
    assert_int_equal(source.known_bytes(), 6);
    assert_int_equal(source.take(4, &out), LK_OK);
    assert_ptr_equal(out, bytes);
    assert_ptr_equal(source.peek(2), bytes + 4);
    assert_null(source.peek(3));
    assert_int_equal(source.finish(), LK_E_CORRUPT);
    sentence_has("2 bytes after its end");
    assert_int_equal(source.take(3, &out), LK_E_CORRUPT);
    sentence_has("ends where 3 more bytes must be, 2 are there");
    assert_int_equal(source.take(2, &out), LK_OK);
    assert_ptr_equal(out, bytes + 4);
    assert_int_equal(source.finish(), LK_OK);
    assert_int_equal(source.known_bytes(), 6);
}

void callbacks_get_whole_chunks(void **) {
    std::string written;
    const auto write = [](void *user, const void *data, size_t n_bytes) {
        auto *text = static_cast<std::string *>(user);
        text->append(static_cast<const char *>(data), n_bytes);
        return int32_t{text->size() > 6 ? 9 : 0};
    };
    CountedMemory memory;
    const lk::Allocator hooks = memory.hooks();
    {
        lk::CallbackSink sink(hooks, write, &written);
        memory.give(0);
        assert_null(sink.reserve(6));
        memory.give_all();
        std::memcpy(sink.reserve(6), "abcdef", 6);
        assert_int_equal(sink.put(4), LK_OK);
        assert_string_equal(written.c_str(), "abcd");
        assert_int_equal(sink.put(6), LK_E_IO);
        sentence_has("refused with 9");
        assert_int_equal(memory.n_calls, 1);  // one buffer for all chunks
    }
    assert_int_equal(memory.n_live, 0);
}

// A stream of n bytes that counts up, at most `at_once` at a time.
struct Stream {
    uint64_t n_left;
    uint64_t at_once;
    uint64_t next = 0;
    int64_t fault = 0;  // in place of the number of bytes

    static int64_t read(void *self, void *data, size_t n_bytes) {
        auto *stream = static_cast<Stream *>(self);
        if (stream->fault)
            return stream->fault;
        uint64_t n = n_bytes < stream->at_once ? n_bytes : stream->at_once;
        n = n < stream->n_left ? n : stream->n_left;
        for (uint64_t i = 0; i < n; ++i)
            static_cast<uint8_t *>(data)[i] = static_cast<uint8_t>(stream->next++);
        stream->n_left -= n;
        return static_cast<int64_t>(n);
    }
};

void callbacks_are_called_until_all_is_there(void **) {
    Stream stream{20, 3};
    lk::CallbackSource source(lk::default_allocator(), Stream::read, &stream, 20);
    const uint8_t *out = nullptr;
    assert_int_equal(source.known_bytes(), 20);
    assert_null(source.peek(1));
    assert_int_equal(source.take(10, &out), LK_OK);
    assert_int_equal(out[9], 9);
    assert_int_equal(source.take(7, &out), LK_OK);
    assert_int_equal(out[0], 10);
    assert_int_equal(source.take(4, &out), LK_E_CORRUPT);
    sentence_has("ends where 4 more bytes must be, 3 are there");
    assert_int_equal(source.finish(), LK_OK);
    stream.n_left = 1;
    assert_int_equal(source.finish(), LK_E_CORRUPT);
    sentence_has("bytes after its end");
}

void faults_of_a_callback_are_seen(void **) {
    Stream stream{20, 3};
    lk::CallbackSource source(lk::default_allocator(), Stream::read, &stream, 0);
    const uint8_t *out = nullptr;
    for (const int64_t fault : {int64_t{-5}, int64_t{21}}) {
        stream.fault = fault;
        assert_int_equal(source.take(20, &out), LK_E_IO);
    }
    sentence_has("gave 21");
    stream.fault = -1;
    assert_int_equal(source.finish(), LK_E_IO);
}

// A short stream that states a long chunk takes little memory.
void memory_grows_with_what_has_come(void **) {
    CountedMemory memory;
    const lk::Allocator hooks = memory.hooks();
    const uint8_t *out = nullptr;
    {
        Stream stream{100, 100};
        lk::CallbackSource source(hooks, Stream::read, &stream, 0);
        assert_int_equal(source.take(uint64_t{1} << 60, &out), LK_E_CORRUPT);
        assert_int_equal(memory.n_calls, 1);
    }
    Stream stream{5u << 20, UINT64_MAX};
    lk::CallbackSource source(hooks, Stream::read, &stream, 0);
    memory.give(2);
    assert_int_equal(source.take(5u << 20, &out), LK_E_NOMEM);
    assert_int_equal(stream.n_left, 3u << 20);
    memory.give_all();
}

}  // namespace

int main() {
    const CMUnitTest tests[] = {
        cmocka_unit_test(memory_is_written_up_to_its_end),
        cmocka_unit_test(memory_is_read_where_it_is),
        cmocka_unit_test(callbacks_get_whole_chunks),
        cmocka_unit_test(callbacks_are_called_until_all_is_there),
        cmocka_unit_test(faults_of_a_callback_are_seen),
        cmocka_unit_test(memory_grows_with_what_has_come),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
