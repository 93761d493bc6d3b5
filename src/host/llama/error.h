// SPDX-License-Identifier: Apache-2.0
#ifndef LLAMA_ERROR_H
#define LLAMA_ERROR_H

#include <stdexcept>

namespace llama {

// A file, model or library call that failed; what() is one sentence.
class Error : public std::runtime_error {
  public:
    using std::runtime_error::runtime_error;
};

}  // namespace llama

#endif
