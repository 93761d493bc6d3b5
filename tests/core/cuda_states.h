// Cases of test_cuda_host.cpp about recurrent states.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_TESTS_CORE_CUDA_STATES_H
#define LK_TESTS_CORE_CUDA_STATES_H

void test_states(void **);
void test_state_copies(void **);

#endif
