// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_BASE_WIDE_GRADIENT_SINK_H_
#define CAPSTAN_BASE_WIDE_GRADIENT_SINK_H_

#include "base/gradient_sink.h"

namespace capstan {

// What a GradientSink may be, too (dynamic_cast), if its sums are float32 and
// gradients have 16 bits: products can write or add to the sums what they have
// in float32 anyway, rather than round it first.
class WideGradientSink {
 public:
  virtual ~WideGradientSink();

  // As GradientSink::Open for a 16-bit parameter, except that Place::gradient
  // is float32, and isn't returned to autograd, which gets an undefined tensor:
  // the sink learns from the parameter's AccumulateGrad node when all uses of
  // the graph are through. May be called again before that, and mixed with
  // gradients that are returned.
  virtual GradientSink::Place OpenWide(int parameter) = 0;
};

}  // namespace capstan

#endif  // CAPSTAN_BASE_WIDE_GRADIENT_SINK_H_
