// Functions that the host compiler and nvcc both compile.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_FORMAT_BOTH_H
#define LK_FORMAT_BOTH_H

#ifdef __CUDACC__
#define LK_BOTH __host__ __device__ __forceinline__
#else
#define LK_BOTH inline
#endif

#endif
