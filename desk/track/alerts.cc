// SPDX-License-Identifier: Apache-2.0
#include "desk/track/alerts.h"

#include <signal.h>

#include <algorithm>
#include <cmath>
#include <iostream>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "absl/types/optional.h"
#include "base/clock.h"
#include "base/json.h"
#include "base/status.h"
#include "base/subprocess.h"
#include "desk/run_folder/file_times.h"
#include "desk/run_folder/json_fields.h"
#include "desk/track/backoff.h"
#include "trainer/metrics/console.h"

namespace capstan::track {
namespace {

using Json = nlohmann::ordered_json;

constexpr double kHangSeconds = 600.0;  // by default
constexpr double kCommandSeconds = 60.0;
constexpr size_t kMostNamesKept = 200;
constexpr char kRules[] =
    "must be NAME>NUMBER, NAME<NUMBER, NAME>=NUMBER or NAME<=NUMBER with the "
    "name of a metric of metrics.jsonl; or spike, hang, hang>SECONDS or end";

}  // namespace

absl::StatusOr<AlertRule> AlertRule::Parse(const std::string& text) {
  AlertRule rule;
  rule.text = text;
  if (text == "spike" || text == "end" || text == "hang") {
    rule.kind = text == "spike"  ? Kind::kSpike
                : text == "hang" ? Kind::kHang
                                 : Kind::kEnd;
    rule.bound = kHangSeconds;
    return rule;
  }
  const size_t at = text.find_first_of("<>");
  const std::string error = absl::StrCat("--alert=", text, ": ", kRules);
  if (at == std::string::npos || at == 0) {
    return absl::InvalidArgumentError(error);
  }
  rule.metric = std::string(absl::StripAsciiWhitespace(text.substr(0, at)));
  const bool equal = at + 1 < text.size() && text[at + 1] == '=';
  rule.comparison = text.substr(at, equal ? 2 : 1);
  if (!absl::SimpleAtod(text.substr(at + rule.comparison.size()),
                        &rule.bound) ||
      !std::isfinite(rule.bound)) {
    return absl::InvalidArgumentError(error);
  }
  if (rule.metric == "hang") {
    if (rule.comparison != ">" || rule.bound <= 0.0) {
      return absl::InvalidArgumentError(error);
    }
    rule.kind = Kind::kHang;
  }
  return rule;
}

bool AlertRule::IsMetBy(double value) const {
  if (std::isnan(value)) return true;
  if (comparison == "<") return value < bound;
  if (comparison == "<=") return value <= bound;
  if (comparison == ">") return value > bound;
  return value >= bound;
}

Alerts::Alerts(const AlertOptions& options, std::string name,
               std::string folder, Json told)
    : options_(options),
      name_(std::move(name)),
      folder_(std::move(folder)),
      told_(std::move(told)) {}

void Alerts::SayUnknown(bool ended) {
  if (metrics_.empty() || metrics_.size() >= kMostNamesKept) return;
  const bool evaluated =
      ended || std::any_of(metrics_.begin(), metrics_.end(),
                           [](const std::string& metric) {
                             return absl::StartsWith(metric, "eval_");
                           });
  for (const AlertRule& rule : options_.rules) {
    if (rule.kind != AlertRule::Kind::kMetric ||
        metrics_.count(rule.metric) > 0 ||
        (!evaluated && absl::StartsWith(rule.metric, "eval_")) ||
        !unknown_.insert(rule.metric).second) {
      continue;
    }
    std::cerr << PrintableText(absl::StrCat("NOTE: --alert=", rule.text, ": ",
                                            name_, " has no ", rule.metric,
                                            " so far, but ",
                                            absl::StrJoin(metrics_, ", ")))
              << std::endl;
  }
}

void Alerts::Look(const Row& row) {
  for (const auto& [name, value] : row.metrics) {
    if (metrics_.size() < kMostNamesKept) metrics_.insert(name);
  }
  for (const AlertRule& rule : options_.rules) {
    const bool spike = rule.kind == AlertRule::Kind::kSpike;
    if (!spike && rule.kind != AlertRule::Kind::kMetric) continue;
    const absl::optional<double> value = row.Get(spike ? "spike" : rule.metric);
    if (!value.has_value() || (!spike && !rule.IsMetBy(*value))) continue;
    const bool finite = std::isfinite(*value);
    Find(rule, row.step, row.time, finite ? Json(*value) : Json(),
         absl::StrCat(
             spike ? "a loss spike"
                   : absl::StrCat(rule.metric, " is ",
                                  finite ? NumberText(*value) : "not a number"),
             " at step ", row.step));
  }
}

void Alerts::LookAt(const RunState& state, double newest) {
  for (const AlertRule& rule : options_.rules) {
    if (rule.kind == AlertRule::Kind::kEnd && state.ended) {
      Find(rule,
           static_cast<int64_t>(NumberOf(state.summary, "steps").value_or(0.0)),
           state.end_time, state.status,
           absl::StrCat("the run has ended: ", state.status));
    }
    const double silent = NowSeconds() - newest;
    if (rule.kind == AlertRule::Kind::kHang && !state.ended &&
        silent > rule.bound) {
      Find(rule, 0, newest, std::round(silent),
           absl::StrCat("the run has written nothing for ",
                        ShortDuration(silent)));
    }
  }
}

void Alerts::Find(const AlertRule& rule, int64_t step, double time,
                  const Json& value, const std::string& text) {
  const auto same = [&rule](const Json& alert) {
    return alert["rule"] == rule.text;
  };
  if (told_.contains(rule.text) ||
      std::any_of(found_.begin(), found_.end(), same)) {
    return;
  }
  found_.push_back({{"text", absl::StrCat(name_, ": ", text)},
                    {"run", name_},
                    {"folder", folder_},
                    {"rule", rule.text},
                    {"step", step},
                    {"value", value},
                    {"time", time}});
}

bool Alerts::Deliver(const std::string& run_id) {
  if (found_.empty() || MonotonicSeconds() < wait_until_) return false;
  bool changed = false;
  while (!found_.empty()) {
    Json& alert = found_.front();
    const std::string rule = alert["rule"];
    // By which a receiver knows an alert that is told again, by a tracker that
    // was killed before it could note that it had told it.
    alert["id"] = absl::StrCat(run_id, " ", rule);
    const absl::Status told = Tell(alert);
    if (absl::IsUnavailable(told)) {
      if (outage_.ok()) outage_began_ = MonotonicSeconds();
      outage_ = told;
      wait_until_ = MonotonicSeconds() + BackoffSeconds(failures_++);
      return changed;
    }
    failures_ = 0;
    outage_ = absl::OkStatus();
    if (!told.ok()) {
      std::cerr << "WARNING: " << PrintableText(told.message()) << std::endl;
    }
    told_[rule] = alert;
    found_.erase(found_.begin());
    changed = true;
  }
  return changed;
}

double Alerts::OutageSeconds() const {
  return outage_.ok() ? 0.0 : MonotonicSeconds() - outage_began_;
}

absl::Status Alerts::Tell(const Json& alert) {
  if (options_.webhook.empty() && options_.command.empty()) {
    std::cout << PrintableText(alert["text"].get<std::string>()) << std::endl;
  }
  if (!options_.webhook.empty()) {
    if (webhook_ == nullptr) {
      HttpOptions http;
      http.hides_path = true;
      CAPSTAN_ASSIGN_OR_RETURN(
          webhook_, HttpTarget::Make(options_.webhook, "--webhook", http));
    }
    CAPSTAN_RETURN_IF_ERROR(webhook_->Call("POST", "", alert).status());
  }
  if (options_.command.empty()) return absl::OkStatus();
  Program shell;
  shell.words = {"/bin/sh", "-c", options_.command};
  shell.variables = {
      absl::StrCat("CAPSTAN_ALERT=", JsonText(alert)),
      absl::StrCat("CAPSTAN_ALERT_TEXT=", alert["text"].get<std::string>())};
  shell.own_group = true;
  const std::string what = absl::StrCat("--run=", options_.command, ": ");
  const absl::StatusOr<pid_t> started = StartProgram(shell);
  if (!started.ok()) return Annotate(started.status(), "--run");
  absl::optional<ChildEnd> end = WaitFor(*started, kCommandSeconds);
  if (!end.has_value()) {
    kill(-*started, SIGKILL);
    WaitFor(*started);
    return absl::DeadlineExceededError(
        absl::StrCat(what, "was ended, as it took longer than a minute"));
  }
  if (end->ok()) return absl::OkStatus();
  return absl::InternalError(absl::StrCat(what, "failed: ", end->Text()));
}

}  // namespace capstan::track
