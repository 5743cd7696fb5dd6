// SPDX-License-Identifier: Apache-2.0
//
// explain: the sections of docs/troubleshooting.md by their headings, the codes
// of errors (base/error_code.h).
#include <algorithm>
#include <iostream>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/error_code.h"
#include "host/plugins/plugin_host.h"
#include "trainer/commands/command.h"

namespace capstan {
namespace {

constexpr char kPages[] =
#include "desk/explain/pages.inc"
    ;

struct ErrorPage {
  std::string code;
  std::vector<std::string> lines;
};

// In the page's order; headings of groups are left out.
std::vector<ErrorPage> ErrorPages() {
  std::vector<ErrorPage> pages;
  for (absl::string_view line : absl::StrSplit(kPages, '\n')) {
    if (absl::StartsWith(line, "## ")) {
      pages.push_back({});  // what follows is of no code yet
    } else if (absl::ConsumePrefix(&line, "### ")) {
      pages.push_back({std::string(line), {}});
    } else if (!pages.empty()) {
      pages.back().lines.emplace_back(line);
    }
  }
  pages.erase(
      std::remove_if(pages.begin(), pages.end(),
                     [](const ErrorPage& page) { return page.code.empty(); }),
      pages.end());
  return pages;
}

// The first sentence of a page, whose lines are wrapped.
std::string FirstSentence(const ErrorPage& page) {
  std::string text;
  for (const std::string& line : page.lines) {
    if (line.empty()) break;
    absl::StrAppend(&text, text.empty() ? "" : " ", line);
  }
  const size_t end = text.find(". ");
  return end == std::string::npos ? text : text.substr(0, end + 1);
}

struct ExplainOptions {
  std::string code;
};

absl::StatusOr<int> Explain(const ExplainOptions& options) {
  // As errors show it: "[config/file]".
  absl::string_view code = options.code;
  absl::ConsumePrefix(&code, "[");
  absl::ConsumeSuffix(&code, "]");
  std::vector<std::string> codes;
  for (const ErrorPage& page : ErrorPages()) {
    codes.push_back(page.code);
    if (code.empty()) {
      std::cout << absl::StrFormat("%-22s %s\n", page.code,
                                   FirstSentence(page));
    } else if (page.code == code) {
      for (const std::string& line : page.lines) std::cout << line << "\n";
      return 0;
    }
  }
  if (code.empty()) return 0;
  const std::string nearest = NearestName(code, codes);
  return WithCode(absl::NotFoundError(absl::StrCat(
                      "there is no kind of error \"", code, "\"",
                      nearest.empty() ? "; trainer explain lists them"
                                      : DidYouMean(nearest))),
                  "command/word");
}

const RegisterFunction<ExplainOptions> explain(
    "explain",
    [](Flags& flags, ExplainOptions* options) {
      flags.Add(
          "CODE", &options->code,
          "What stands in brackets behind an error: config/unknown-field; "
          "without it all are listed");
    },
    Explain);

}  // namespace
}  // namespace capstan
