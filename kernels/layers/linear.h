// SPDX-License-Identifier: Apache-2.0
//
// Matrix products of tensors, and what operators that contain linear layers are
// made of: y = x W^T on rows, for x [rows, in] and W [out, in] as in Hugging
// Face's files, with low-rank adapters ("LoRA", Hu et al., 2021, section 4.1).
// Without autograd.
#ifndef CAPSTAN_KERNELS_LAYERS_LINEAR_H_
#define CAPSTAN_KERNELS_LAYERS_LINEAR_H_

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

#include <cstdint>
#include <vector>

#include "kernels/context/gradient_sink.h"
#include "kernels/layers/row_positions.h"
#include "kernels/layers/weight.h"

namespace capstan::kernels {

// Dropout (Srivastava et al., "Dropout", 2014) of an adapter's input. Draws
// depend only on key, sample, the token's position in it and channel.
struct AdapterDropout {
  double rate = 0.0;   // in [0, 1)
  uint64_t key = 0;    // of the layer (base/random.h)
  at::Tensor samples;  // [batch] int64; undefined: nothing is dropped
  RowPositions positions;

  bool active() const { return rate > 0.0 && samples.defined(); }
};

// Adds scale * dropout(x) A^T B^T to a layer's x W^T, and with a magnitude
// multiplies that sum's columns by magnitude / norms ("DoRA", Liu et al., 2024,
// equation 5), where W is frozen and the norms have no gradient (section 4.3).
struct Adapter {
  at::Tensor a;  // [rank, in]; undefined: the layer has no adapter
  at::Tensor b;  // [out, rank]
  double scale = 1.0;
  AdapterDropout dropout;
  at::Tensor magnitude;  // [out]; undefined: no DoRA
  at::Tensor norms;      // [out]: AdaptedNorms
  // Where the norms stay for as long as the weights do; null: nowhere.
  at::Tensor* known_norms = nullptr;

  bool defined() const { return a.defined(); }
  bool dora() const { return magnitude.defined(); }
  // magnitude / norms: [out] float32.
  at::Tensor factor() const;
  // The rows' part of it, as of the layer's.
  Adapter Rows(int64_t begin, int64_t count) const;
};

// |W + scale * B A| of each row, in float32, rounded to the magnitude's dtype,
// for which W plus its change is made a piece of rows at a time. W is dense or
// packed. Without autograd.
at::Tensor AdaptedNorms(const Weight& weight, const Adapter& adapter);
// The most bytes that it allocates for W [out, in].
int64_t PlanAdaptedNorms(int64_t out, int64_t in);

// y [rows, out] += scale * dropout(x) A^T B^T, for x [rows, in]; a no-op
// without an adapter. With dropout, each sample has the same number of rows.
void AddAdapter(const Adapter& adapter, const at::Tensor& x, at::Tensor y);

// An adapter's part of a backward, given the gradient dy [rows, out].
class AdapterBackward {
 public:
  // A no-op if `adapter` isn't defined. `adapter` outlives this.
  AdapterBackward(const Adapter& adapter, const at::Tensor& dy);

  // dx [rows, in] += the gradient to x.
  void AddTo(at::Tensor dx) const;
  // Appends the gradients to A and B to `gradients`.
  void AppendWeights(const at::Tensor& x,
                     std::vector<at::Tensor>* gradients) const;

 private:
  const Adapter& adapter_;
  const at::Tensor dy_;
  at::Tensor d_inner_;  // [rows, rank]
};

// The properties of an adapter that determine its memory.
struct AdapterShape {
  int64_t rank = 0;  // 0: none
  bool dropout = false;
  bool dora = false;
};

// Bytes that a linear layer [out, in] allocates on the CPU, besides its input,
// output and their gradients.
struct LinearMemory {
  int64_t forward = 0;    // while AddAdapter runs
  int64_t backward = 0;   // while AdapterBackward runs, without gradients
  int64_t gradients = 0;  // to W, A and B
};
LinearMemory PlanLinear(int64_t rows, int64_t in, int64_t out,
                        c10::ScalarType dtype, bool trained,
                        const AdapterShape& adapter);

// [rows, width] bool on the CPU: which numbers are dropped.
at::Tensor DropoutMask(const AdapterDropout& dropout, int64_t rows,
                       int64_t width);

// out [m, n] = alpha * a b + beta * out, without autograd; a beta of 0
// overwrites `out`. a, b: [m, k], [k, n], with any strides, and of out's dtype,
// or of 16 bits for a float32 `out`, which then isn't rounded in between.
void MatMulInto(const at::Tensor& out, const at::Tensor& a, const at::Tensor& b,
                double beta = 0.0, double alpha = 1.0);

// y [rows, out] = x W^T + bias [out], for W^T [in, out], on GPUs (OnGpuPath):
// by the product's epilogue. Without autograd.
void BiasedMatMulInto(const at::Tensor& y, const at::Tensor& x,
                      const at::Tensor& transposed, const at::Tensor& bias);

// a b, without autograd.
at::Tensor MatMul(const at::Tensor& a, const at::Tensor& b);

// y [rows, out] = x W^T + beta * y, for x [rows, in], without autograd; a beta
// of 0 overwrites y. Packed matrices take 0 and 1 alone.
void LinearInto(const at::Tensor& y, const at::Tensor& x, const Weight& weight,
                double beta = 0.0);
// dx [rows, in] = dy W + beta * dx, for dy [rows, out].
void LinearBackwardInto(const at::Tensor& dx, const at::Tensor& dy,
                        const Weight& weight, double beta = 0.0);

// gradient [out, in] = dy^T x + beta * gradient, as MatMulInto or, if the
// weight's products are (UsesFp8), in 8 bits, where beta is 0 or 1.
void WeightGradientInto(const at::Tensor& gradient, const at::Tensor& dy,
                        const at::Tensor& x, const Weight& weight, double beta);

// The destination of a weight's gradient: `sink`'s place for `parameter`, or,
// without a sink, a new tensor.
struct WeightPlace {
  GradientSink* sink = nullptr;  // outlives the graph
  int parameter = -1;            // -1: the sink has none

  // The sink's place; undefined without a sink.
  GradientSink::Place Open() const;
  // Its float32 place for a 16-bit parameter (WideGradientSink), if it has one.
  GradientSink::Place OpenWide() const;

  // The one of them that there is.
  struct AnyPlace : GradientSink::Place {
    bool wide = false;  // OpenWide's, which isn't returned to autograd
  };
  AnyPlace OpenAny() const;
  // The same on GPUs (OnGpuPath of the parameter); elsewhere none.
  AnyPlace OpenOnGpu(const at::Tensor& parameter) const;
};

// sum [n] = the sum of the rows of x [rows, n], in float32 if `sum` is; or that
// and what is there, if `add`.
void SumRowsInto(const at::Tensor& sum, const at::Tensor& x, bool add);

}  // namespace capstan::kernels

#endif  // CAPSTAN_KERNELS_LAYERS_LINEAR_H_
