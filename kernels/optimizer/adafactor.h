// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_KERNELS_OPTIMIZER_ADAFACTOR_H_
#define CAPSTAN_KERNELS_OPTIMIZER_ADAFACTOR_H_

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace capstan::kernels {

struct AdafactorOptions {
  int64_t step = 1;  // 1 for the first update
  double learning_rate = 0.0;
  double epsilon = 1e-30;        // added to squared gradients
  double least_scale = 1e-3;     // of a parameter
  double clip_threshold = 1.0;   // of an update's root mean square
  double decay_rate = -0.8;      // beta2 = 1 - step^decay_rate
  double beta1 = 0.0;            // with a first moment
  double weight_decay = 0.0;     // times the rate below
  bool scale_parameter = false;  // rate times the parameter's RMS
  double gradient_scale = 1.0;
};

// One whole parameter; all contiguous, float32 unless said otherwise, and on
// one device.
struct AdafactorBuffers {
  at::Tensor gradient;   // [n] float32, bfloat16 or float16
  at::Tensor parameter;  // [n], or [.., rows, columns] flattened
  // Of a factored second moment, for each of n / (rows * columns) matrices:
  // the mean of each row, [matrices * rows], and of each column, [matrices *
  // columns].
  at::Tensor row;
  at::Tensor column;
  at::Tensor exp_avg_sq;    // [n] instead, if `row` is undefined
  at::Tensor exp_avg;       // [n], or undefined: no first moment
  at::Tensor working;       // undefined, bfloat16 or float16
  at::Tensor device_scale;  // as AdamWBuffers
  int64_t rows = 0;
  int64_t columns = 0;
};

// One step of Adafactor (Shazeer and Stern, "Adafactor: Adaptive Learning Rates
// with Sublinear Memory Cost", 2018, algorithms 4 and 5), with the operations
// of transformers.Adafactor:
//   g = gradient * gradient_scale * device_scale, s = g^2 + epsilon
//   row, column: running means of s; v = row column / mean(row)
//   u = g / sqrt(v), divided by max(1, RMS(u) / clip_threshold)
//   rate = learning_rate * max(least_scale, RMS(p)), or learning_rate alone
//   p -= rate * (weight_decay * p + u), or u's running mean
// On CPUs it makes no copy of the gradient; bits don't depend on the number of
// threads. On other devices LibTorch's operators do it.
void AdafactorStep(const AdafactorOptions& options,
                   const AdafactorBuffers& buffers);

// The latter, on any device.
void AdafactorByLibTorch(const AdafactorOptions& options,
                         const AdafactorBuffers& buffers);

}  // namespace capstan::kernels

#endif  // CAPSTAN_KERNELS_OPTIMIZER_ADAFACTOR_H_
