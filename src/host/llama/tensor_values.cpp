// Values of tensors as one type.
//
// SPDX-License-Identifier: Apache-2.0
#include "safetensors.h"

#include <cstring>

namespace llama {
namespace {

template <typename T>
T load(const std::uint8_t *at) {
    T value;
    std::memcpy(&value, at, sizeof value);
    return value;
}

template <typename T, typename Convert>
void convert(const Tensor &tensor, std::uint64_t first, std::size_t n, float *out,
             const Convert &to_float) {
    const std::uint8_t *at = tensor.data + sizeof(T) * first;
    for (std::size_t i = 0; i < n; ++i)
        out[i] = to_float(load<T>(at + sizeof(T) * i));
}

}  // namespace

float float_from_half(std::uint16_t half) {
    const std::uint32_t sign = std::uint32_t{half & 0x8000u} << 16;
    const std::uint32_t magnitude = half & 0x7fffu;
    if (magnitude < 0x400u) {  // zero and subnormals
        const float value = static_cast<float>(magnitude) * 0x1p-24f;
        return sign != 0 ? -value : value;
    }
    const std::uint32_t exponent_shift = magnitude >= 0x7c00u ? 224u << 23 : 112u << 23;
    const std::uint32_t bits = sign | ((magnitude << 13) + exponent_shift);
    return load<float>(reinterpret_cast<const std::uint8_t *>(&bits));
}

void to_floats(const Tensor &tensor, std::uint64_t first, std::size_t n, float *out) {
    if (tensor.dtype == "F16") {
        convert<std::uint16_t>(tensor, first, n, out, float_from_half);
    } else if (tensor.dtype == "BF16") {
        convert<std::uint16_t>(tensor, first, n, out, [](std::uint16_t upper) {
            const std::uint32_t bits = std::uint32_t{upper} << 16;
            return load<float>(reinterpret_cast<const std::uint8_t *>(&bits));
        });
    } else if (tensor.dtype == "F32") {
        std::memcpy(out, tensor.data + sizeof(float) * first, sizeof(float) * n);
    } else if (tensor.dtype == "F64") {
        convert<double>(tensor, first, n, out, [](double x) { return static_cast<float>(x); });
    } else {
        throw Error("tensor \"" + tensor.name + "\" is " + tensor.dtype + ", not a float type");
    }
}

std::vector<float> to_floats(const Tensor &tensor) {
    std::vector<float> out(static_cast<std::size_t>(tensor.n_elements));
    to_floats(tensor, 0, out.size(), out.data());
    return out;
}

std::vector<std::int32_t> to_ints(const Tensor &tensor) {
    std::vector<std::int32_t> out(static_cast<std::size_t>(tensor.n_elements));
    const std::uint8_t *at = tensor.data;
    for (std::size_t i = 0; i < out.size(); ++i) {
        if (tensor.dtype == "I32") {
            out[i] = load<std::int32_t>(at + 4 * i);
        } else if (tensor.dtype == "U8") {
            out[i] = at[i];
        } else if (tensor.dtype == "I64") {
            const std::int64_t value = load<std::int64_t>(at + 8 * i);
            if (value < INT32_MIN || value > INT32_MAX) {
                throw Error("tensor \"" + tensor.name + "\" holds a value beyond 32 bits");
            }
            out[i] = static_cast<std::int32_t>(value);
        } else {
            throw Error("tensor \"" + tensor.name + "\" is " + tensor.dtype +
                        ", not an integer type");
        }
    }
    return out;
}

}  // namespace llama
