// SPDX-License-Identifier: Apache-2.0
//
// Sequence parallelism ("DeepSpeed Ulysses", Jacobs et al., 2023): each rank of
// a group computes all layers for a part of each row's positions, and
// attention, between two exchanges, for a part of the heads.
//
// In a deterministic run each rank computes all positions, of attention alone a
// part of the heads, and counts 1 / ranks of the loss. That is a power of two,
// which rounds nothing in float32 and bfloat16, so that the sums over the ranks
// have the bits of one rank.
#ifndef CAPSTAN_PLUGINS_MODEL_DECODER_ROW_DIVISION_H_
#define CAPSTAN_PLUGINS_MODEL_DECODER_ROW_DIVISION_H_

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "kernels/attention/exchanged.h"
#include "plugins/sdk/process_group.h"
#include "plugins/sdk/token_model.h"

namespace capstan::decoder {

class RowDivision final : public kernels::AttentionExchange {
 public:
  // `group` outlives it.
  RowDivision(ProcessGroup* group, bool deterministic)
      : group_(*group), whole_rows_(deterministic) {}

  // Whether this rank has a part of each row.
  bool divides() const { return !whole_rows_; }

  // With divides(): adds positions without targets to the end of each row until
  // the ranks divide its length; they are seen by nothing before them. Unless
  // `by_place` they get positions, as documents of their own.
  void Pad(bool by_place, TokenInput* input, TokenTargets* targets) const;
  // This rank's part [B, T / ranks, ..] of x [B, T, ..], dense.
  at::Tensor PartOf(const at::Tensor& x) const;

  int ranks() const override { return group_.size(); }
  int rank() const { return group_.rank(); }
  at::Tensor ToAttention(const at::Tensor& x) override;
  at::Tensor FromAttention(const at::Tensor& x) override;
  // Of a pass of `batch` rows from now on.
  void set_batch(int64_t batch) { batch_ = batch; }

 private:
  ProcessGroup& group_;
  const bool whole_rows_;
  int64_t batch_ = 1;
};

}  // namespace capstan::decoder

#endif  // CAPSTAN_PLUGINS_MODEL_DECODER_ROW_DIVISION_H_
