// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_PLUGINS_LLADA_WINDOWS_LLADA_WINDOWS_H_
#define CAPSTAN_PLUGINS_LLADA_WINDOWS_LLADA_WINDOWS_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "plugins/llada/windows/llada_windows.pb.h"
#include "plugins/llada/windows/window_data.h"
#include "plugins/sdk/dataset.h"

namespace capstan::llada_windows {

// Overlapping windows of a text. Batches have "input_ids" [n, sequence_length]
// int64, reusing *batch's tensor of that name. Ranks map the files that they
// train on, so that a machine holds their pages once.
class LladaWindows final : public DatasetReader {
 public:
  static absl::StatusOr<std::unique_ptr<LladaWindows>> Create(
      const Config& config);

  int64_t size() const override { return windows_->size(); }
  bool shuffle() const override { return shuffle_; }
  absl::Status Read(absl::Span<const int64_t> indices,
                    Batch* batch) const override;
  absl::StatusOr<std::unique_ptr<DatasetReader>> Validation() const override;
  int64_t max_sequence_length() const override { return data_.sequence_length; }
  std::vector<std::string> notes() const override { return data_.notes; }
  const Tokenizer* tokenizer() const override { return data_.tokenizer.get(); }
  // Of all the data, not only this reader's part.
  absl::StatusOr<std::string> Digest() const override { return data_.digest(); }

 private:
  LladaWindows(std::string source, bool shuffle, WindowData data,
               std::shared_ptr<const Windows> windows);

  const std::string source_;  // for errors
  const bool shuffle_;
  const WindowData data_;
  // What this reader reads: a part of data_.
  const std::shared_ptr<const Windows> windows_;
};

}  // namespace capstan::llada_windows

#endif  // CAPSTAN_PLUGINS_LLADA_WINDOWS_LLADA_WINDOWS_H_
