// SPDX-License-Identifier: Apache-2.0
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>

#include <algorithm>
#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "myvendor/myplugin/myplugin.pb.h"
#include "plugins/sdk/dataset.h"
#include "plugins/sdk/lib/byte_tokenizer.h"
#include "plugins/sdk/plugin.h"

namespace myvendor::myplugin {

// Each line of a text file is a sample; its bytes are the tokens.
class MyPlugin final : public capstan::DatasetReader {
 public:
  static absl::StatusOr<std::unique_ptr<MyPlugin>> Create(
      const Config& config) {
    if (config.sequence_length() < 2) {
      return capstan::FieldError("sequence_length", "must be at least 2");
    }
    std::ifstream file(config.path(), std::ios::binary);
    if (!file) {
      return capstan::FieldError(
          "path", absl::StrCat("\"", config.path(), "\" can't be read"));
    }
    std::vector<std::string> lines;
    for (std::string line; std::getline(file, line);) {
      line += '\n';
      line.resize(std::min<size_t>(line.size(), config.sequence_length()));
      if (line.size() >= 2) lines.push_back(std::move(line));
    }
    if (lines.empty()) {
      return capstan::FieldError(
          "path", absl::StrCat("\"", config.path(), "\" has no text"));
    }
    return std::unique_ptr<MyPlugin>(
        new MyPlugin(std::move(lines), config.sequence_length()));
  }

  int64_t size() const override { return static_cast<int64_t>(lines_.size()); }
  bool shuffle() const override { return true; }

  // Called by several threads at once.
  absl::Status Read(absl::Span<const int64_t> indices,
                    capstan::Batch* batch) const override {
    const int64_t rows = static_cast<int64_t>(indices.size());
    const at::Tensor ids = at::full({rows, length_}, 0, at::kLong);
    // -100: not trained on, as padding must not be.
    const at::Tensor labels = at::full({rows, length_}, -100, at::kLong);
    const at::Tensor counts = at::empty({rows}, at::kLong);
    for (int64_t i = 0; i < rows; ++i) {
      if (indices[i] < 0 || indices[i] >= size()) {
        return absl::OutOfRangeError(absl::StrCat("line ", indices[i], " of ",
                                                  size(), " was asked for"));
      }
      const std::string& line = lines_[indices[i]];
      int64_t* id = ids.mutable_data_ptr<int64_t>() + i * length_;
      for (const char c : line) *id++ = static_cast<unsigned char>(c);
      const int64_t count = static_cast<int64_t>(line.size());
      labels.select(0, i)
          .narrow(0, 0, count)
          .copy_(ids.select(0, i).narrow(0, 0, count));
      counts.mutable_data_ptr<int64_t>()[i] = count;
    }
    *batch = {{"input_ids", ids},
              {"labels", labels},
              {capstan::kTokenCounts, counts}};
    return absl::OkStatus();
  }

  // Nothing is held back: a run that evaluates sets its own eval_data.
  absl::StatusOr<std::unique_ptr<capstan::DatasetReader>> Validation()
      const override {
    return nullptr;
  }

  int64_t max_sequence_length() const override { return length_; }
  int64_t sample_length(int64_t index) const override {
    return static_cast<int64_t>(lines_[index].size());
  }
  const capstan::Tokenizer* tokenizer() const override {
    return tokenizer_.get();
  }

 private:
  MyPlugin(std::vector<std::string> lines, int64_t length)
      : lines_(std::move(lines)),
        length_(length),
        tokenizer_(capstan::NewByteTokenizer()) {}

  const std::vector<std::string> lines_;
  const int64_t length_;
  const std::unique_ptr<capstan::Tokenizer> tokenizer_;
};

CAPSTAN_PLUGIN(DatasetReader, MyPlugin, myvendor::myplugin::Config,
               "the lines of a text, a sample each");

}  // namespace myvendor::myplugin
