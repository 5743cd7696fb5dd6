// SPDX-License-Identifier: Apache-2.0
//
// Trackio by the API that its own client uses (trackio/remote_client.py,
// HTTP_API_VERSION 1): /api/NAME takes arguments by name, and stores a log or
// an alert once by its id.
#include <cmath>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/json.h"
#include "base/status.h"
#include "desk/track/http_target.h"
#include "desk/track/sink.h"

namespace capstan::track {
namespace {

using Json = nlohmann::ordered_json;

const char* LevelOf(const Event& event) {
  if (event.kind == "warning" || event.kind == "spike" ||
      event.kind == "skipped" || event.kind == "restart") {
    return "warn";
  }
  return "info";
}

class Trackio : public Sink {
 public:
  Trackio(std::unique_ptr<HttpTarget> server, const std::string& hf_token)
      : server_(std::move(server)),
        hf_token_(hf_token.empty() ? Json() : Json(hf_token)) {}

  std::string place() const override { return server_->shown(); }

  absl::StatusOr<int64_t> Open(const TrackedRun& run) override {
    run_ = run;
    config_ = {
        {"_Created",
         absl::FormatTime(absl::RFC3339_full,
                          absl::FromTimeT(static_cast<time_t>(run.start_time)),
                          absl::UTCTimeZone())},
        {"_Username", Variable("USER")},
        {"_Group", nullptr}};
    for (const auto& [key, value] : run.settings)
      config_[key] = SettingJson(value);
    return run.acknowledged;
  }

  absl::Status Send(const std::vector<Row>& rows) override {
    Json logs = Json::array();
    Json alerts = Json::array();
    for (const Row& row : rows) {
      Json log = Entry(row.step);
      log["metrics"] = Json::object();
      for (const auto& [name, value] : row.metrics) {
        // As its own client writes a number that JSON doesn't have.
        log["metrics"][name] = std::isfinite(value) ? Json(value) : "NaN";
      }
      // What came later isn't what the server has by the step's id.
      log["log_id"] =
          absl::StrCat(run_.id, "-", row.step,
                       row.late ? "-" + row.metrics.front().first : "");
      if (!config_.is_null()) log["config"] = config_;
      logs.push_back(std::move(log));
      for (size_t i = 0; i < row.events.size(); ++i) {
        const Event& event = row.events[i];
        Json alert = Entry(row.step);
        alert["title"] = event.kind;
        alert["text"] = event.text;
        alert["level"] = LevelOf(event);
        alert["timestamp"] = absl::FormatTime(
            absl::RFC3339_full, absl::UnixEpoch() + absl::Seconds(event.time),
            absl::UTCTimeZone());
        alert["alert_id"] =
            absl::StrCat(run_.id, "-", row.step, row.late ? "-late-" : "-", i);
        alerts.push_back(std::move(alert));
      }
    }
    CAPSTAN_RETURN_IF_ERROR(Call("bulk_log", "logs", logs));
    config_ = nullptr;  // the server has it
    return alerts.empty() ? absl::OkStatus()
                          : Call("bulk_alert", "alerts", alerts);
  }

 private:
  Json Entry(int64_t step) const {
    return {{"project", run_.project},
            {"run", run_.name},
            {"run_id", run_.id},
            {"step", step}};
  }

  absl::Status Call(const char* name, const char* parameter,
                    const Json& entries) {
    CAPSTAN_ASSIGN_OR_RETURN(
        const Json answer,
        server_->Call(
            "POST", absl::StrCat("/api/", name),
            {{"args", Json::array()},
             {"kwargs", {{parameter, entries}, {"hf_token", hf_token_}}}}));
    const Json error =
        answer.is_object() ? answer.value("error", Json()) : Json();
    if (answer.is_object() && answer.contains("data") && error.is_null()) {
      return absl::OkStatus();
    }
    return absl::FailedPreconditionError(
        absl::StrCat(server_->shown(), ": ",
                     error.is_null() ? "doesn't answer as a Trackio server does"
                                     : JsonText(error)));
  }

  const std::unique_ptr<HttpTarget> server_;
  const Json hf_token_;
  TrackedRun run_;
  Json config_;  // null: sent
};

}  // namespace

absl::StatusOr<std::unique_ptr<Sink>> MakeTrackio(const SinkOptions& options) {
  const char kUrl[] = "TRACKIO_SERVER_URL";
  const std::string url = options.url.empty() ? Variable(kUrl) : options.url;
  if (url.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--url: give the Trackio server's address, as `trackio "
                     "show` prints it, or set ",
                     kUrl));
  }
  HttpOptions http;
  const std::string token = Variable("TRACKIO_WRITE_TOKEN");
  if (!token.empty()) http.headers.emplace("X-Trackio-Write-Token", token);
  CAPSTAN_ASSIGN_OR_RETURN(
      std::unique_ptr<HttpTarget> server,
      HttpTarget::Make(url, options.url.empty() ? kUrl : "--url", http));
  // Only a Space of Hugging Face is told the user's token for it.
  const bool space = absl::StartsWith(server->shown(), "https://") &&
                     absl::EndsWith(server->shown(), ".hf.space");
  const std::string hf_token = space ? Variable("HF_TOKEN") : "";
  if (!hf_token.empty()) {
    server->SetHeader("Authorization", absl::StrCat("Bearer ", hf_token));
  }
  return std::unique_ptr<Sink>(
      std::make_unique<Trackio>(std::move(server), hf_token));
}

}  // namespace capstan::track
