// SPDX-License-Identifier: Apache-2.0
//
// For tests: a causal model whose logits depend on all previous tokens, with a
// cache for texts of different lengths.
#ifndef CAPSTAN_PLUGINS_SDK_PREFIX_MODEL_FOR_TEST_H_
#define CAPSTAN_PLUGINS_SDK_PREFIX_MODEL_FOR_TEST_H_

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <vector>

#include "plugins/sdk/idle_for_test.h"
#include "plugins/sdk/text_batch.h"
#include "plugins/sdk/token_model.h"

namespace capstan {

class PrefixModel final : public IdleModel, public TokenModel {
 public:
  PrefixModel(int64_t vocab, int64_t positions)
      : IdleModel({}, 1), vocab_(vocab), positions_(positions) {}

  // Whether its caches are BatchedCaches.
  bool batched = true;
  // A longer cache doesn't fit.
  int64_t most_cached = INT64_MAX;
  int64_t tokens_read = 0;
  int64_t eos = -1;
  std::vector<int64_t> other_ends;

  TokenModel* token_model() override { return this; }
  int64_t vocab_size() const override { return vocab_; }
  int64_t max_positions() const override { return positions_; }
  int64_t eos_token() const override { return eos; }
  std::vector<int64_t> other_end_tokens() const override { return other_ends; }

  at::Tensor Logits(const TokenInput& input, UnitRunner&) override {
    const int64_t rows = input.tokens.size(0), length = input.tokens.size(1);
    tokens_read += rows * length;
    Rows none(rows);
    auto* const cache = dynamic_cast<Cache*>(input.cache);
    Rows& texts = cache == nullptr ? none : cache->rows;
    if (static_cast<int64_t>(texts.size()) != rows) {
      throw std::invalid_argument("the batch isn't the cache's");
    }
    if (cache != nullptr) cache->Grow(length);
    const at::Tensor logits = at::empty({rows, length, vocab_}, at::kFloat);
    for (int64_t row = 0; row < rows; ++row) {
      for (int64_t t = 0; t < length; ++t) {
        const int64_t position = input.positions.defined()
                                     ? input.positions[row][t].item<int64_t>()
                                     : static_cast<int64_t>(Text(texts[row]));
        const int64_t token = input.tokens[row][t].item<int64_t>();
        if (position >= 0 && position != Text(texts[row])) {
          throw std::invalid_argument("a position isn't the text's next");
        }
        texts[row].push_back(position < 0 ? -1 : token);
        Fill(texts[row],
             logits.mutable_data_ptr<float>() + (row * length + t) * vocab_);
      }
    }
    return logits;
  }
  at::Tensor CrossEntropySum(const TokenInput&, const TokenTargets&,
                             UnitRunner&) override {
    return {};
  }
  absl::StatusOr<std::unique_ptr<KvCache>> NewCache(
      int64_t batch, int64_t max_length) const override {
    if (max_length > positions_) {
      return absl::InvalidArgumentError("the cache is too long");
    }
    if (max_length > most_cached) {
      return absl::ResourceExhaustedError("see --batch_size");
    }
    if (batched) {
      return std::unique_ptr<KvCache>(new ManyCache(batch, max_length));
    }
    return std::unique_ptr<KvCache>(new Cache(batch, max_length));
  }

 private:
  // Each row's tokens; -1 is padding.
  using Rows = std::vector<std::vector<int64_t>>;

  struct Cache : KvCache {
    Cache(int64_t batch, int64_t max_length) : rows(batch), most(max_length) {}
    int64_t length() const override { return filled; }
    void Grow(int64_t more) {
      filled += more;
      if (filled > most) throw std::invalid_argument("the cache is full");
    }
    Rows rows;
    int64_t filled = 0;
    int64_t most;
  };
  struct ManyCache final : Cache, BatchedCache, JoinableCache {
    BatchedCache* batched() override { return this; }
    using Cache::Cache;
    void Rewind(int64_t length) override {
      filled = length;
      for (auto& row : rows) row.resize(length);
    }
    void KeepRows(const std::vector<int64_t>& kept) override {
      Rows left;
      for (const int64_t row : kept) left.push_back(rows[row]);
      rows = left;
    }
    void Join(KvCache& other) override {
      auto& more = dynamic_cast<ManyCache&>(other);
      filled = std::max(filled, more.filled);
      // Rows of one length may grow together as far as the longest text may.
      most = 2 * std::max(most, more.most);
      rows.insert(rows.end(), more.rows.begin(), more.rows.end());
      for (auto& row : rows) row.insert(row.begin(), filled - row.size(), -1);
    }
    int64_t token_bytes() const override { return 8; }
  };

  static int64_t Text(const std::vector<int64_t>& row) {
    int64_t tokens = 0;
    for (const int64_t token : row) tokens += token >= 0 ? 1 : 0;
    return tokens;
  }

  void Fill(const std::vector<int64_t>& row, float* logits) const {
    double state = 0.5;
    for (const int64_t token : row) {
      if (token >= 0) {
        state =
            std::fmod(state * 3.7 + 0.61 * static_cast<double>(token + 1), 7.0);
      }
    }
    for (int64_t v = 0; v < vocab_; ++v) {
      logits[v] = static_cast<float>(
          3.0 * std::sin(state * static_cast<double>(v + 1)));
    }
  }

  const int64_t vocab_;
  const int64_t positions_;
};

}  // namespace capstan

#endif  // CAPSTAN_PLUGINS_SDK_PREFIX_MODEL_FOR_TEST_H_
