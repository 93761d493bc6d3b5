// A device's attention against the reference: each case twice, with the same bits.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_TESTS_KERNELS_COMPARISON_H
#define LK_TESTS_KERNELS_COMPARISON_H

#include <string>

#include "bound.h"

class Comparison {
  public:
    explicit Comparison(const Device &device);

    void check(const Case &c);
    bool goes_on() const;  // false after many failures
    // Tells how close it was; fails the test when a case did.
    void finish() const;

  private:
    // Empty, or what is wrong.
    std::string run(const Case &c);

    HostDevice reference_;
    Device device_;
    TensorCoreBound::Closeness most_{};
    int n_cases_ = 0;
    int n_failures_ = 0;
};

#endif
