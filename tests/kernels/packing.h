// Packing, dequantizing and appending on a backend against the written-out codec.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_TESTS_KERNELS_PACKING_H
#define LK_TESTS_KERNELS_PACKING_H

#include "harness.h"

// Keys, the same ranked by queries, values, both of all widths under a fixed permutation and with
// clips, both at 16 bits, keys and values whose 1-bit codes stand for the range, and such with
// clips.
enum PackingFormat : uint16_t {
    kKeys,
    kQueryKeys,
    kValues,
    kMixedKeys,
    kMixedValues,
    kRawKeys,
    kRawValues,
    kRangeKeys,
    kRangeValues,
    kClippedKeys,
    kClippedValues,
};
std::vector<lk::PageFormat> packing_formats(const Case &c, const uint8_t *permutation);

// Pages of a case's shapes with values of all kinds: packed from staged tokens and from 16-bit
// pages, then dequantized. All bytes are the same, and none around them change.
void check_packing(const Case &c, const Device &device);

// Halves of every size go down the ladder one by one, in place and into other slots with what
// stays after them: the same bytes as the written-out shift.
void check_shrinking(const Device &device);

// Tokens of 16-bit pages of every size go to earlier positions, in the same page and in others.
void check_moving(const Device &device);

// Tokens of two layers, of every type and in steps of every size: what is stored where, and what
// saturates.
void check_appending(const Device &device);

// The first infinity or NaN is reported.
void check_append_faults(const Device &device);

// Long steps whose new tokens fill blocks of the case's formats: pages with the bytes of the
// written-out codec. turn: chooses the tensors' type and strides.
void check_append_pages(const Case &c, uint32_t turn, const Device &device);
// Values that are not finite among them: the CPU writes no page, a device zeros for them.
void check_append_page_faults(const Device &device);

// Both, of keys that are stored less their centers, divided by their scales, both, rotated, and all
// three.
void check_changed_appending(const Device &device);

// Sums of |Q|, which the CPU alone makes.
void check_query_sums(const Device &device);
// Arithmetic on them.
void check_sum_items(const Device &device);

#endif
