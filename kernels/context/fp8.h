// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_KERNELS_CONTEXT_FP8_H_
#define CAPSTAN_KERNELS_CONTEXT_FP8_H_

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace capstan {

// What the 8-bit numbers of a matrix share a scale with: all of it, or those
// that one sum of a product runs over. kOff: numbers aren't of 8 bits.
enum class Fp8Scaling : int { kOff = 0, kTensor, kRow };

// How a run multiplies in 8 bits (capstan.fp8).
struct Fp8Spec {
  Fp8Scaling scaling = Fp8Scaling::kTensor;
  // Transformer layers whose products stay in bfloat16.
  int64_t bf16_layers_at_start = 1;
  int64_t bf16_layers_at_end = 1;
  bool log_underflow = false;
};

// Counts the numbers that casts to 8 bits turn into 0, as long as it exists.
// Casts run on the thread of a model's forward and on autograd's, one at a
// time.
class Fp8Underflow {
 public:
  enum Kind { kInputs, kWeights, kGradients, kKinds };

  // The only one. device: of the casts.
  explicit Fp8Underflow(at::Device device);
  ~Fp8Underflow();
  Fp8Underflow(const Fp8Underflow&) = delete;
  Fp8Underflow& operator=(const Fp8Underflow&) = delete;

  // Counts x, and `cast`, what became of it (of any scale and layout). On a GPU
  // without waiting for it.
  void Add(Kind kind, const at::Tensor& x, const at::Tensor& cast);
  // [kKinds, 2] float64 on the device, since Clear: of the numbers that weren't
  // 0, how many have become 0, and how many there were. In the same memory in
  // each call.
  const at::Tensor& counts() const { return counts_; }
  void Clear();

 private:
  at::Tensor counts_;
};

// The one that exists, or null.
Fp8Underflow* CurrentFp8Underflow();

}  // namespace capstan

#endif  // CAPSTAN_KERNELS_CONTEXT_FP8_H_
