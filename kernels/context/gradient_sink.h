// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_KERNELS_CONTEXT_GRADIENT_SINK_H_
#define CAPSTAN_KERNELS_CONTEXT_GRADIENT_SINK_H_

#include <ATen/core/Tensor.h>

namespace capstan {

// Where a strategy wants parameter gradients, so that a backward can write them
// in place instead of returning a tensor to be copied.
class GradientSink {
 public:
  struct Place {
    // Contiguous, with the parameter's shape and dtype. Undefined if the sink
    // has no buffer for it (e.g. it accumulates in another dtype): return the
    // gradient to autograd as usual.
    at::Tensor gradient;
    // Whether to add the gradient to the buffer rather than overwrite it.
    bool add = false;
  };

  virtual ~GradientSink();

  // Called by a backward about to compute the gradient of parameter `parameter`
  // (an index into Model::parameters()), on its thread, once per use of the
  // parameter. The backward then writes Place::gradient and returns it, moved,
  // to autograd.
  virtual Place Open(int parameter) = 0;
};

}  // namespace capstan

#endif  // CAPSTAN_KERNELS_CONTEXT_GRADIENT_SINK_H_
