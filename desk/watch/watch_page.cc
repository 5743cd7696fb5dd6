// SPDX-License-Identifier: Apache-2.0
#include "desk/watch/watch_page.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/files.h"
#include "base/json.h"
#include "base/status.h"
#include "desk/watch/report.h"

namespace capstan {
namespace {

using nlohmann::json;

constexpr int64_t kMostPoints = 5000;

// A number of the query; `otherwise` if it is missing or none.
int64_t Query(const httplib::Request& request, const char* name,
              int64_t otherwise) {
  int64_t value = 0;
  return absl::SimpleAtoi(request.get_param_value(name), &value) ? value
                                                                 : otherwise;
}

void AnswerCurves(const LiveRuns& runs, const httplib::Request& request,
                  httplib::Response* response) {
  const auto run = static_cast<size_t>(Query(request, "run", -1));
  if (run >= runs.size()) {
    SendError(404, "there is no such run", response);
    return;
  }
  const int64_t from = Query(request, "from", 0);
  const int64_t to = Query(request, "to", -1);
  constexpr int64_t kMostSteps = int64_t{1} << 50;
  if (from < 0 || to < from || to > kMostSteps) {
    SendError(400, "from and to: steps, from 0 on", response);
    return;
  }
  SendJson(runs.Detail(run, from, to,
                       std::clamp<int64_t>(Query(request, "points", kPoints), 1,
                                           kMostPoints)),
           response);
}

void AnswerRows(const LiveRuns& runs, StepRows* rows, const HttpServer& server,
                const httplib::Request& request, httplib::Response* response) {
  const int64_t step = Query(request, "step", 0);
  if (step < 1) {
    SendError(400, "step: from 1 on", response);
    return;
  }
  const absl::optional<std::string> folder =
      runs.Folder(static_cast<size_t>(Query(request, "run", -1)));
  if (!folder.has_value()) {
    SendError(404, "there is no such run", response);
    return;
  }
  const absl::StatusOr<json> found =
      rows->Find(*folder, step, [&server] { return server.stopping(); });
  if (found.ok()) {
    SendJson(*found, response);
  } else {
    SendError(absl::IsUnavailable(found.status())        ? 409
              : absl::IsOutOfRange(found.status())       ? 404
              : absl::IsDeadlineExceeded(found.status()) ? 504
                                                         : 500,
              std::string(found.status().message()), response);
  }
}

void AnswerControl(LiveRuns* runs, const httplib::Request& request,
                   httplib::Response* response) {
  const json wanted = ParseJson<json>(request.body);
  const auto run = wanted.is_object() ? wanted.find("run") : wanted.end();
  const auto what = wanted.is_object() ? wanted.find("do") : wanted.end();
  if (run == wanted.end() || !run->is_number_unsigned() ||
      what == wanted.end() || !what->is_string()) {
    SendError(400, "expected {\"run\": 0, \"do\": \"save\"}", response);
    return;
  }
  absl::optional<int64_t> value;
  const auto given = wanted.find("value");
  if (given != wanted.end()) value = JsonInteger(*given);
  const absl::StatusOr<std::string> id =
      runs->Control(run->get<size_t>(), what->get<std::string>(), value);
  if (id.ok()) {
    SendJson({{"id", *id}}, response);
  } else {
    SendError(absl::IsInvalidArgument(id.status()) ? 400
              : absl::IsNotFound(id.status())      ? 404
                                                   : 409,
              std::string(id.status().message()), response);
  }
}

}  // namespace

void AddWatchRoutes(LiveRuns* runs, StepRows* rows, HttpServer* server) {
  server->Get("/", [html = WatchHtml(*runs, /*live=*/true, TitleOf(*runs),
                                     nullptr)](const httplib::Request&,
                                               httplib::Response& response) {
    // The page's own policy can't say this.
    response.set_header("Content-Security-Policy", "frame-ancestors 'none'");
    SendBody(html, "text/html; charset=utf-8", &response);
  });
  server->Get("/api/runs",
              [runs](const httplib::Request&, httplib::Response& response) {
                SendJson(runs->AllJson(), &response);
              });
  server->Get("/api/events", [runs, server](const httplib::Request&,
                                            httplib::Response& response) {
    auto told = std::make_shared<std::vector<absl::optional<RunTold>>>();
    server->SendEvents(
        [runs, told]() -> absl::optional<std::string> {
          const json changed = runs->Next(told.get());
          return changed.is_null() ? "" : EventText(changed);
        },
        &response);
  });
  server->Get("/api/curves", [runs](const httplib::Request& request,
                                    httplib::Response& response) {
    AnswerCurves(*runs, request, &response);
  });
  server->Get("/api/rows", [runs, rows, server](const httplib::Request& request,
                                                httplib::Response& response) {
    AnswerRows(*runs, rows, *server, request, &response);
  });
  server->Post("/api/control", [runs](const httplib::Request& request,
                                      httplib::Response& response) {
    AnswerControl(runs, request, &response);
  });
}

}  // namespace capstan
