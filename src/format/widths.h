/* The widths of codes: the only table of them. C++, CUDA and GLSL include this file, so it holds
 * #define, comments and, for C++, an enumeration. src/format/planes.h has what C++ and CUDA derive
 * from the table. docs/ARCHITECTURE.md lists the files to change for a new width.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef LK_FORMAT_WIDTHS_H
#define LK_FORMAT_WIDTHS_H

/* The planes of a page, in the order in which they lie in a payload:
 *
 *   X(plane, bits, low_bits, high_bits, narrower)
 *
 * plane      index of the plane: into the strips of a layout, of a page file and of a snapshot
 * bits       of a code; a code is 0 .. 2^bits - 1, and 16 bits are an FP16 value instead
 * low_bits   of the plane's first part: a power of two, all bits unless the plane is split
 * high_bits  of the second part of a split plane, which has the upper bits of the same stored
 *            channels; else 0
 * narrower   bits that a page of this width shrinks to, else 0 */
#define LK_PLANES(X)   \
    X(0, 16, 16, 0, 8) \
    X(1, 8, 8, 0, 4)   \
    X(2, 4, 4, 0, 2)   \
    X(3, 3, 2, 1, 0)   \
    X(4, 2, 2, 0, 0)   \
    X(5, 1, 1, 0, 0)

#define LK_COUNT_PLANE(plane, bits, low_bits, high_bits, narrower) +1u
#define LK_PLANE_COUNT (0u LK_PLANES(LK_COUNT_PLANE))

/* Columns of the table as expressions, for kernels: planes.h compares them with the table. */
#define LK_PLANE_OF(bits) ((bits) == 16 ? 0 : (bits) == 8 ? 1 : 6 - (bits))
#define LK_PLANE_BITS(plane) ((plane) == 0u ? 16u : (plane) == 1u ? 8u : 6u - (plane))
#define LK_LOW_BITS(bits) ((bits) == 3u ? 2u : (bits))
#define LK_HIGH_BITS(bits) 1u /* for split planes alone */

#ifdef __cplusplus
namespace lk {

#define LK_NAME_PLANE(plane, bits, low_bits, high_bits, narrower) kPlane##bits = plane,
enum Plane : unsigned char { LK_PLANES(LK_NAME_PLANE) kPlaneCount };
#undef LK_NAME_PLANE

}  // namespace lk
#endif

#endif
