// SPDX-License-Identifier: Apache-2.0
//
// The status of a TrainJob, as Kubeflow Trainer takes it since 2.2 with its
// feature gate TrainJobStatus (KEP-2779): its pods are told by variables where
// to post trainerStatus, and by which token.
#include <cmath>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/files.h"
#include "base/status.h"
#include "desk/track/http_target.h"
#include "desk/track/sink.h"

namespace capstan::track {
namespace {

using Json = nlohmann::ordered_json;

constexpr char kUrl[] = "KUBEFLOW_TRAINER_SERVER_URL";
constexpr char kCaFile[] = "KUBEFLOW_TRAINER_SERVER_CA_CERT";   // its path
constexpr char kTokenFile[] = "KUBEFLOW_TRAINER_SERVER_TOKEN";  // its path
// The controller asks for no more updates than this.
constexpr double kLeastSeconds = 5.0;
const char* const kMetrics[] = {"step",
                                "steps",
                                "loss",
                                "eval_loss",
                                "learning_rate",
                                "gradient_norm",
                                "tokens_per_second",
                                "samples_per_second",
                                "goodput_ratio",
                                "restarts_total"};

class TrainJob : public Sink {
 public:
  TrainJob(std::unique_ptr<HttpTarget> controller, bool is_told)
      : controller_(std::move(controller)), is_told_(is_told) {}

  std::string place() const override { return controller_->shown(); }

  absl::StatusOr<int64_t> Open(const TrackedRun& run) override {
    return run.acknowledged;
  }
  absl::Status Send(const std::vector<Row>&) override {
    return absl::OkStatus();  // the status has the newest values, by Update
  }
  absl::Status Update(const Measures& measures) override {
    const double now = MonotonicSeconds();
    const bool ended = measures.Get("running") == 0.0;
    if (!ended && sent_ > 0.0 && now - sent_ < kLeastSeconds) {
      return absl::OkStatus();
    }
    Json status = {
        {"lastUpdatedTime",
         absl::FormatTime("%Y-%m-%dT%H:%M:%SZ",
                          absl::UnixEpoch() + absl::Seconds(measures.time),
                          absl::UTCTimeZone())}};
    if (measures.progress.has_value()) {
      // 100 only for a run that has done all of its steps.
      status["progressPercentage"] =
          static_cast<int>(std::floor(*measures.progress));
    }
    if (measures.seconds_left.has_value()) {
      status["estimatedRemainingSeconds"] =
          static_cast<int64_t>(std::llround(*measures.seconds_left));
    }
    status["metrics"] = Json::array();
    for (const char* const name : kMetrics) {
      const absl::optional<double> value = measures.Get(name);
      if (!value.has_value()) continue;
      status["metrics"].push_back(
          {{"name", name}, {"value", NumberText(*value)}});
    }
    CAPSTAN_RETURN_IF_ERROR(SetToken());
    CAPSTAN_RETURN_IF_ERROR(
        controller_->Call("POST", "", {{"trainerStatus", status}}).status());
    sent_ = now;
    return absl::OkStatus();
  }

 private:
  // From its file each time, where the kubelet renews it.
  absl::Status SetToken() {
    if (!is_told_) return absl::OkStatus();
    const std::string path = Variable(kTokenFile);
    const absl::StatusOr<std::string> token = ReadWholeFile(path);
    if (!token.ok()) {
      return absl::FailedPreconditionError(
          absl::StrCat(kTokenFile, ": ", token.status().message()));
    }
    controller_->SetHeader(
        "Authorization",
        absl::StrCat("Bearer ", absl::StripAsciiWhitespace(*token)));
    return absl::OkStatus();
  }

  const std::unique_ptr<HttpTarget> controller_;
  const bool is_told_;  // by the variables: the token is for that address
  double sent_ = 0.0;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Sink>> MakeTrainJob(const SinkOptions& options) {
  const std::string url = options.url.empty() ? Variable(kUrl) : options.url;
  if (url.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--to=trainjob: ", kUrl,
        " isn't set: this is no pod of a TrainJob, or its controller runs "
        "without --feature-gates=TrainJobStatus=true"));
  }
  HttpOptions http;
  http.ca_file = Variable(kCaFile);
  CAPSTAN_ASSIGN_OR_RETURN(
      std::unique_ptr<HttpTarget> controller,
      HttpTarget::Make(url, options.url.empty() ? kUrl : "--url", http));
  return std::unique_ptr<Sink>(std::make_unique<TrainJob>(
      std::move(controller),
      url == Variable(kUrl) && !Variable(kTokenFile).empty()));
}

}  // namespace capstan::track
