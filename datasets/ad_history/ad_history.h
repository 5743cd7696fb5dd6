// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_DATASETS_AD_HISTORY_AD_HISTORY_H_
#define CAPSTAN_DATASETS_AD_HISTORY_AD_HISTORY_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "datasets/ad_history/ad_history.pb.h"
#include "datasets/ad_history/history_table.h"
#include "datasets/ad_history/sample_layout.h"
#include "plugins/algorithm_distillation/history_source.h"
#include "plugins/sdk/dataset.h"

namespace capstan::ad_history {

// Learning histories as samples, each of which predicts one action. With T the
// tokens of the longest sample, batches have
//  "transitions" [n, T, 6] uint8 and "kinds" [n, T] uint8 (history_model.h),
//  "lengths" [n] int64: tokens of each sample,
//  "action" [n] int64: the action taken, -100 if not trained on,
//  "token_type" [n] int64: what follows, 2 (END) at a region's last step,
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

 private:
  AdHistory(const Config& config, const HistoryForm& form,
            darkroom::Split split, std::shared_ptr<const HistoryTable> table);

  // How many of these tasks the file has.
  int64_t CountInFile(const std::vector<int>& tasks) const;

  const Config config_;
  const HistoryForm form_;
  const darkroom::Split split_;  // of all tasks in existence
  const std::shared_ptr<const HistoryTable> table_;
  const SampleLayout layout_;
};

}  // namespace capstan::ad_history

#endif  // CAPSTAN_DATASETS_AD_HISTORY_AD_HISTORY_H_
