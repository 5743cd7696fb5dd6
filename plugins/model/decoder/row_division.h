// SPDX-License-Identifier: Apache-2.0
//
// Sequence parallelism: each rank of a group computes all layers for a part of
// each row's positions. If the ranks divide the model's heads, each computes
// attention, between two exchanges, for a part of them ("DeepSpeed Ulysses",
// Jacobs et al., 2023). Else the keys and values of all ranks, which few heads
// of keys make narrow, come to each rank's queries ("The Llama 3 Herd of
// Models", 2024, section 3.3.2): of 2 * ranks chunks of a row, rank r has those
// numbered r and 2 * ranks - 1 - r, so that causal ranks have equal work.
//
// In a deterministic run each rank computes all positions, of attention alone a
// part of the heads if the ranks divide them, and counts 1 / ranks of the loss.
// That is a power of two, which rounds nothing in float32 and bfloat16, so that
// the sums over the ranks have the bits of one rank.
#ifndef CAPSTAN_PLUGINS_MODEL_DECODER_ROW_DIVISION_H_
#define CAPSTAN_PLUGINS_MODEL_DECODER_ROW_DIVISION_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "kernels/attention/exchanged.h"
#include "kernels/layers/row_positions.h"
#include "kernels/memory.h"
#include "plugins/sdk/process_group.h"
#include "plugins/sdk/token_model.h"

namespace capstan::decoder {

// Whether `ranks` divide the heads, and so exchange those.
inline bool DividesHeads(int64_t ranks, int64_t heads, int64_t kv_heads) {
  return heads % ranks == 0 && kv_heads % ranks == 0;
}

// Positions that each of `ranks` has of a row of `length` at most, and what an
// exchange adds to a layer of such rows, `rows` of them.
int64_t OwnLength(int64_t length, int64_t ranks);
void PlanExchange(const kernels::AttentionShape& shape, int64_t rows,
                  int64_t ranks, c10::ScalarType dtype, bool gpu,
                  kernels::OperatorMemory* layer);

class RowDivision final : public kernels::AttentionExchange,
                          public kernels::KeyExchange {
 public:
  // `group` outlives it. by_heads: the ranks divide heads and heads of keys.
  RowDivision(ProcessGroup* group, bool deterministic, bool by_heads)
      : group_(*group), whole_rows_(deterministic), by_heads_(by_heads) {}

  // Whether this rank has a part of each row.
  bool divides() const { return !whole_rows_; }
  // Whether attention has other rows, or heads, than the layers.
  bool exchanges() const { return divides() || by_heads_; }

  // With divides(): adds positions without targets to the end of each row until
  // it has equal parts; they are seen by nothing before them. Unless
  // `by_place` they get positions, as documents of their own.
  void Pad(bool by_place, TokenInput* input, TokenTargets* targets) const;
  // This rank's part [B, T / ranks, ..] of x [B, T, ..], dense.
  at::Tensor PartOf(const at::Tensor& x) const;
  // From this rank's sums over its parts of rows to those over whole rows, with
  // gradients that add up over the ranks.
  at::Tensor WholeSums(const at::Tensor& sums);
  // The same for x [B, T / ranks] of parts, with divides(), or of whole rows:
  // [B, length], contiguous, without what Pad has added.
  at::Tensor WholeRows(const at::Tensor& x, int64_t length);
  // Adds up over the ranks, in place; no gradient.
  void AllSum(const at::Tensor& x) { group_.AllReduce(x)->Wait(); }
  // With divides(), of rows of T positions after Pad: where in this rank's part
  // a row's place [B] is, -1 in others'; and which of its positions, row by
  // row, `tokens` [B, before Pad] have, float32, undefined if all.
  at::Tensor PlacesOf(const at::Tensor& places, int64_t length) const;
  at::Tensor Unpadded(const at::Tensor& tokens, int64_t length) const;
  // Of this rank's parts of rows of T positions.
  kernels::RowPositions Positions(int64_t length) const;

  int ranks() const override { return group_.size(); }
  int rank() const { return group_.rank(); }
  at::Tensor ToAttention(const at::Tensor& x) override;
  at::Tensor FromAttention(const at::Tensor& x) override;
  // Of a pass of `batch` rows of `length` positions from now on, its backward
  // included.
  void SetPass(int64_t batch, int64_t length);

  KeyExchange* keys() override {
    return divides() && !by_heads_ ? this : nullptr;
  }
  c10::ArrayRef<kernels::RowChunk> chunks() const override { return chunks_; }
  at::Tensor Gather(const at::Tensor& x) override;
  at::Tensor SumOwn(const at::Tensor& dy) override;

 private:
  // Into how many chunks rows are divided.
  int64_t chunk_count() const { return by_heads_ ? ranks() : 2 * ranks(); }
  std::vector<kernels::RowChunk> ChunksOf(int64_t length) const;

  ProcessGroup& group_;
  const bool whole_rows_, by_heads_;
  int64_t batch_ = 1;
  std::vector<kernels::RowChunk> chunks_;  // of the pass
};

}  // namespace capstan::decoder

#endif  // CAPSTAN_PLUGINS_MODEL_DECODER_ROW_DIVISION_H_
