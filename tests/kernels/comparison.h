// A device's attention against the reference: each case twice, with the same bits.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_TESTS_KERNELS_COMPARISON_H
#define LK_TESTS_KERNELS_COMPARISON_H

#include <string>
#include <vector>

#include "bound.h"

class Comparison {
  public:
    explicit Comparison(const Device &device) : device_(device) {}

    // The cases in order, up to the one after which too many have failed. All CPUs make the scenes
    // and run the reference, which takes most of the time, ahead of the device.
    void check(const std::vector<Case> &cases);
    // Tells how close it was; fails the test when a case did.
    void finish() const;

  private:
    struct Expectation;
    // Empty, or what is wrong.
    std::string run(Expectation &expectation);

    Device device_;
    TensorCoreBound::Closeness most_{};
    int n_cases_ = 0;
    int n_failures_ = 0;
};

#endif
