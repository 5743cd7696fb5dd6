// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_BASE_GRADIENT_SINK_H_
#define CAPSTAN_BASE_GRADIENT_SINK_H_

#include <ATen/core/Tensor.h>

namespace capstan {

// Where a strategy wants the gradients of parameters, so that a backward may
// write them there at once instead of into a tensor that is then copied.
class GradientSink {
 public:
  struct Place {
    // In the parameter's shape and dtype, contiguous; undefined: there is no
    // place for it (its sums have another dtype), return it as any other.
    at::Tensor gradient;
    // Whether the gradient is to be added to what is there, or written over
    // it.
    bool add = false;
  };

  virtual ~GradientSink();

  // Called in a backward that is about to make the gradient of parameter
  // `parameter` (an index into Model::parameters()), on its thread. The
  // backward then writes the place and returns Place::gradient, moved, to
  // autograd as the gradient. Once for each use of the parameter.
  virtual Place Open(int parameter) = 0;
};

}  // namespace capstan

#endif  // CAPSTAN_BASE_GRADIENT_SINK_H_
