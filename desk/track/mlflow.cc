// SPDX-License-Identifier: Apache-2.0
//
// MLflow by its REST API, as of version 2.0:
// https://mlflow.org/docs/latest/rest-api.html
#include <algorithm>
#include <cctype>
#include <cmath>
#include <map>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/json.h"
#include "base/status.h"
#include "desk/run_folder/json_fields.h"
#include "desk/track/http_target.h"
#include "desk/track/sink.h"

namespace capstan::track {
namespace {

using Json = nlohmann::ordered_json;

constexpr char kApi[] = "/api/2.0/mlflow/";
constexpr char kRunTag[] = "capstan.run";
constexpr char kNoteTag[] = "mlflow.note.content";  // Markdown on a run's page
// What a server takes in a request (RestApi: "Request Limits").
constexpr size_t kMostMetrics = 1000;
constexpr size_t kMostParams = 100;
constexpr size_t kMostTags = 100;
constexpr size_t kMostValueBytes = 500;
constexpr size_t kMostNoteBytes = 4000;

// Names may have letters, digits, and these.
std::string NameOf(absl::string_view name) {
  std::string text(name);
  for (char& c : text) {
    if (!std::isalnum(static_cast<unsigned char>(c)) &&
        absl::string_view("_-. /").find(c) == absl::string_view::npos) {
      c = '_';
    }
  }
  return text;
}

int64_t Milliseconds(double seconds) {
  return static_cast<int64_t>(std::llround(1000.0 * seconds));
}

// The object at a JSON pointer, or an empty one.
Json InfoOf(const Json& json, const char* pointer) {
  const Json::json_pointer path(pointer);
  return json.contains(path) && json.at(path).is_object() ? json.at(path)
                                                          : Json::object();
}

// The newest that there is room for, as Markdown.
std::string NoteOf(const std::vector<Event>& events) {
  std::string note;
  for (size_t i = events.size(); i-- > 0;) {
    const Event& event = events[i];
    const std::string line =
        absl::StrCat("- step ", event.step, ", ", event.kind,
                     event.text.empty() ? "" : ": ", event.text, "\n");
    if (note.size() + line.size() > kMostNoteBytes) break;
    note.insert(0, line);
  }
  return note;
}

// The server doesn't tell a batch that is sent again from a new one in all of
// its stores, so before anything is sent it is asked which step it has of each
// metric.
class Mlflow : public Sink {
 public:
  explicit Mlflow(std::unique_ptr<HttpTarget> server)
      : server_(std::move(server)) {}

  std::string place() const override { return server_->shown(); }

  absl::StatusOr<int64_t> Open(const TrackedRun& run) override {
    CAPSTAN_ASSIGN_OR_RETURN(const std::string experiment,
                             Experiment(run.project));
    CAPSTAN_ASSIGN_OR_RETURN(run_id_, FindOrCreate(experiment, run));
    CAPSTAN_ASSIGN_OR_RETURN(
        const Json answer,
        server_->Call("GET", absl::StrCat(kApi, "runs/get?run_id=", run_id_),
                      nullptr));
    const Json data = InfoOf(answer, "/run/data");
    steps_.clear();
    for (const Json& metric : ListOf(data, "metrics")) {
      steps_[TextOf(metric, "key")] =
          static_cast<int64_t>(NumberOf(metric, "step").value_or(0.0));
    }
    CAPSTAN_RETURN_IF_ERROR(SendParams(run, ListOf(data, "params")));
    running_ = false;
    // Without metrics it is a new run: the server's store was wiped, or the
    // run there deleted.
    return steps_.empty() ? kNoStep : run.acknowledged;
  }

  absl::Status Send(const std::vector<Row>& rows) override {
    CAPSTAN_RETURN_IF_ERROR(SetRunning());
    Json batch = Json::array();
    for (const Row& row : rows) {
      for (const auto& [key, value] : row.metrics) {
        const std::string name = NameOf(key);
        const auto found = steps_.find(name);
        if (found != steps_.end() && row.step <= found->second) continue;
        batch.push_back({{"key", name},
                         {"value", std::isfinite(value) ? Json(value) : "NaN"},
                         {"timestamp", Milliseconds(row.time)},
                         {"step", row.step}});
        if (batch.size() == kMostMetrics) {
          CAPSTAN_RETURN_IF_ERROR(SendMetrics(&batch));
        }
      }
    }
    return batch.empty() ? absl::OkStatus() : SendMetrics(&batch);
  }

  absl::Status Finish(const RunState& state,
                      const std::vector<Event>& events) override {
    Json tags = Json::array();
    const auto add = [&tags](const std::string& key, const std::string& value) {
      if (tags.size() < kMostTags) {
        tags.push_back({{"key", key}, {"value", value}});
      }
    };
    add("capstan.status", state.status);
    if (!events.empty()) add(kNoteTag, NoteOf(events));
    for (const auto& item : state.summary.items()) {
      if (item.value().is_number()) {
        add(absl::StrCat("summary.", NameOf(item.key())),
            JsonText(item.value()));
      }
    }
    CAPSTAN_RETURN_IF_ERROR(
        Post("runs/log-batch", {{"run_id", run_id_}, {"tags", tags}}));
    running_ = false;
    return Post("runs/update",
                {{"run_id", run_id_},
                 {"status", state.status == "completed" ? "FINISHED"
                            : state.status == "stopped" ? "KILLED"
                                                        : "FAILED"},
                 {"end_time", Milliseconds(state.end_time)}});
  }

 private:
  absl::Status Post(const char* method, const Json& body) {
    return server_->Call("POST", absl::StrCat(kApi, method), body).status();
  }

  absl::StatusOr<std::string> Experiment(const std::string& name) {
    const auto get = [&] {
      return server_->Call(
          "GET",
          absl::StrCat(kApi, "experiments/get-by-name?experiment_name=",
                       UrlEscaped(name)),
          nullptr);
    };
    absl::StatusOr<Json> found = get();
    if (absl::IsNotFound(found.status())) {
      // Another tracker may make it meanwhile.
      const absl::Status made = Post("experiments/create", {{"name", name}});
      if (absl::IsUnavailable(made) || absl::IsNotFound(made)) return made;
      found = get();
      if (!found.ok() && !made.ok()) return made;
    }
    CAPSTAN_RETURN_IF_ERROR(found.status());
    const Json experiment = InfoOf(*found, "/experiment");
    if (TextOf(experiment, "lifecycle_stage") == "deleted") {
      return absl::FailedPreconditionError(absl::StrCat(
          server_->shown(), ": the experiment '", name,
          "' is deleted; restore it, or name another one with --project"));
    }
    const std::string id = TextOf(experiment, "experiment_id");
    if (!id.empty()) return id;
    return absl::FailedPreconditionError(
        absl::StrCat(server_->shown(), ": doesn't answer as MLflow does"));
  }

  absl::StatusOr<std::string> FindOrCreate(const std::string& experiment,
                                           const TrackedRun& run) {
    CAPSTAN_ASSIGN_OR_RETURN(
        Json answer,
        server_->Call(
            "POST", absl::StrCat(kApi, "runs/search"),
            {{"experiment_ids", {experiment}},
             {"filter", absl::StrCat("tags.`", kRunTag, "` = '", run.id, "'")},
             {"max_results", 1}}));
    const Json runs = ListOf(answer, "runs");
    if (!runs.empty()) {
      return TextOf(InfoOf(runs[0], "/info"), "run_id");
    }
    // The tag, by which it is found again, is there from the first moment.
    CAPSTAN_ASSIGN_OR_RETURN(
        answer, server_->Call(
                    "POST", absl::StrCat(kApi, "runs/create"),
                    {{"experiment_id", experiment},
                     {"run_name", run.name},
                     {"start_time", Milliseconds(run.start_time)},
                     {"tags",
                      {{{"key", kRunTag}, {"value", run.id}},
                       {{"key", "mlflow.source.name"}, {"value", "capstan"}},
                       {{"key", "mlflow.source.type"}, {"value", "LOCAL"}},
                       {{"key", "capstan.folder"}, {"value", run.folder}}}}}));
    return TextOf(InfoOf(answer, "/run/info"), "run_id");
  }

  // Settings can't be changed there: those that it has stay.
  absl::Status SendParams(const TrackedRun& run, const Json& known) {
    Json batch = Json::array();
    const auto send = [&] {
      const absl::Status sent =
          Post("runs/log-batch", {{"run_id", run_id_}, {"params", batch}});
      batch.clear();
      return sent;
    };
    for (const auto& [key, value] : run.settings) {
      const std::string name = NameOf(key);
      const bool has = std::any_of(
          known.begin(), known.end(),
          [&name](const Json& param) { return TextOf(param, "key") == name; });
      if (has) continue;
      batch.push_back(
          {{"key", name}, {"value", value.substr(0, kMostValueBytes)}});
      if (batch.size() == kMostParams) CAPSTAN_RETURN_IF_ERROR(send());
    }
    return batch.empty() ? absl::OkStatus() : send();
  }

  absl::Status SetRunning() {
    if (running_) return absl::OkStatus();
    CAPSTAN_RETURN_IF_ERROR(
        Post("runs/update", {{"run_id", run_id_}, {"status", "RUNNING"}}));
    running_ = true;
    return absl::OkStatus();
  }

  absl::Status SendMetrics(Json* batch) {
    CAPSTAN_RETURN_IF_ERROR(
        Post("runs/log-batch", {{"run_id", run_id_}, {"metrics", *batch}}));
    for (const Json& metric : *batch) {
      steps_[metric["key"].get<std::string>()] = metric["step"].get<int64_t>();
    }
    batch->clear();
    return absl::OkStatus();
  }

  const std::unique_ptr<HttpTarget> server_;
  std::string run_id_;
  bool running_ = false;                  // as the server has it
  std::map<std::string, int64_t> steps_;  // the newest that it has, by metric
};

}  // namespace

absl::StatusOr<std::unique_ptr<Sink>> MakeMlflow(const SinkOptions& options) {
  const char kUri[] = "MLFLOW_TRACKING_URI";
  const std::string url = options.url.empty() ? Variable(kUri) : options.url;
  if (url.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--url: give the MLflow server's address, or set ", kUri));
  }
  HttpOptions http;
  http.checks_cert = Variable("MLFLOW_TRACKING_INSECURE_TLS") != "true";
  http.ca_file = Variable("MLFLOW_TRACKING_SERVER_CERT_PATH");
  const std::string user = Variable("MLFLOW_TRACKING_USERNAME");
  const std::string token = Variable("MLFLOW_TRACKING_TOKEN");
  if (!user.empty()) {
    http.headers.emplace(
        "Authorization",
        absl::StrCat("Basic ",
                     absl::Base64Escape(absl::StrCat(
                         user, ":", Variable("MLFLOW_TRACKING_PASSWORD")))));
  } else if (!token.empty()) {
    http.headers.emplace("Authorization", absl::StrCat("Bearer ", token));
  }
  CAPSTAN_ASSIGN_OR_RETURN(
      std::unique_ptr<HttpTarget> server,
      HttpTarget::Make(url, options.url.empty() ? kUri : "--url", http));
  return std::unique_ptr<Sink>(std::make_unique<Mlflow>(std::move(server)));
}

}  // namespace capstan::track
