// SPDX-License-Identifier: Apache-2.0
//
// Has models answer many requests at once. A thread steps the models; texts
// begin and end between the tokens of others (TextBatch). If there are too many
// or the cache has no room, they wait, and requests take turns. A text is what
// `generate` makes of the prompt, whatever is beside it; but for last bits on a
// GPU, of gemma2's capped scores, and of longrope (within 1e-3 of a logit).
#ifndef CAPSTAN_INFERENCE_ENGINE_ENGINE_H_
#define CAPSTAN_INFERENCE_ENGINE_ENGINE_H_

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "inference/engine/answers.h"
#include "inference/engine/engine_text.h"
#include "plugins/sdk/text_batch.h"

namespace capstan {

struct EngineOptions {
  // The most texts of a model at once. Up to 32 (kFewRows) a text's tokens are
  // the same bits as if it were alone.
  int64_t rows = 32;
  // For keys and values of all texts, at their greatest length. Prompts that
  // are being read have caches of their own, which aren't counted.
  int64_t cache_bytes = int64_t{4} << 30;
  size_t waiting = 1024;  // texts; further ones are refused
  // Keeps a single text's keys and values for a next prompt that begins with
  // it, as Objective::KeepContext.
  bool keep_context = false;
};

struct EngineLoad {
  int64_t writing = 0;
  int64_t waiting = 0;
  int64_t answered = 0;       // texts that are done
  int64_t prompt_tokens = 0;  // of all texts so far
  int64_t new_tokens = 0;
};

class Engine {
 public:
  // The models are the engine's own as long as it lives.
  Engine(std::vector<EngineModel> models, const EngineOptions& options);
  // Texts that aren't done come to CANCELLED.
  ~Engine();

  // From any thread. At least one request. RESOURCE_EXHAUSTED if too many are
  // waiting; INVALID_ARGUMENT if so many may never wait; OUT_OF_RANGE if the
  // cache has no room for a text.
  absl::StatusOr<std::unique_ptr<Answers>> Submit(
      std::vector<EngineRequest> requests);
  EngineLoad load() const;
  // Whether the model's texts are written side by side.
  bool batches(size_t model) const { return models_[model].batches; }

 private:
  using Text = std::shared_ptr<EngineText>;
  struct Served {
    EngineModel its;
    bool batches = false;  // constant
    int64_t token_bytes = 0;
    std::unique_ptr<TextBatch> batch;  // null: to be made, if it batches
    std::vector<Text> texts;           // in the batch
  };

  void Run();
  // Moves waiting texts to the batches, by turns, as far as there is room.
  // Returns one to be written alone if it is its turn, and `alone`.
  Text Admit(bool alone);
  // The first waiting text that has been cancelled or has a row.
  std::deque<Text>::iterator Next(bool alone);
  bool HasRowFor(const EngineText& text) const;
  bool HasRoomFor(const EngineText& text) const;
  bool GoesIntoBatch(const EngineText& text) const;
  void AddToBatch(const Text& text);
  // A step of each batch that has texts.
  void StepBatches();
  void StepBatch(Served* served);
  // Beside the batches.
  void WriteAlone(const Text& text);
  void Finish(const Text& text, const absl::Status& status);
  bool writing() const;

  const EngineOptions options_;
  std::vector<Served> models_;  // of the engine's thread
  std::atomic<bool> stopping_{false};
  mutable std::mutex mutex_;  // of what follows
  std::condition_variable changed_;
  std::deque<Text> waiting_;
  EngineLoad load_;
  std::thread thread_;
};

}  // namespace capstan

#endif  // CAPSTAN_INFERENCE_ENGINE_ENGINE_H_
