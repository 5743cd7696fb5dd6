// SPDX-License-Identifier: Apache-2.0
#include "trainer/metrics/event_log.h"

#include <nlohmann/json.hpp>

#include "base/json.h"
#include "base/status.h"

namespace capstan {

absl::Status EventLog::Add(const RunEvent& event) {
  last_ = event;
  if (failed_) return absl::OkStatus();
  const absl::Status written = Write(event);
  failed_ = !written.ok();
  return written;
}

absl::Status EventLog::Write(const RunEvent& event) {
  if (!lines_.has_value()) {
    CAPSTAN_ASSIGN_OR_RETURN(AppendedLines lines, AppendedLines::Open(path_));
    lines_.emplace(std::move(lines));
  }
  nlohmann::ordered_json json = {{"time", UnixSeconds()},
                                 {"step", event.step},
                                 {"kind", event.kind},
                                 {"text", event.text}};
  if (event.seconds.has_value()) json["seconds"] = *event.seconds;
  if (!event.id.empty()) json["id"] = event.id;
  return lines_->Add(JsonText(json));
}

}  // namespace capstan
