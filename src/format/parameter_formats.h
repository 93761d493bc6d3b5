/* How ranges and minima are stored: the only table of it. C++, CUDA and GLSL include this file, so
 * it holds #define, comments and, for C++, an enumeration. src/format/rules.h has the conversions.
 * docs/ARCHITECTURE.md lists the files to change for a new format.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef LK_FORMAT_PARAMETER_FORMATS_H
#define LK_FORMAT_PARAMETER_FORMATS_H

/*   X(name, number, bytes, text)
 *
 * number  in page files, snapshots and lk_metadata
 * bytes   of a range or a minimum; kernels distinguish the formats by them
 * text    in plans, as JSON, and in the command's options
 *
 * F16 is FP16, F8 is e4m3fnuz. */
#define LK_PARAMETER_FORMATS(X) \
    X(F16, 1, 2, f16)           \
    X(F8, 2, 1, f8)

#ifdef __cplusplus
namespace lk {

#define LK_NAME_FORMAT(name, number, bytes, text) k##name = number,
enum class Metadata : unsigned char { LK_PARAMETER_FORMATS(LK_NAME_FORMAT) };
#undef LK_NAME_FORMAT

}  // namespace lk
#endif

#endif
