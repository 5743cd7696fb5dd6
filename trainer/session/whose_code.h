// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TRAINER_SESSION_WHOSE_CODE_H_
#define CAPSTAN_TRAINER_SESSION_WHOSE_CODE_H_

#include <pthread.h>

#include <atomic>
#include <exception>
#include <string>

#include "absl/status/status.h"

namespace capstan {

// A run's plugins for errors, each with its slot in the config: "model
// capstan.llama".
struct PluginNames {
  std::string model = "model";
  std::string objective = "objective";
  std::string strategy = "strategy";
  std::string optimizer = "optimizer";
  std::string train_data = "train_data";
  std::string eval_data = "eval_data";  // or train_data, which holds some back
};

// While it lives, this process runs a plugin's code, which errors then name:
// Explain those of an exception, ExitGuard those of a crash. Scopes nest; one
// costs two stores.
//
// Used by the thread that trains, and by autograd's threads while that one
// waits.
class WhoseCode {
 public:
  // `whose` is "model acme.tiny", say. `function` is a literal, "Compute", or
  // "" for the body of a unit. `unit` is the unit's name, or null. All must
  // outlive this.
  WhoseCode(const std::string& whose, const char* function,
            const std::string* unit = nullptr)
      : whose_(whose),
        function_(function),
        unit_(unit),
        exceptions_(std::uncaught_exceptions()),
        outer_(current_.exchange(this)) {
    if (left_.load(std::memory_order_relaxed)) ForgetLeft();
  }
  ~WhoseCode() {
    if (std::uncaught_exceptions() > exceptions_) Leave();
    current_.store(outer_);
  }
  WhoseCode(const WhoseCode&) = delete;
  WhoseCode& operator=(const WhoseCode&) = delete;

  // "model acme.tiny, unit 'layers.2'" or "strategy acme.zero, FinishBackward".
  std::string Text() const;

  // Returns the innermost scope, or null. Async-signal-safe.
  static const WhoseCode* current() { return current_; }
  const std::string& whose() const { return whose_; }
  const char* function() const { return function_; }
  const std::string* unit() const { return unit_; }
  bool OnThisThread() const { return pthread_equal(thread_, pthread_self()); }

  // Adds to an INTERNAL error, which is what exceptions become, the Text of the
  // innermost scope that an exception has left since the last scope began, if
  // any; only once. Returns any other status unchanged.
  static absl::Status Explain(const absl::Status& status);

 private:
  void Leave() const;
  static void ForgetLeft();

  static std::atomic<const WhoseCode*> current_;
  static std::atomic<bool> left_;  // whether one was left

  const std::string& whose_;
  const char* const function_;
  const std::string* const unit_;
  const pthread_t thread_ = pthread_self();
  const int exceptions_;
  const WhoseCode* const outer_;
};

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_SESSION_WHOSE_CODE_H_
