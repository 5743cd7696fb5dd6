// SPDX-License-Identifier: Apache-2.0
//
// OpenTelemetry's protocol: ExportMetricsServiceRequest of
// opentelemetry/proto/collector/metrics/v1 as JSON (its 64-bit integers are
// strings) to /v1/metrics. The variables are those of its specification
// ("OpenTelemetry Protocol Exporter").
#include <cmath>
#include <iostream>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/status.h"
#include "desk/run_folder/json_fields.h"
#include "desk/track/http_target.h"
#include "desk/track/sink.h"

namespace capstan::track {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kCumulative = 2;  // AggregationTemporality

// Pairs "a=b,c=d", as the variables have them: values are percent-encoded.
std::vector<std::pair<std::string, std::string>> Pairs(
    const std::string& text) {
  std::vector<std::pair<std::string, std::string>> pairs;
  for (absl::string_view part : absl::StrSplit(text, ',', absl::SkipEmpty())) {
    const std::pair<absl::string_view, absl::string_view> pair =
        absl::StrSplit(part, absl::MaxSplits('=', 1));
    pairs.emplace_back(absl::StripAsciiWhitespace(pair.first),
                       UrlUnescaped(absl::StripAsciiWhitespace(pair.second)));
  }
  return pairs;
}

std::string Nanoseconds(double seconds) {
  return absl::StrCat(static_cast<int64_t>(std::llround(1e6 * seconds)), "000");
}

Json Attribute(const std::string& key, const std::string& text) {
  return {{"key", key}, {"value", {{"stringValue", text}}}};
}

Json MetricOf(const Measure& measure, const Measures& measures) {
  Json points = Json::array();
  for (const Measure::Value& value : measure.values) {
    Json point = {{"timeUnixNano", Nanoseconds(measures.time)},
                  {"asDouble", value.value}};
    if (measure.counter) {
      point["startTimeUnixNano"] = Nanoseconds(measures.start_time);
    }
    if (value.rank >= 0) {
      point["attributes"] = {
          {{"key", "rank"},
           {"value", {{"intValue", absl::StrCat(value.rank)}}}}};
    }
    points.push_back(std::move(point));
  }
  Json metric = {{"name", absl::StrCat("capstan.", measure.name)},
                 {"description", measure.help},
                 {"unit", measure.unit}};
  if (measure.counter) {
    metric["sum"] = {{"dataPoints", std::move(points)},
                     {"aggregationTemporality", kCumulative},
                     {"isMonotonic", true}};
  } else {
    metric["gauge"] = {{"dataPoints", std::move(points)}};
  }
  return metric;
}

class Otlp : public Sink {
 public:
  Otlp(std::unique_ptr<HttpTarget> collector, const std::string& path)
      : collector_(std::move(collector)), path_(path) {}

  std::string place() const override { return collector_->shown(); }

  absl::StatusOr<int64_t> Open(const TrackedRun& run) override {
    return run.acknowledged;
  }
  absl::Status Send(const std::vector<Row>&) override {
    return absl::OkStatus();  // monitoring has the newest values, by Update
  }
  absl::Status Update(const Measures& measures) override {
    const std::string name = Variable("OTEL_SERVICE_NAME");
    Json attributes = {
        Attribute("service.name", name.empty() ? "capstan" : name),
        Attribute("service.instance.id", measures.id),
        Attribute("capstan.run", measures.run)};
    for (const auto& [key, value] :
         Pairs(Variable("OTEL_RESOURCE_ATTRIBUTES"))) {
      attributes.push_back(Attribute(key, value));
    }
    Json metrics = Json::array();
    for (const Measure& measure : measures.list) {
      metrics.push_back(MetricOf(measure, measures));
    }
    const Json request = {{"resourceMetrics",
                           {{{"resource", {{"attributes", attributes}}},
                             {"scopeMetrics",
                              {{{"scope", {{"name", "capstan.track"}}},
                                {"metrics", metrics}}}}}}}};
    CAPSTAN_ASSIGN_OR_RETURN(const Json answer,
                             collector_->Call("POST", path_, request));
    // Prometheus' receiver has none.
    if (!answer.is_null() && !answer.is_object()) {
      return absl::FailedPreconditionError(absl::StrCat(
          collector_->shown(), ": doesn't answer as a collector does"));
    }
    const Json partial =
        answer.is_object() ? answer.value("partialSuccess", Json()) : Json();
    const std::string refused = TextOf(partial, "errorMessage");
    // Also a warning of a collector that has taken everything.
    if (!refused.empty() && refused != said_) {
      std::cerr << "WARNING: " << collector_->shown() << ": " << refused
                << std::endl;
      said_ = refused;
    }
    return absl::OkStatus();
  }

 private:
  const std::unique_ptr<HttpTarget> collector_;
  const std::string path_;
  std::string said_;  // the newest warning
};

}  // namespace

absl::StatusOr<std::unique_ptr<Sink>> MakeOtlp(const SinkOptions& options) {
  const std::string of_metrics =
      Variable("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT");
  const std::string of_all = Variable("OTEL_EXPORTER_OTLP_ENDPOINT");
  // That of metrics alone is used as it is.
  const bool whole = options.url.empty()
                         ? !of_metrics.empty()
                         : absl::EndsWith(options.url, "/v1/metrics");
  const std::string url = !options.url.empty()  ? options.url
                          : !of_metrics.empty() ? of_metrics
                                                : of_all;
  if (url.empty()) {
    return absl::InvalidArgumentError(
        "--url: give the collector's address, http://HOST:4318, or set "
        "OTEL_EXPORTER_OTLP_ENDPOINT");
  }
  HttpOptions http;
  for (const char* const name :
       {"OTEL_EXPORTER_OTLP_HEADERS", "OTEL_EXPORTER_OTLP_METRICS_HEADERS"}) {
    for (const auto& [key, value] : Pairs(Variable(name))) {
      http.headers.erase(key);
      http.headers.emplace(key, value);
    }
  }
  http.ca_file = Variable("OTEL_EXPORTER_OTLP_METRICS_CERTIFICATE");
  if (http.ca_file.empty()) {
    http.ca_file = Variable("OTEL_EXPORTER_OTLP_CERTIFICATE");
  }
  CAPSTAN_ASSIGN_OR_RETURN(
      std::unique_ptr<HttpTarget> collector,
      HttpTarget::Make(
          url, options.url.empty() ? "OTEL_EXPORTER_OTLP_ENDPOINT" : "--url",
          http));
  return std::unique_ptr<Sink>(
      std::make_unique<Otlp>(std::move(collector), whole ? "" : "/v1/metrics"));
}

}  // namespace capstan::track
