// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_KERNELS_CONTEXT_WIDE_GRADIENT_SINK_H_
#define CAPSTAN_KERNELS_CONTEXT_WIDE_GRADIENT_SINK_H_

#include "kernels/context/gradient_sink.h"

namespace capstan {

// A GradientSink also derives from this if its sums are float32 and gradients
// have 16 bits; found by dynamic_cast. Products can then write or add their
// float32 results to the sums without rounding them first.
class WideGradientSink {
 public:
  virtual ~WideGradientSink();

  // Like GradientSink::Open for a 16-bit parameter, except that Place::gradient
  // is float32, and autograd gets an undefined tensor instead: the sink learns
  // from the parameter's AccumulateGrad node when all its uses in the graph are
  // done. May be called again before that, and mixed with gradients that are
  // returned.
  virtual GradientSink::Place OpenWide(int parameter) = 0;
};

}  // namespace capstan

#endif  // CAPSTAN_KERNELS_CONTEXT_WIDE_GRADIENT_SINK_H_
