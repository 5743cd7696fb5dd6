// SPDX-License-Identifier: Apache-2.0
//
// The arithmetic that a model's training asks for, whatever the machine.
#ifndef CAPSTAN_TRAINER_PROFILE_MODEL_FLOPS_H_
#define CAPSTAN_TRAINER_PROFILE_MODEL_FLOPS_H_

#include <functional>
#include <string>

#include "plugins/sdk/model.h"

namespace capstan {

// FLOPs of forward and backward as "PaLM: Scaling Language Modeling with
// Pathways" (Chowdhery et al., 2022), appendix B, counts them: of matrix
// products alone, a multiplication and an addition are two, attention in full
// even where it is causal, and nothing for what is recomputed. A model that is
// trained whole takes 6 for each element of a matrix and 12 for each element of
// a layer's attention heads and token that is attended to. Where only some of
// the tokens go through a matrix (Model::ShareOf), those alone count: of a
// mixture of experts the active parameters.
struct ModelFlops {
  // Of rows of tokens.
  struct Work {
    double per_token = 0.0;
    // Of a token for each token of its row.
    double per_token_and_length = 0.0;
    double per_row = 0.0;

    double Of(double tokens, double length) const {
      return tokens * (per_token + length * per_token_and_length) +
             (length > 0.0 ? tokens / length * per_row : 0.0);
    }
  };
  Work all;
  // What activation checkpointing computes again.
  Work recomputed;
  // Why the numbers aren't known; "": they are.
  std::string unknown;

  // Of `tokens` tokens in rows of `length`.
  double Of(double tokens, double length) const {
    return all.Of(tokens, length);
  }
  double Recomputed(double tokens, double length) const {
    return recomputed.Of(tokens, length);
  }
};

// From the model's parameters: rows that are looked up don't count, frozen
// matrices have no gradient of their own, and units before the first trainable
// one no backward. Attention's width is that of the matrices that read it
// (o_proj, attn_out, self_attn.out_proj). `recomputes` (may be null): whether a
// unit's forward is run again in backward; `recomputes_mlp`: whether gate and
// up of its MLPs are.
ModelFlops FlopsOf(const Model& model,
                   const std::function<bool(int unit)>& recomputes,
                   bool recomputes_mlp = false);

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_PROFILE_MODEL_FLOPS_H_
