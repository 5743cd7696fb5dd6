// SPDX-License-Identifier: Apache-2.0
//
// Dequantisation.
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "kernels/cuda/dispatch.h"
#include "kernels/quant/nf4.h"
#include "kernels/quant/pack_nf4_for_test.h"
#include "kernels/quant/packed_linear.h"
#include "testing/cuda/checks.h"

namespace capstan::kernels::cuda {

Outputs CheckDequantizeNf4(const Subject& subject, at::ScalarType dtype,
                           int64_t n, bool double_quantised) {
  const at::Tensor x = Normal(1, {n}, at::kFloat);
  const Nf4Layout layout(n, double_quantised);
  const at::Tensor packed = at::zeros({layout.bytes}, at::kByte);
  PackNf4(x.const_data_ptr<float>(), layout,
          packed.mutable_data_ptr<uint8_t>());
  const at::Tensor expected = at::empty({n}, at::kFloat);
  kernels::DequantizeNf4({packed.const_data_ptr<uint8_t>(), layout}, 0, n,
                         expected.mutable_data_ptr<float>());
  const at::Tensor there = packed.to(subject.device);
  // Aligned, so that stores are of whole vectors; and not.
  Outputs outputs;
  for (const int64_t shift : {0, 1}) {
    at::Tensor out =
        at::empty({n + shift}, at::TensorOptions(subject.device).dtype(dtype))
            .narrow(0, shift, n);
    DequantizeNf4(subject.cuda, CudaArguments(there, layout), out);
    EXPECT_TRUE(SameBits(out, expected.to(dtype))) << "shifted by " << shift;
    outputs.push_back(out);
  }
  // A part.
  if (n <= 1000) return outputs;
  at::Tensor part =
      at::empty({n - 936}, at::TensorOptions(subject.device).dtype(dtype));
  DequantizeNf4(subject.cuda, CudaArguments(there, layout, 936), part);
  EXPECT_TRUE(SameBits(part, expected.narrow(0, 936, n - 936).to(dtype)));
  outputs.push_back(part);
  return outputs;
}

}  // namespace capstan::kernels::cuda
