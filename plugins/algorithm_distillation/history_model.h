// SPDX-License-Identifier: Apache-2.0
//
// The interface of a model of learning histories (Laskin et al., "In-context
// Reinforcement Learning with Algorithm Distillation", 2022) to an objective,
// which finds it by dynamic_cast<HistoryModel*>(&model). Header only: it is all
// that the two plugins share.
#ifndef CAPSTAN_PLUGINS_ALGORITHM_DISTILLATION_HISTORY_MODEL_H_
#define CAPSTAN_PLUGINS_ALGORITHM_DISTILLATION_HISTORY_MODEL_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "plugins/sdk/model.h"

namespace capstan {

// The kind of a history's token.
enum class HistoryToken : uint8_t {
  kTransition = 0,
  kStart = 1,    // opens a region; only where regions are compressed
  kEnd = 2,      // ends one
  kQuery = 3,    // a state whose action is predicted
  kPadding = 4,  // after a row's last token
};

// Columns of HistoryInput::transitions: an observation, the action, the reward
// (EnvironmentSpec::RewardByte), the next observation.
struct HistoryColumns {
  int64_t numbers = 2;  // of an observation
  int64_t action() const { return numbers; }
  int64_t reward() const { return numbers + 1; }
  int64_t next() const { return numbers + 2; }
  int64_t count() const { return 2 * numbers + 2; }
};

// Of a model.
struct HistorySpec {
  std::vector<int64_t> bounds;  // the numbers of an observation are below these
  int64_t actions = 0;
  int64_t max_length = 0;  // tokens of a row, including its query
  // Whether there are markers and logits of token types.
  bool compressed = false;
  // Columns of the logits: actions, then (compressed) the 3 token types:
  // 0 none, 1 start, 2 end.
  int64_t logits() const { return actions + (compressed ? 3 : 0); }
};

// B histories of up to T tokens, on the model's device.
struct HistoryInput {
  // [B, T, columns] uint8, HistoryColumns. A query has an observation only; its
  // other columns, and all of markers and padding, are arbitrary.
  at::Tensor transitions;
  at::Tensor kinds;    // [B, T] uint8, HistoryToken
  at::Tensor lengths;  // [B] int64, from 1 to T: the tokens of each row
  // [B] int64: keys for dropout (dataset.h). Undefined: no dropout.
  at::Tensor sample_positions;
  uint64_t seed = 0;  // the run's, for dropout
};

// Keys and values of past tokens; rows may differ in length.
class HistoryCache {
 public:
  virtual ~HistoryCache() = default;
  virtual int64_t length(int64_t row) const = 0;
  // Drops a row's tokens.
  virtual void Clear(int64_t row) = 0;
};

class HistoryModel {
 public:
  virtual ~HistoryModel() = default;

  virtual HistorySpec history_spec() const = 0;

  // [B, spec.logits()] float32: predictions after each row's last token, at
  // position lengths[b] - 1, independent of what comes after it.
  virtual at::Tensor LastLogits(const HistoryInput& input,
                                UnitRunner& runner) = 0;

  // An empty cache for `rows` rows of up to spec.max_length tokens.
  virtual std::unique_ptr<HistoryCache> NewCache(int64_t rows) const = 0;

  // The same for new tokens, appended to those in the cache: row b's to row b.
  // The cache keeps them, except for a query, which may only be a row's last
  // token. lengths[b] may be 0: the row is unchanged, and its logits are
  // undefined. lengths may be in CPU memory. Cached and new tokens of a row are
  // at most max_length. Without gradients and dropout.
  virtual at::Tensor NextLogits(HistoryCache& cache, const HistoryInput& input,
                                UnitRunner& runner) = 0;
};

}  // namespace capstan

#endif  // CAPSTAN_PLUGINS_ALGORITHM_DISTILLATION_HISTORY_MODEL_H_
