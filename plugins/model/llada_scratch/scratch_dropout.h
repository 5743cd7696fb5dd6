// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_PLUGINS_MODEL_LLADA_SCRATCH_SCRATCH_DROPOUT_H_
#define CAPSTAN_PLUGINS_MODEL_LLADA_SCRATCH_SCRATCH_DROPOUT_H_

#include <ATen/core/Tensor.h>

namespace capstan {
namespace llada_scratch {

// Which numbers are dropped (Srivastava et al., "Dropout", 2014), the others
// being divided by 1 - rate: it depends on the sample, the token's place in its
// row and the channel, and on nothing else of the batch; so a row that is cut
// short drops what it would have dropped there.
struct Dropout {
  double rate = 0.0;   // in [0, 1)
  at::Tensor samples;  // [B] int64; undefined: nothing is dropped
};

// x [B * T, width], with numbers dropped and a gradient.
at::Tensor Dropped(const Dropout& dropout, const at::Tensor& x);

}  // namespace llada_scratch
}  // namespace capstan

#endif  // CAPSTAN_PLUGINS_MODEL_LLADA_SCRATCH_SCRATCH_DROPOUT_H_
