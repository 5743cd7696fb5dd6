// SPDX-License-Identifier: Apache-2.0
//
// What a model of learning histories (Laskin et al., "In-context Reinforcement
// Learning with Algorithm Distillation", 2022) offers an objective, which finds
// it by dynamic_cast<HistoryModel*>(&model). Header only: nothing is shared
// between the two plugins but this text.
#ifndef CAPSTAN_PLUGINS_ALGORITHM_DISTILLATION_HISTORY_MODEL_H_
#define CAPSTAN_PLUGINS_ALGORITHM_DISTILLATION_HISTORY_MODEL_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>

#include "plugins/sdk/model.h"

namespace capstan {

// What a token of a history is.
enum class HistoryToken : uint8_t {
  kTransition = 0,
  kStart = 1,    // opens a region; only where regions are compressed
  kEnd = 2,      // ends one
  kQuery = 3,    // a state whose action is asked for
  kPadding = 4,  // behind a row's last token
};

// Columns of HistoryInput::transitions.
enum HistoryColumn : int {
  kHistoryRow = 0,
  kHistoryColumn = 1,
  kHistoryAction = 2,
  kHistoryReward = 3,
  kHistoryNextRow = 4,
  kHistoryNextColumn = 5,
  kHistoryColumns = 6,
};

// Of a model. Coordinates of states are below `grid`.
struct HistorySpec {
  int64_t grid = 0;
  int64_t actions = 0;
  int64_t max_length = 0;  // tokens of a row, its query included
  // Whether there are markers and logits of token types.
  bool compressed = false;
  // Columns of the logits: actions, then (compressed) the 3 token types:
  // 0 none, 1 start, 2 end.
  int64_t logits() const { return actions + (compressed ? 3 : 0); }
};

// B histories of up to T tokens, on the model's device.
struct HistoryInput {
  // [B, T, 6] uint8, HistoryColumn. A query has row and column only; the
  // others of it, and all of markers and padding, are any numbers.
  at::Tensor transitions;
  at::Tensor kinds;    // [B, T] uint8, HistoryToken
  at::Tensor lengths;  // [B] int64, from 1 to T: the tokens of each row
  // [B] int64: keys for dropout (dataset.h). Undefined: no dropout.
  at::Tensor sample_positions;
  uint64_t seed = 0;  // the run's, for dropout
};

// Keys and values of past tokens; each row has as many as it has.
class HistoryCache {
 public:
  virtual ~HistoryCache() = default;
  virtual int64_t rows() const = 0;
  virtual int64_t length(int64_t row) const = 0;
  // Forgets a row's tokens.
  virtual void Clear(int64_t row) = 0;
};

class HistoryModel {
 public:
  virtual ~HistoryModel() = default;

  virtual HistorySpec history_spec() const = 0;

  // [B, spec.logits()] float32: what follows each row's last token, position
  // lengths[b] - 1. What lies behind it in its row has no influence.
  virtual at::Tensor LastLogits(const HistoryInput& input,
                                UnitRunner& runner) = 0;

  // An empty cache for `rows` rows of up to spec.max_length tokens.
  virtual std::unique_ptr<HistoryCache> NewCache(int64_t rows) const = 0;

  // The same for tokens that follow those of the cache: row b's in row b. They
  // are added to it, but for a query, which may only be a row's last token.
  // lengths[b] may be 0: such a row stays as it is, and its logits mean
  // nothing. lengths may be in CPU memory. Cached and new tokens of a row are
  // max_length at most. Without gradients and dropout.
  virtual at::Tensor NextLogits(HistoryCache& cache, const HistoryInput& input,
                                UnitRunner& runner) = 0;
};

}  // namespace capstan

#endif  // CAPSTAN_PLUGINS_ALGORITHM_DISTILLATION_HISTORY_MODEL_H_
