// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_DESK_DOCTOR_FINDING_H_
#define CAPSTAN_DESK_DOCTOR_FINDING_H_

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace capstan::doctor {

enum class Level { kOk, kWarning, kFailure };

// A line of the report.
struct Finding {
  Level level = Level::kOk;
  std::string check;   // "limits"
  std::string text;    // what was found
  std::string advice;  // what to do; "" if kOk

  // Makes it at least as bad as `least`, and adds what to do.
  void Warn(const std::string& what, Level least = Level::kWarning);
  // The same, and tells what was found, too.
  void Add(Level least, const std::string& found, const std::string& what);
};
using Findings = std::vector<Finding>;

// A failure whose text is `status`'s, with its code, or else `code`.
Finding FailureOf(const std::string& check, const absl::Status& status,
                  absl::string_view code, const std::string& advice);

// "ok", "warning" or "failure".
const char* NameOf(Level level);

// Objects with level, check, text and, where there is one, advice; and back.
nlohmann::ordered_json AsJson(const Findings& findings);
Findings FindingsOf(const nlohmann::ordered_json& json);

// One per line, wrapped at `columns`, the advice below.
std::string AsText(const Findings& findings, int columns);

}  // namespace capstan::doctor

#endif  // CAPSTAN_DESK_DOCTOR_FINDING_H_
