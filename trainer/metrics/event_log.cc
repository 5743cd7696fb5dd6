// SPDX-License-Identifier: Apache-2.0
#include "trainer/metrics/event_log.h"

#include <nlohmann/json.hpp>

#include "base/json.h"
#include "base/status.h"

namespace capstan {

absl::StatusOr<EventLog> EventLog::Open(const std::string& path) {
  CAPSTAN_ASSIGN_OR_RETURN(AppendedLines lines, AppendedLines::Open(path));
  return EventLog(std::move(lines));
}

absl::Status EventLog::Add(const RunEvent& event) {
  last_ = event;
  nlohmann::ordered_json json = {{"time", UnixSeconds()},
                                 {"step", event.step},
                                 {"kind", event.kind},
                                 {"text", event.text}};
  if (event.seconds.has_value()) json["seconds"] = *event.seconds;
  if (!event.id.empty()) json["id"] = event.id;
  return lines_.Add(JsonText(json));
}

}  // namespace capstan
