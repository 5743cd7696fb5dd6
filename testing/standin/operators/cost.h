// SPDX-License-Identifier: Apache-2.0
//
// What operators would cost a real device: arithmetic, memory traffic with each
// operand once, and kernels launched, as LibTorch 2.11's CUDA kernels do them.
#ifndef CAPSTAN_TESTING_STANDIN_OPERATORS_COST_H_
#define CAPSTAN_TESTING_STANDIN_OPERATORS_COST_H_

#include <ATen/core/Tensor.h>
#include <ATen/core/function_schema.h>
#include <ATen/core/ivalue.h>

#include <cstdint>
#include <vector>

#include "testing/standin/device.h"

namespace capstan::standin {

// Of one call. Tensors' data isn't read, so they may be on any device; results:
// those that the call makes. Products: 2 m n k. Others: one operation for each
// element that they read or, if that is more, write.
Cost CostOf(const c10::FunctionSchema& schema,
            const std::vector<c10::IValue>& arguments,
            const std::vector<c10::IValue>& results);

// The unit that multiplies matrices of this dtype; float32 by the process's
// setting of TF32.
Unit UnitOfProducts(c10::ScalarType dtype);

// Sets the arithmetic, unit and shape of a b: matrices [m, k] and [k, n], or as
// many of each ([b, m, k] and [b, k, n]); a vector is a matrix of one row or
// column.
void SetProduct(const at::Tensor& a, const at::Tensor& b, Cost* cost);

// Bytes of the elements of a tensor, those that an expanded dimension repeats
// counted once.
int64_t BytesOf(const at::Tensor& t);

struct AttentionSizes {
  int64_t batch = 1, heads = 1, queries = 1, keys = 1, head_dim = 1;
  bool causal = false;
  int64_t window = 0;  // keys that a query sees at most; 0: all
};
// Of softmax(q k^T) v, and of its gradients: 4 and 10 operations for each pair
// of query and key and each channel; a causal mask halves both. (Dao 2023,
// "FlashAttention-2", section 4.1 counts like this.)
double AttentionFlops(const AttentionSizes& sizes);
double AttentionBackwardFlops(const AttentionSizes& sizes);

}  // namespace capstan::standin

#endif  // CAPSTAN_TESTING_STANDIN_OPERATORS_COST_H_
