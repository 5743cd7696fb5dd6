// SPDX-License-Identifier: Apache-2.0
//
// What an engine's client gets: the texts of its requests, as they are written.
#ifndef CAPSTAN_INFERENCE_ENGINE_ANSWERS_H_
#define CAPSTAN_INFERENCE_ENGINE_ANSWERS_H_

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/optional.h"
#include "inference/decode/stop_strings.h"

namespace capstan {

// A token of a text, and of what the model thought in its place: natural
// logarithms of probabilities, before temperature and rules.
struct AnswerToken {
  int64_t token = -1;
  float logprob = 0.0f;
  std::vector<std::pair<int64_t, float>> likeliest;  // the likeliest first
};

// The next part of a text.
struct AnswerPiece {
  size_t request = 0;               // whose text it is
  std::vector<AnswerToken> prompt;  // with prompt_logprobs, once: of all but
                                    // the first token
  std::vector<AnswerToken> tokens;  // new ones, in order
  // Of a model that writes in any order, instead: all tokens behind the prompt
  // as they are now, with the model's mask_token where none is chosen.
  std::vector<int64_t> whole;

  // The text is done; only its last piece has these.
  bool last = false;
  absl::Status status;   // why it could not go on
  bool stopped = false;  // at an end token or a stop string, not for length
};

// The pieces of some requests, between the engine's thread, which adds them,
// and a client's.
class AnswerQueue {
 public:
  explicit AnswerQueue(size_t requests) : left_(requests) {}

  void Add(AnswerPiece piece);
  // See Answers.
  absl::optional<AnswerPiece> Next(std::chrono::milliseconds limit);
  size_t left() const;
  void Cancel() { cancelled_ = true; }
  bool cancelled() const { return cancelled_; }

 private:
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<AnswerPiece> pieces_;
  size_t left_;
  std::atomic<bool> cancelled_{false};
};

// Of one Engine::Submit. Its end cancels what isn't done.
class Answers {
 public:
  explicit Answers(std::shared_ptr<AnswerQueue> queue)
      : queue_(std::move(queue)) {}
  ~Answers() { queue_->Cancel(); }
  Answers(const Answers&) = delete;
  Answers& operator=(const Answers&) = delete;

  // All there is of the next text that has something new; waits up to `limit`
  // for it. Nothing if there is none, or all texts are done.
  absl::optional<AnswerPiece> Next(std::chrono::milliseconds limit) {
    return queue_->Next(limit);
  }
  // Texts of which Next hasn't returned the last piece.
  size_t left() const { return queue_->left(); }
  // Has the texts end, which then come to CANCELLED.
  void Cancel() { queue_->Cancel(); }

 private:
  const std::shared_ptr<AnswerQueue> queue_;
};

// A text's bytes as they can be given away: whole characters of UTF-8 that no
// stop string takes back.
class CertainText {
 public:
  // `stops` outlives this.
  explicit CertainText(const StopStrings* stops) : stops_(stops) {}

  // Returns what has become certain.
  std::string Add(absl::string_view bytes);
  // Returns the rest.
  std::string Finish();

 private:
  // Gives the first bytes away.
  std::string Upto(size_t end);

  const StopStrings* stops_;
  std::string text_;  // what isn't certain yet
};

}  // namespace capstan

#endif  // CAPSTAN_INFERENCE_ENGINE_ANSWERS_H_
