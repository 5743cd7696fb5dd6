// SPDX-License-Identifier: Apache-2.0
//
// The interface of a reader of learning histories to an objective that
// evaluates in context, which finds it by dynamic_cast<const
// HistorySource*>(&data).
#ifndef CAPSTAN_PLUGINS_ALGORITHM_DISTILLATION_HISTORY_SOURCE_H_
#define CAPSTAN_PLUGINS_ALGORITHM_DISTILLATION_HISTORY_SOURCE_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "plugins/algorithm_distillation/environment.h"

namespace capstan {

// How a history is presented to the model, in training and evaluation.
struct HistoryForm {
  bool compressed = false;
  // Plain: transitions per sample, including the query. Compressed: steps per
  // region.
  int64_t length = 0;
  // Compressed: whether the action of a region's last step is trained on.
  bool last_action = true;
  // Whether evaluation shows the state that an episode's last step leads to,
  // rather than the next episode's start.
  bool terminal_states = false;
  // What the histories are of, and what evaluation plays.
  std::shared_ptr<const Environment> environment;

  // Tokens of the longest sample. Compressed: START, the previous region, END,
  // START, all of this region but its last step, QUERY.
  int64_t max_tokens() const { return compressed ? 2 * length + 3 : length; }
};

class HistorySource {
 public:
  virtual ~HistorySource() = default;
  virtual HistoryForm history_form() const = 0;
  // The tasks of this reader: of training data, those of its samples; of
  // validation data, all held-out tasks, whether or not it has their histories.
  virtual std::vector<int> tasks() const = 0;
};

}  // namespace capstan

#endif  // CAPSTAN_PLUGINS_ALGORITHM_DISTILLATION_HISTORY_SOURCE_H_
