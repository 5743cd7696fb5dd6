// SPDX-License-Identifier: Apache-2.0
//
// The loop by which a model of which a token sees only what comes before it
// continues texts: logits for each, a token for each, and so on.
#ifndef CAPSTAN_PLUGINS_OBJECTIVE_COMMON_DECODE_LOOP_H_
#define CAPSTAN_PLUGINS_OBJECTIVE_COMMON_DECODE_LOOP_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "plugins/sdk/token_model.h"
#include "plugins/sdk/unit_runner.h"

namespace capstan {

// The most tokens that go through a model at once, so that what it makes on the
// way stays small, and a long prompt can be stopped.
constexpr int64_t kPromptTokens = 256;

// Token ids of each text, prompt included.
using Texts = std::vector<std::vector<int64_t>>;

// A model with the cached keys and values of texts, a row each.
class Continuation {
 public:
  virtual ~Continuation() = default;

  // float32 logits [texts, V] on the CPU for the token after each text, which
  // is longer than at the last call. The caller may change them. CANCELLED if
  // `stop` says so between two forwards.
  virtual absl::StatusOr<at::Tensor> NextLogits(
      Texts& texts, const std::function<bool()>& stop, UnitRunner& runner) = 0;

  // As BatchedCache::KeepRows. By default nothing: for a single text.
  virtual void KeepRows(const std::vector<int64_t>& rows) {}
};

// Of one text, of which the model sees the end. When the model runs out of
// positions, the later half is started again.
class CausalContext final : public Continuation {
 public:
  // Whether Begin makes use of what the last text left.
  explicit CausalContext(bool kept) : kept_(kept) {}

  // Before a text that begins with `prompt` and is to have `longest` tokens.
  void Begin(TokenModel* model, absl::Span<const int64_t> prompt,
             int64_t longest);
  absl::StatusOr<at::Tensor> NextLogits(Texts& texts,
                                        const std::function<bool()>& stop,
                                        UnitRunner& runner) override;

  // The same piece by piece. Of a text of `length` tokens: makes room for it.
  absl::Status Prepare(int64_t length);
  // How many of them aren't in the cache.
  int64_t Missing(int64_t length) const;
  // Adds a piece of them, if any is missing, and returns the logits [n, V] for
  // what follows each token of it or, unless `all`, its last one.
  at::Tensor AddPiece(absl::Span<const int64_t> text, bool all,
                      UnitRunner& runner);
  // Gives the cache away.
  std::unique_ptr<KvCache> Release();

 private:
  const bool kept_;
  TokenModel* model_ = nullptr;
  int64_t capacity_ = 0;
  std::unique_ptr<KvCache> cache_;
  std::vector<int64_t> cached_;  // the tokens in it
  int64_t begin_ = 0;            // offset in the text of the cache's start
};

// As NextLogits returns them.
at::Tensor HostLogits(const at::Tensor& logits);

// Of several texts in one cache, which get up to `wanted` more tokens. Runs all
// of them but their last tokens. UNIMPLEMENTED if the model's cache is no
// BatchedCache.
absl::StatusOr<std::unique_ptr<Continuation>> ContinueTogether(
    TokenModel* model, const Texts& texts, int64_t wanted, UnitRunner& runner);

// Adds a token to each of the loop's texts by logits [texts, V], which it may
// change; may leave texts out, or go on with one in several ways: then appends
// to `rows` which of the texts each of those that go on was.
using ExtendTexts = std::function<absl::Status(const at::Tensor& logits,
                                               std::vector<int64_t>* rows)>;

// Extends `texts` up to `wanted` times, as long as there are any. CANCELLED if
// `stop`, which is asked before each forward, says so.
absl::Status DecodeLoop(Continuation* model, int64_t wanted,
                        const std::function<bool()>& stop, UnitRunner& runner,
                        Texts* texts, const ExtendTexts& extend);

}  // namespace capstan

#endif  // CAPSTAN_PLUGINS_OBJECTIVE_COMMON_DECODE_LOOP_H_
