// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_DATASETS_AD_HISTORY_SAMPLE_LAYOUT_H_
#define CAPSTAN_DATASETS_AD_HISTORY_SAMPLE_LAYOUT_H_

#include <cstdint>

#include "datasets/ad_history/history_table.h"
#include "plugins/algorithm_distillation/history_source.h"

namespace capstan::ad_history {

// The transitions [begin, end) of a history.
struct StepRange {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t size() const { return end - begin; }
};

// A sample's location in a history.
struct Sample {
  int64_t history = 0;
  StepRange previous;  // previous region; compressed only, may be empty
  StepRange current;   // up to the query
  int64_t query = 0;   // its state is shown, its action predicted
  bool ends_region = false;
};

// Which samples exist: a function of the sizes alone.
class SampleLayout {
 public:
  // `short_contexts` is for plain histories only.
  SampleLayout(const HistoryForm& form, bool short_contexts, int64_t steps,
               int64_t histories);

  // Plain: (steps - length + 1) per history, or all its steps if contexts may
  // be short. Compressed: all steps of its whole regions.
  int64_t size() const { return histories_ * per_history_; }
  // `index` is in [0, size()).
  Sample At(int64_t index) const;
  // The sample's tokens.
  int64_t Length(const Sample& sample) const;

  // Writes a sample as `tokens` tokens: transitions [tokens, 6] and kinds
  // [tokens] (HistoryToken). The rest is filled with 0 and kPadding.
  void Write(const Sample& sample, const uint8_t* history, int64_t tokens,
             uint8_t* transitions, uint8_t* kinds) const;

 private:
  const HistoryForm form_;
  const int64_t histories_;
  int64_t first_ = 0;  // the first step that is queried
  int64_t per_history_ = 0;
};

}  // namespace capstan::ad_history

#endif  // CAPSTAN_DATASETS_AD_HISTORY_SAMPLE_LAYOUT_H_
