// SPDX-License-Identifier: Apache-2.0
//
// Rules about a run, and telling a webhook or a command when one is met.
#ifndef CAPSTAN_DESK_TRACK_ALERTS_H_
#define CAPSTAN_DESK_TRACK_ALERTS_H_

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "desk/track/follower.h"
#include "desk/track/http_target.h"
#include "desk/track/run_folder.h"

namespace capstan::track {

// "loss>5", "eval_loss<=2", "spike", "hang>600", "end".
struct AlertRule {
  enum class Kind { kMetric, kSpike, kHang, kEnd };

  std::string text;
  Kind kind = Kind::kMetric;
  std::string metric;
  std::string comparison;  // "<", "<=", ">" or ">="
  double bound = 0.0;      // kHang: seconds

  // An error names --alert and says what a rule may be.
  static absl::StatusOr<AlertRule> Parse(const std::string& text);
  // A value that isn't a number meets every rule about it.
  bool IsMetBy(double value) const;
};

struct AlertOptions {
  std::vector<AlertRule> rules;
  std::string webhook;  // "": none
  std::string command;  // "": none
};

// A run's alerts. Each rule is told once a run, however often its tracker is
// started again. One thread.
class Alerts {
 public:
  // `run`: its name and folder are told. `told`: as Told() was before.
  Alerts(const AlertOptions& options, std::string name, std::string folder,
         nlohmann::ordered_json told);

  void Look(const Row& row);
  // Says on standard error, once, which metrics of rules no row had that was
  // looked at: they may be misspelt. Those of evaluations may come until one
  // was made, or the run has `ended`.
  void SayUnknown(bool ended);
  // `newest`: when the run has last written something, Unix seconds.
  void LookAt(const RunState& state, double newest);

  // Tells what was found, and what couldn't be told before. Returns whether
  // Told() has changed. What the webhook refuses counts as told, and is said on
  // standard error.
  bool Deliver(const std::string& run_id);
  bool pending() const { return !found_.empty(); }
  // For how long the webhook hasn't answered, and why; 0: it has.
  double OutageSeconds() const;
  const absl::Status& outage() const { return outage_; }

  // By rule: the alert that was told.
  const nlohmann::ordered_json& Told() const { return told_; }

 private:
  void Find(const AlertRule& rule, int64_t step, double time,
            const nlohmann::ordered_json& value, const std::string& text);
  absl::Status Tell(const nlohmann::ordered_json& alert);

  const AlertOptions options_;
  const std::string name_;
  const std::string folder_;
  std::set<std::string> metrics_;  // that rows had; not all if they are many
  std::set<std::string> unknown_;  // of rules, as was said
  std::unique_ptr<HttpTarget> webhook_;
  absl::Status outage_;
  double outage_began_ = 0.0;  // MonotonicSeconds, if there is one
  double wait_until_ = 0.0;    // the same
  int failures_ = 0;
  std::vector<nlohmann::ordered_json> found_;
  nlohmann::ordered_json told_;
};

}  // namespace capstan::track

#endif  // CAPSTAN_DESK_TRACK_ALERTS_H_
