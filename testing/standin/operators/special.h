// SPDX-License-Identifier: Apache-2.0
//
// Operators that have kernels for GPUs alone, written by hand.
#ifndef CAPSTAN_TESTING_STANDIN_OPERATORS_SPECIAL_H_
#define CAPSTAN_TESTING_STANDIN_OPERATORS_SPECIAL_H_

#include <torch/library.h>

namespace capstan::standin {

// Register them for the library's dispatch key, CUDA, namespace aten.
void AddAttention(torch::Library& library);
void AddProducts(torch::Library& library);  // out_dtype, _scaled_mm
void AddCopies(torch::Library& library);    // copy_

}  // namespace capstan::standin

#endif  // CAPSTAN_TESTING_STANDIN_OPERATORS_SPECIAL_H_
