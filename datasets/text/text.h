// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_DATASETS_TEXT_TEXT_H_
#define CAPSTAN_DATASETS_TEXT_TEXT_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "datasets/text/mapped_file.h"
#include "datasets/text/text.pb.h"
#include "plugins/sdk/dataset.h"

namespace capstan {
namespace text {

// A memory-mapped text as samples of sequence_length tokens: sample i is
// tokens i * sequence_length and on; what is left at the end is not used.
// Gives "input_ids" [n, sequence_length] int64, written into the tensor of that
// name which *batch may hold already.
class Text final : public DatasetReader {
 public:
  static absl::StatusOr<std::unique_ptr<Text>> Create(const Config& config);

  int64_t size() const override {
    return static_cast<int64_t>(part_.size()) / config_.sequence_length();
  }
  bool shuffle() const override { return config_.shuffle(); }
  absl::Status Read(absl::Span<const int64_t> indices,
                    Batch* batch) const override;
  absl::StatusOr<std::unique_ptr<DatasetReader>> Validation() const override;
  int64_t max_sequence_length() const override {
    return config_.sequence_length();
  }
  const Tokenizer* tokenizer() const override { return tokenizer_.get(); }

 private:
  Text(const Config& config, std::shared_ptr<MappedFile> file,
       absl::string_view part);

  const Config config_;
  const std::shared_ptr<MappedFile> file_;
  const absl::string_view part_;  // of file_: what this reader reads
  const std::unique_ptr<Tokenizer> tokenizer_;
};

}  // namespace text
}  // namespace capstan

#endif  // CAPSTAN_DATASETS_TEXT_TEXT_H_
