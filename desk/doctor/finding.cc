// SPDX-License-Identifier: Apache-2.0
#include "desk/doctor/finding.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "base/error_code.h"
#include "trainer/metrics/console.h"

namespace capstan::doctor {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kIndent = 20;  // of level and check

}  // namespace

void Finding::Warn(const std::string& what, Level least) {
  level = std::max(level, least);
  absl::StrAppend(&advice, advice.empty() ? "" : "; ", what);
}

void Finding::Add(Level least, const std::string& found,
                  const std::string& what) {
  absl::StrAppend(&text, advice.empty() ? ": " : ", ", found);
  Warn(what, least);
}

Finding FailureOf(const std::string& check, const absl::Status& status,
                  absl::string_view code, const std::string& advice) {
  return {Level::kFailure, check, TextWithCode(WithCode(status, code)), advice};
}

const char* NameOf(Level level) {
  return level == Level::kOk        ? "ok"
         : level == Level::kWarning ? "warning"
                                    : "failure";
}

Json AsJson(const Findings& findings) {
  Json list = Json::array();
  for (const Finding& finding : findings) {
    Json line = {{"level", NameOf(finding.level)},
                 {"check", finding.check},
                 {"text", finding.text}};
    if (!finding.advice.empty()) line["advice"] = finding.advice;
    list.push_back(std::move(line));
  }
  return list;
}

Findings FindingsOf(const Json& json) {
  Findings findings;
  for (const Json& line : json) {
    Finding finding = {Level::kOk, line.value("check", ""),
                       line.value("text", ""), line.value("advice", "")};
    for (const Level level : {Level::kWarning, Level::kFailure}) {
      if (line.value("level", "") == NameOf(level)) finding.level = level;
    }
    findings.push_back(std::move(finding));
  }
  return findings;
}

std::string AsText(const Findings& findings, int columns) {
  std::string text;
  for (const Finding& finding : findings) {
    absl::StrAppend(
        &text,
        absl::StrFormat("%-8s %-10s ", NameOf(finding.level), finding.check),
        absl::StripLeadingAsciiWhitespace(
            WrappedText(finding.text, kIndent, columns)),
        WrappedText(finding.advice, kIndent, columns));
  }
  return PrintableText(text);
}

}  // namespace capstan::doctor
