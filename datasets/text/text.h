// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_DATASETS_TEXT_TEXT_H_
#define CAPSTAN_DATASETS_TEXT_TEXT_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "datasets/text/text.pb.h"
#include "plugins/sdk/dataset.h"
#include "plugins/sdk/tokenizer.h"

namespace capstan::text {

// A text's tokens, from its beginning to its end. Threads may share them.
struct TokenizedText {
  int64_t bytes = 0;       // of the file
  int64_t size = 0;        // tokens
  bool of_bytes = false;   // whether each token is a byte of the text
  int64_t train_size = 0;  // where the validation part begins
  // Reads tokens [begin, begin + n), which must exist.
  std::function<absl::Status(int64_t begin, int64_t n, int64_t* out)> read;
  std::function<absl::StatusOr<std::string>()> digest;
  std::shared_ptr<const Tokenizer> tokenizer;
};

// A text as samples of sequence_length tokens: sample i starts at token i *
// sequence_length; the remainder is dropped. Batches have "input_ids" [n,
// sequence_length] int64, reusing *batch's tensor of that name.
class Text final : public DatasetReader {
 public:
  static absl::StatusOr<std::unique_ptr<Text>> Create(const Config& config);

  int64_t size() const override {
    return (end_ - begin_) / config_.sequence_length();
  }
  bool shuffle() const override { return config_.shuffle(); }
  absl::Status Read(absl::Span<const int64_t> indices,
                    Batch* batch) const override;
  absl::StatusOr<std::unique_ptr<DatasetReader>> Validation() const override;
  int64_t max_sequence_length() const override {
    return config_.sequence_length();
  }
  const Tokenizer* tokenizer() const override { return text_.tokenizer.get(); }
  std::vector<CountedFile> counted_files() const override;
  // Of the text, or of its tokens: all of them, not only this reader's part.
  absl::StatusOr<std::string> Digest() const override;

 private:
  Text(const Config& config, TokenizedText text, int64_t begin, int64_t end);
  // An error if the part to read, named `part`, is shorter than a sample.
  absl::Status CheckLength(const char* part) const;

  const Config config_;
  const TokenizedText text_;
  // What this reader reads.
  const int64_t begin_;
  const int64_t end_;
};

}  // namespace capstan::text

#endif  // CAPSTAN_DATASETS_TEXT_TEXT_H_
