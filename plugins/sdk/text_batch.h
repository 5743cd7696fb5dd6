// SPDX-License-Identifier: Apache-2.0
//
// Texts that a model continues side by side, each of which begins and ends
// between two tokens of the others ("iteration-level scheduling", Yu et al.,
// "Orca", OSDI 2022).
#ifndef CAPSTAN_PLUGINS_SDK_TEXT_BATCH_H_
#define CAPSTAN_PLUGINS_SDK_TEXT_BATCH_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "plugins/sdk/model.h"
#include "plugins/sdk/objective.h"
#include "plugins/sdk/token_model.h"
#include "plugins/sdk/unit_runner.h"

namespace capstan {

struct BatchedText {
  std::vector<int64_t> prompt;  // at least one token
  // As for Objective::Sample; max_new_tokens is greater than 0. `stop` ends
  // this text alone, with CANCELLED.
  SampleOptions options;
  // Gets the model's logits [V] for the token at `place` of the text, before
  // any rule of the options: of each new token, before on_token. May be null.
  std::function<void(size_t place, absl::Span<const float> logits)> on_logits;
  // Whether on_logits gets those for the prompt's tokens, too, but the first.
  bool prompt_logits = false;
  // Called last, with an error if the text could not go on.
  std::function<void(const absl::Status& status)> done;
};

// Not thread-safe. Without gradients.
class TextBatch {
 public:
  virtual ~TextBatch();

  // Adds a text, of which Step makes tokens and calls the callbacks. It becomes
  // what Objective::Sample would make of it, whatever is beside it.
  // INVALID_ARGUMENT for options that can't be; OUT_OF_RANGE if the model has
  // fewer positions than prompt and new tokens.
  virtual absl::Status Add(BatchedText text) = 0;
  virtual size_t size() const = 0;  // texts that aren't done

  // Runs a piece of those prompts that the cache lacks, then adds a token to
  // each text of which it has the prompt. After an error or an exception no
  // text can go on; their `done` isn't called.
  virtual absl::Status Step(UnitRunner& runner) = 0;

  virtual int64_t token_bytes() const = 0;  // in the cache

 private:
  // Room to grow (plugin.h).
  virtual void Room1();
  virtual void Room2();
};

// What an Objective also is if it can have texts in a TextBatch.
class TextBatching {
 public:
  virtual ~TextBatching();

  // `keep_context`: as Objective::KeepContext, for a text that is alone. The
  // model and the objective outlive the batch. UNIMPLEMENTED if the model's
  // cache is no JoinableCache.
  virtual absl::StatusOr<std::unique_ptr<TextBatch>> NewTextBatch(
      Model& model, bool keep_context) = 0;

 private:
  // Room to grow (plugin.h).
  virtual void Room1();
  virtual void Room2();
};

// What a KvCache that is a BatchedCache also is if rows can be added to it.
class JoinableCache {
 public:
  virtual ~JoinableCache();

  // Adds the rows of `other`, a cache of the same model that is then of no more
  // use. The rows end together, so that the shorter ones get padding in front,
  // and each may have as many tokens as the larger cache allows.
  virtual void Join(KvCache& other) = 0;
  virtual int64_t token_bytes() const = 0;

 private:
  // Room to grow (plugin.h).
  virtual void Room1();
  virtual void Room2();
};

}  // namespace capstan

#endif  // CAPSTAN_PLUGINS_SDK_TEXT_BATCH_H_
