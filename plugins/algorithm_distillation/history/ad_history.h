// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_PLUGINS_ALGORITHM_DISTILLATION_HISTORY_AD_HISTORY_H_
#define CAPSTAN_PLUGINS_ALGORITHM_DISTILLATION_HISTORY_AD_HISTORY_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "plugins/algorithm_distillation/darkroom.h"
#include "plugins/algorithm_distillation/history/ad_history.pb.h"
#include "plugins/algorithm_distillation/history_model.h"
#include "plugins/algorithm_distillation/history_source.h"
#include "plugins/sdk/dataset.h"

namespace capstan::ad_history {

struct HistoryTable;  // ad_history.cc

// The transitions [begin, end) of a history.
struct StepRange {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t size() const { return end - begin; }
};

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
  int64_t Length(const Sample& sample) const;
  const HistoryColumns& columns() const { return columns_; }

  // Writes a sample as `tokens` tokens: transitions [tokens, columns] and kinds
  // [tokens] (HistoryToken). The rest is filled with 0 and kPadding.
  void Write(const Sample& sample, const uint8_t* history, int64_t tokens,
             uint8_t* transitions, uint8_t* kinds) const;

 private:
  const HistoryForm form_;
  const HistoryColumns columns_;
  const int64_t histories_;
  int64_t first_ = 0;  // the first step that is queried
  int64_t per_history_ = 0;
};

// Learning histories as samples, each of which predicts one action. With T the
// tokens of the longest sample, batches have
//  "transitions" [n, T, columns] uint8 and "kinds" [n, T] uint8
//  (history_model.h), "lengths" [n] int64: tokens of each sample, "action" [n]
//  int64: the action taken, -100 if not trained on, "token_type" [n] int64:
//  what follows, 2 (END) at a region's last step,
//    else 0; compressed only.
class AdHistory final : public DatasetReader, public HistorySource {
 public:
  static absl::StatusOr<std::unique_ptr<AdHistory>> Create(
      const Config& config);

  int64_t size() const override { return layout_.size(); }
  bool shuffle() const override { return config_.shuffle(); }
  absl::Status Read(absl::Span<const int64_t> indices,
                    Batch* batch) const override;
  // The held-out tasks: for a TRAIN reader those of TEST, or null if the file
  // has none of them; for a TEST reader null.
  absl::StatusOr<std::unique_ptr<DatasetReader>> Validation() const override;
  int64_t max_sequence_length() const override { return form_.max_tokens(); }
  // For a TRAIN reader: how many of the tasks the file has, if not all.
  std::vector<std::string> notes() const override;

  HistoryForm history_form() const override { return form_; }
  std::vector<int> tasks() const override;
  // Of the histories that are read.
  absl::StatusOr<std::string> Digest() const override;

 private:
  AdHistory(const Config& config, HistoryForm form,
            std::shared_ptr<const HistoryTable> table);

  int64_t CountInFile(const std::vector<int>& tasks) const;

  const Config config_;
  const HistoryForm form_;
  const std::shared_ptr<const HistoryTable> table_;
  const darkroom::Split split_;  // of all tasks in existence
  const SampleLayout layout_;
};

}  // namespace capstan::ad_history

#endif  // CAPSTAN_PLUGINS_ALGORITHM_DISTILLATION_HISTORY_AD_HISTORY_H_
