// SPDX-License-Identifier: Apache-2.0
#include <httplib.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/clock.h"
#include "base/status.h"
#include "plugins/grpo/rewards/kinds.h"
#include "plugins/grpo/rewards/reply.h"
#include "plugins/grpo/rewards/row_field.h"
#include "plugins/sdk/lib/field_check.h"

namespace capstan::grpo {
namespace {

constexpr double kDefaultSeconds = 60.0;
constexpr int64_t kDefaultRetries = 5;
constexpr double kFirstPause = 0.5;
constexpr double kMostPause = 60.0;
constexpr size_t kMostBodyBytes = size_t{64} << 20;

class HttpReward final : public RewardFunction {
 public:
  // `origin` is "http://host:port", `path` the rest.
  HttpReward(const Http& config, const std::string& origin, std::string path)
      : origin_(origin),
        path_(std::move(path)),
        seconds_(config.has_timeout_seconds() ? config.timeout_seconds()
                                              : kDefaultSeconds),
        retries_(config.has_retries() ? config.retries() : kDefaultRetries),
        client_(origin) {
    const auto microseconds =
        std::chrono::microseconds(std::llround(1e6 * seconds_));
    client_.set_connection_timeout(microseconds);
    client_.set_read_timeout(microseconds);
    client_.set_write_timeout(microseconds);
    client_.set_keep_alive(true);
  }

  bool valid() const { return client_.is_valid(); }

  absl::Status CheckRow(absl::string_view row) const override {
    return absl::OkStatus();
  }

  absl::StatusOr<std::vector<double>> Score(
      absl::Span<const Answer> answers) override {
    if (answers.empty()) return std::vector<double>();
    std::string body = "{\"answers\": [";
    for (const Answer& answer : answers) {
      absl::StrAppend(&body, &answer == &answers[0] ? "" : ", ",
                      AnswerJson(answer));
    }
    body += "]}";
    double pause = kFirstPause;
    for (int64_t failures = 0;; ++failures) {
      const absl::StatusOr<std::string> reply = Post(body);
      if (reply.ok()) {
        const auto rewards = RewardsOfBody(*reply, answers.size());
        return rewards.ok() ? rewards : Annotate(rewards.status(), Shown());
      }
      if (!absl::IsUnavailable(reply.status()) || failures >= retries_) {
        return absl::Status(
            reply.status().code(),
            absl::StrCat(Shown(), ": ", reply.status().message(),
                         failures == 0
                             ? ""
                             : absl::StrCat(", after ", failures, " retries")));
      }
      // The next request isn't to meet the same trouble.
      std::this_thread::sleep_for(std::chrono::duration<double>(pause));
      pause = std::min(2.0 * pause, kMostPause);
    }
  }

 private:
  std::string Shown() const { return absl::StrCat(origin_, path_); }

  // The reply's body. UNAVAILABLE: it may be otherwise the next time.
  absl::StatusOr<std::string> Post(const std::string& body) {
    httplib::Request request;
    request.method = "POST";
    request.path = path_;
    request.headers = {{"Content-Type", "application/json"}};
    request.body = body;
    std::string reply;
    const double deadline = MonotonicSeconds() + seconds_;
    request.content_receiver = [&](const char* data, size_t size, uint64_t,
                                   uint64_t) {
      reply.append(data, size);
      return reply.size() <= kMostBodyBytes && MonotonicSeconds() < deadline;
    };
    const httplib::Result result = client_.send(request);
    if (!result) {
      if (reply.size() > kMostBodyBytes) {
        return absl::InvalidArgumentError("its reply is too long");
      }
      if (MonotonicSeconds() >= deadline) {
        return absl::UnavailableError(
            absl::StrCat("there is no reply within ", seconds_, " s"));
      }
      return absl::UnavailableError(
          absl::StrCat("no reply: ", httplib::to_string(result.error())));
    }
    const int status = result->status;
    if (status >= 200 && status < 300) return reply;
    const std::string message =
        absl::StrCat("answered ", status, ": ", Quoted(reply));
    return status == 408 || status == 429 || status >= 500
               ? absl::UnavailableError(message)
               : absl::FailedPreconditionError(message);
  }

  const std::string origin_;
  const std::string path_;
  const double seconds_;
  const int64_t retries_;
  httplib::Client client_;
};

}  // namespace

MadeReward NewHttp(const Http& config) {
  absl::string_view rest = config.url();
  const bool https = absl::StartsWith(rest, "https://");
  if (!absl::ConsumePrefix(&rest, https ? "https://" : "http://")) {
    return FieldError("url", "must begin with http:// or https://");
  }
  if (config.has_timeout_seconds()) {
    CAPSTAN_RETURN_IF_ERROR(CheckField(config.timeout_seconds() > 0,
                                       "timeout_seconds", "greater than 0",
                                       config.timeout_seconds()));
  }
  CAPSTAN_RETURN_IF_ERROR(CheckField(config.retries() >= 0, "retries",
                                     "at least 0", config.retries()));
  const size_t host = rest.find_first_of("/?");
  std::string path(host == absl::string_view::npos ? "" : rest.substr(host));
  if (!absl::StartsWith(path, "/")) path.insert(0, "/");
  auto reward = std::make_unique<HttpReward>(
      config,
      absl::StrCat(https ? "https://" : "http://", rest.substr(0, host)),
      std::move(path));
  if (!reward->valid()) return FieldError("url", "isn't an address");
  return reward;
}

}  // namespace capstan::grpo
