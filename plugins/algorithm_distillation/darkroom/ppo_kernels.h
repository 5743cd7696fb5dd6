// SPDX-License-Identifier: Apache-2.0
//
// The arithmetic of small learners: a network of two tanh layers on a few
// inputs, its gradients, and Adam. Compiled for several instruction sets
// (base/simd/simd.h); single-threaded. Results are the same on all processors
// with the same instruction set.
#ifndef CAPSTAN_PLUGINS_ALGORITHM_DISTILLATION_DARKROOM_PPO_KERNELS_H_
#define CAPSTAN_PLUGINS_ALGORITHM_DISTILLATION_DARKROOM_PPO_KERNELS_H_

#include <cstdint>

#include "base/simd/instruction_set.h"

namespace capstan::darkroom {

// Sizes of a network. Unused inputs are 0, unused outputs have weights of 0.
constexpr int kInputs = 4;
constexpr int kHidden = 64;
constexpr int kOutputs = 8;
// Rows processed at a time.
constexpr int kRowBlock = 4;

// A network's parameters, or their gradients. Rows are whole cache lines.
struct alignas(64) Network {
  float w1[kInputs][kHidden];
  float b1[kHidden];
  float w2[kHidden][kHidden];  // [from][to]
  float b2[kHidden];
  float wo[kOutputs][kHidden];  // [to][from]
  float bo[kHidden];            // kOutputs, padded
};
constexpr int64_t kNetworkSize = sizeof(Network) / sizeof(float);

// Adam's constants at a step (Kingma and Ba, ICLR 2015), as torch.optim.Adam.
struct AdamStep {
  float gradient_scale;  // what clipping leaves of the gradient
  float beta1, beta2;
  float weight1, weight2;  // 1 - beta1, 1 - beta2
  float rate;              // learning rate / (1 - beta1^t)
  float root2;             // 1 / sqrt(1 - beta2^t)
  float epsilon;
};

struct PpoKernels {
  const char* name;

  // h1 = tanh(x w1 + b1), h2 = tanh(h1 w2 + b2), [rows, kHidden], and the first
  // `outputs` of out = h2 wo + bo, [rows, kOutputs], of inputs x [rows,
  // kInputs]; rows is a multiple of kRowBlock.
  void (*forward)(const Network& net, const float* x, int64_t rows, int outputs,
                  float* h1, float* h2, float* out);

  // The gradient of the parameters from that of the outputs; both are 0 beyond
  // `outputs`. Overwrites h1 and h2.
  void (*backward)(const Network& net, const float* x, const float* d_out,
                   int64_t rows, int outputs, float* h1, float* h2,
                   Network* gradient);

  // Of n numbers, n a multiple of 64.
  float (*sum_of_squares)(const float* x, int64_t n);

  // One step on n parameters, n a multiple of 16, with their running means of
  // gradients and of squared gradients.
  void (*adam)(const AdamStep& step, const float* gradient, int64_t n,
               float* parameter, float* mean, float* square);
};

SIMD_TABLES(PpoKernels, kPpo);

inline const PpoKernels& BestPpoKernels() { return kPpo.best(); }

}  // namespace capstan::darkroom

#endif  // CAPSTAN_PLUGINS_ALGORITHM_DISTILLATION_DARKROOM_PPO_KERNELS_H_
