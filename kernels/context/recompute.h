// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_KERNELS_CONTEXT_RECOMPUTE_H_
#define CAPSTAN_KERNELS_CONTEXT_RECOMPUTE_H_

namespace capstan {

// Whether backward computes gate and up of MLPs and experts, their largest
// activations, a second time instead of forward keeping them
// (train.activation_checkpointing: MLP). Layers ask when their forward runs and
// when they are planned.
bool RecomputesMlp();
// Set before planning and before ranks are forked; false by default.
// Thread-safe.
void SetRecomputesMlp(bool recomputes);

}  // namespace capstan

#endif  // CAPSTAN_KERNELS_CONTEXT_RECOMPUTE_H_
