// Host memory through hooks that may fail, a fallible array, and checked sizes. The library
// is built without exceptions, so nothing here throws: what can fail returns false.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_BASE_MEMORY_H
#define LK_BASE_MEMORY_H

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <new>
#include <type_traits>
#include <utility>

namespace lk {

// Where host memory comes from. Lives as long as what was allocated through it.
struct Allocator {
    void *(*alloc)(void *user, size_t bytes, size_t alignment);
    void (*free)(void *user, void *pointer, size_t bytes, size_t alignment);
    void *user;
};

// The C library's.
const Allocator &default_allocator();

// Sizes are computed in 64 bits; false on overflow, *out is then not written.
inline bool checked_add(uint64_t a, uint64_t b, uint64_t *out) {
    return !__builtin_add_overflow(a, b, out);
}
inline bool checked_mul(uint64_t a, uint64_t b, uint64_t *out) {
    return !__builtin_mul_overflow(a, b, out);
}
constexpr uint64_t round_up(uint64_t n, uint64_t step) { return (n + step - 1) / step * step; }
constexpr uint64_t ceil_div(uint64_t n, uint64_t step) { return (n + step - 1) / step; }

// A growing array of trivially copyable elements, aligned to 64 bytes.
template <class T>
class Array {
    static_assert(std::is_trivially_copyable<T>::value, "Array moves its elements as bytes");

  public:
    explicit Array(const Allocator &allocator = default_allocator()) : allocator_(&allocator) {}
    ~Array() { release(); }
    Array(const Array &) = delete;
    Array &operator=(const Array &) = delete;
    Array(Array &&other) noexcept
        : allocator_(other.allocator_),
          data_(other.data_),
          size_(other.size_),
          capacity_(other.capacity_) {
        other.forget();
    }
    Array &operator=(Array &&other) noexcept {
        if (this != &other) {
            release();
            allocator_ = other.allocator_;
            data_ = other.data_;
            size_ = other.size_;
            capacity_ = other.capacity_;
            other.forget();
        }
        return *this;
    }

    bool reserve(size_t n) {
        if (n <= capacity_)
            return true;
        if (n > SIZE_MAX / sizeof(T))
            return false;
        void *fresh = allocator_->alloc(allocator_->user, n * sizeof(T), kAlignment);
        if (!fresh)
            return false;
        if (size_)
            std::memcpy(fresh, data_, size_ * sizeof(T));
        const size_t size = size_;
        release();
        data_ = static_cast<T *>(fresh);
        size_ = size;
        capacity_ = n;
        return true;
    }
    // New elements are zero bytes.
    bool resize(size_t n) {
        if (!reserve(n))
            return false;
        if (n > size_)
            std::memset(static_cast<void *>(data_ + size_), 0, (n - size_) * sizeof(T));
        size_ = n;
        return true;
    }
    bool push(const T &value) {
        const T copy = value;
        if (size_ == capacity_ && !reserve(capacity_ ? capacity_ * 2 : 8))
            return false;
        data_[size_++] = copy;
        return true;
    }
    bool assign(const T *values, size_t n) {
        size_ = 0;
        if (!reserve(n))
            return false;
        if (n)
            std::memcpy(static_cast<void *>(data_), values, n * sizeof(T));
        size_ = n;
        return true;
    }
    // n more elements within the capacity, which the caller writes.
    T *extend(size_t n) {
        size_ += n;
        return data_ + size_ - n;
    }
    void pop() { --size_; }
    void clear() { size_ = 0; }
    // Remove element i; the last one takes its place.
    void swap_remove(size_t i) { data_[i] = data_[--size_]; }

    T *data() { return data_; }
    const T *data() const { return data_; }
    size_t size() const { return size_; }
    size_t capacity() const { return capacity_; }
    bool empty() const { return size_ == 0; }
    T &operator[](size_t i) { return data_[i]; }
    const T &operator[](size_t i) const { return data_[i]; }
    T &back() { return data_[size_ - 1]; }
    T *begin() { return data_; }
    T *end() { return data_ + size_; }
    const T *begin() const { return data_; }
    const T *end() const { return data_ + size_; }

  private:
    static constexpr size_t kAlignment = 64;
    void forget() {
        data_ = nullptr;
        size_ = capacity_ = 0;
    }
    void release() {
        if (data_)
            allocator_->free(allocator_->user, data_, capacity_ * sizeof(T), kAlignment);
        forget();
    }

    const Allocator *allocator_;
    T *data_ = nullptr;
    size_t size_ = 0;
    size_t capacity_ = 0;
};

// One object through the hooks; null when memory is exhausted.
template <class T, class... Args>
T *create(const Allocator &allocator, Args &&...args) {
    void *place = allocator.alloc(allocator.user, sizeof(T), alignof(T));
    return place ? new (place) T(std::forward<Args>(args)...) : nullptr;
}
template <class T>
void destroy(const Allocator &allocator, T *object) {
    if (!object)
        return;
    object->~T();
    allocator.free(allocator.user, object, sizeof(T), alignof(T));
}

// One that ends with its block.
template <class T>
class Created {
  public:
    template <class... Args>
    explicit Created(const Allocator &allocator, Args &&...args)
        : allocator_(allocator), object_(create<T>(allocator, std::forward<Args>(args)...)) {}
    ~Created() { destroy(allocator_, object_); }
    Created(const Created &) = delete;
    Created &operator=(const Created &) = delete;
    T *get() const { return object_; }  // null when memory is exhausted

  private:
    const Allocator &allocator_;
    T *const object_;
};

}  // namespace lk

#endif
