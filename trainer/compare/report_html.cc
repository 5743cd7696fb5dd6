// SPDX-License-Identifier: Apache-2.0
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/string_view.h"
#include "base/files.h"
#include "base/status.h"
#include "trainer/compare/page_assets.h"
#include "trainer/compare/report.h"

namespace capstan {
namespace {

// Escapes whatever could end the enclosing script element.
std::string InScript(const std::string& json) {
  return absl::StrReplaceAll(
      json, {{"<", "\\u003c"}, {"\u2028", "\\u2028"}, {"\u2029", "\\u2029"}});
}

std::string InText(const std::string& text) {
  return absl::StrReplaceAll(text,
                             {{"&", "&amp;"}, {"<", "&lt;"}, {">", "&gt;"}});
}

}  // namespace

std::string ReportHtml(const Comparison& comparison) {
  // One pass: inserted text is not scanned again.
  return absl::StrReplaceAll(
      kPageHtml, {{"{{TITLE}}", InText(comparison.name)},
                  {"{{STYLE}}", kPageCss},
                  {"{{CHART_JS}}", kChartJs},
                  {"{{REPORT_JSON}}", InScript(ReportJson(comparison))},
                  {"{{PAGE_JS}}", kPageJs}});
}

absl::Status WriteReports(const Comparison& comparison,
                          const std::string& folder) {
  CAPSTAN_RETURN_IF_ERROR(
      ReplaceFile(folder + "/report.json", ReportJson(comparison)));
  CAPSTAN_RETURN_IF_ERROR(
      ReplaceFile(folder + "/report.md", ReportMarkdown(comparison)));
  return ReplaceFile(folder + "/report.html", ReportHtml(comparison));
}

}  // namespace capstan
