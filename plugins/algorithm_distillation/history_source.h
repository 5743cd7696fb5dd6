// SPDX-License-Identifier: Apache-2.0
//
// What a reader of learning histories tells an objective that evaluates in
// context, which finds it by dynamic_cast<const HistorySource*>(&data).
#ifndef CAPSTAN_PLUGINS_ALGORITHM_DISTILLATION_HISTORY_SOURCE_H_
#define CAPSTAN_PLUGINS_ALGORITHM_DISTILLATION_HISTORY_SOURCE_H_

#include <cstdint>
#include <vector>

#include "plugins/algorithm_distillation/darkroom.h"

namespace capstan {

// How a model is told its history, in training and so in evaluation.
struct HistoryForm {
  bool compressed = false;
  // Plain: transitions of a sample, the query's among them. Compressed: steps
  // of a region.
  int64_t length = 0;
  // Compressed: an action is learned of a region's last step, too.
  bool last_action = true;
  // After an episode's last step evaluation shows where it led to, rather than
  // the next episode's start.
  bool terminal_states = false;
  darkroom::Room room;
  darkroom::Variant variant = darkroom::Variant::kGoals;

  // Tokens of the longest sample. Compressed: START, the region before, END,
  // START, all of this region but its last step, QUERY.
  int64_t max_tokens() const { return compressed ? 2 * length + 3 : length; }
};

class HistorySource {
 public:
  virtual ~HistorySource() = default;
  virtual HistoryForm history_form() const = 0;
  // The tasks that this reader stands for: those of its training samples; of
  // validation data all that no training sample may show, be there histories of
  // them or not.
  virtual std::vector<int> tasks() const = 0;
};

}  // namespace capstan

#endif  // CAPSTAN_PLUGINS_ALGORITHM_DISTILLATION_HISTORY_SOURCE_H_
