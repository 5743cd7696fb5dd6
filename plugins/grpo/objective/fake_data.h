// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_PLUGINS_GRPO_OBJECTIVE_FAKE_DATA_H_
#define CAPSTAN_PLUGINS_GRPO_OBJECTIVE_FAKE_DATA_H_

#include <memory>
#include <string>
#include <vector>

#include "plugins/sdk/dataset.h"
#include "text/chat_template/fake_tokenizer.h"

namespace capstan::grpo {

// Data of one row that nobody reads, with a tokenizer of bytes.
class FakeData : public DatasetReader {
 public:
  explicit FakeData(const std::vector<std::string>& special,
                    const std::string& jinja = "")
      : tokenizer_(special, jinja) {}

  int64_t size() const override { return 1; }
  bool shuffle() const override { return false; }
  absl::Status Read(absl::Span<const int64_t>, Batch*) const override {
    return absl::OkStatus();
  }
  absl::StatusOr<std::unique_ptr<DatasetReader>> Validation() const override {
    return std::unique_ptr<DatasetReader>();
  }
  const Tokenizer* tokenizer() const override { return &tokenizer_; }

 protected:
  FakeTokenizer tokenizer_;
};

}  // namespace capstan::grpo

#endif  // CAPSTAN_PLUGINS_GRPO_OBJECTIVE_FAKE_DATA_H_
