// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_PLUGINS_ALGORITHM_DISTILLATION_OBJECTIVE_FAKE_HISTORY_MODEL_H_
#define CAPSTAN_PLUGINS_ALGORITHM_DISTILLATION_OBJECTIVE_FAKE_HISTORY_MODEL_H_

#include <ATen/ops/empty.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/random.h"
#include "plugins/algorithm_distillation/history_model.h"
#include "plugins/sdk/idle_for_test.h"

namespace capstan::algorithm_distillation {

// A row of tokens as text: "S", "E", "Q44", "T443043.." with each token's
// numbers.
inline std::string RowText(const HistoryInput& input, int64_t row) {
  static const char* const kNames[] = {"T", "S", "E", "Q", "."};
  const int64_t length = input.lengths[row].item<int64_t>();
  std::string text;
  for (int64_t t = 0; t < length; ++t) {
    const int kind = input.kinds[row][t].item<int>();
    text += kNames[kind];
    const int numbers = kind == 0 ? 6 : kind == 3 ? 2 : 0;
    for (int i = 0; i < numbers; ++i) {
      text += std::to_string(input.transitions[row][t][i].item<int>());
    }
  }
  return text;
}

// Its logits are a function of a row's text alone. Records its inputs.
class FakeHistoryModel final : public IdleModel, public HistoryModel {
 public:
  explicit FakeHistoryModel(bool compressed) : IdleModel({}, 0) {
    spec.bounds = {9, 9};
    spec.actions = 5;
    spec.max_length = 64;
    spec.compressed = compressed;
  }

  HistorySpec history_spec() const override { return spec; }

  at::Tensor LastLogits(const HistoryInput& input, UnitRunner&) override {
    ++calls;
    seen_samples = input.sample_positions;
    std::vector<std::string> rows(input.lengths.numel());
    for (size_t i = 0; i < rows.size(); ++i) rows[i] = RowText(input, i);
    return LogitsOf(rows);
  }

  std::unique_ptr<HistoryCache> NewCache(int64_t rows) const override {
    return std::make_unique<Cache>(rows);
  }

  at::Tensor NextLogits(HistoryCache& cache, const HistoryInput& input,
                        UnitRunner&) override {
    ++calls;
    std::vector<std::string>& past = static_cast<Cache&>(cache).texts;
    std::vector<std::string> rows(past.size());
    for (size_t i = 0; i < past.size(); ++i) {
      const std::string next = RowText(input, i);
      if (next.empty()) continue;
      rows[i] = past[i] + next;
      past[i] += next.substr(0, next.find('Q'));
    }
    return LogitsOf(rows);
  }

  HistorySpec spec;
  int calls = 0;
  at::Tensor seen_samples;
  // Rows as whole texts, by call; "" for a row that isn't queried.
  std::vector<std::vector<std::string>> shown;
  // Whether a region ends with the step queried by this text.
  std::function<bool(const std::string&)> ends = [](const std::string&) {
    return false;
  };
  bool finite = true;

 private:
  struct Cache final : public HistoryCache {
    explicit Cache(int64_t rows) : texts(rows) {}
    int64_t length(int64_t row) const override { return texts[row].size(); }
    void Clear(int64_t row) override { texts[row].clear(); }
    std::vector<std::string> texts;
  };

  at::Tensor LogitsOf(const std::vector<std::string>& rows) {
    shown.push_back(rows);
    const int64_t count = static_cast<int64_t>(rows.size());
    const at::Tensor logits = at::empty({count, spec.logits()}, at::kFloat);
    float* out = logits.mutable_data_ptr<float>();
    for (const std::string& row : rows) {
      const uint64_t key = RandomKey(1, row);
      for (int64_t i = 0; i < spec.actions; ++i) {
        *out++ = finite ? RandomUniform(key, i) : 0.0f / 0.0f;
      }
      if (!spec.compressed) continue;
      *out++ = 1.0f;
      *out++ = 0.0f;
      *out++ = !row.empty() && ends(row) ? 2.0f : 0.0f;
    }
    return logits;
  }
};

}  // namespace capstan::algorithm_distillation

#endif  // CAPSTAN_PLUGINS_ALGORITHM_DISTILLATION_OBJECTIVE_FAKE_HISTORY_MODEL_H_
