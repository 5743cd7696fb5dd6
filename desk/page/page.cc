// SPDX-License-Identifier: Apache-2.0
#include "desk/page/page.h"

#include <glog/logging.h>

#include <cstring>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/string_view.h"
#include "base/digest.h"

namespace capstan {

extern const EmbeddedFile kPageAssets[];
extern const char kChartJs[];

namespace {

// As a Content-Security-Policy names an inline script or style.
std::string SourceOf(const std::string& text) {
  return absl::StrCat("'sha256-", absl::Base64Escape(Sha256(text)), "'");
}

// Escapes whatever could end the enclosing script element.
std::string InScript(const std::string& json) {
  return absl::StrReplaceAll(
      json, {{"<", "\\u003c"}, {"\u2028", "\\u2028"}, {"\u2029", "\\u2029"}});
}

}  // namespace

std::string EmbeddedText(const EmbeddedFile* files, const char* path) {
  for (const EmbeddedFile* file = files; file->path != nullptr; ++file) {
    if (std::strcmp(file->path, path) == 0) return file->text;
  }
  LOG(FATAL) << path << " isn't embedded";
}

std::string BaseStyle() { return EmbeddedText(kPageAssets, "base.css"); }

std::string HtmlText(const std::string& text) {
  return absl::StrReplaceAll(
      text, {{"&", "&amp;"}, {"<", "&lt;"}, {">", "&gt;"}, {"\"", "&quot;"}});
}

std::string PageHtml(const Page& page) {
  const std::string chart = kChartJs;
  const std::string style = BaseStyle() + page.style;
  const std::string script =
      absl::StrCat(EmbeddedText(kPageAssets, "base.js"),
                   EmbeddedText(kPageAssets, "charts.js"), page.script);
  const std::string policy = absl::StrCat(
      "default-src 'none'; base-uri 'none'; form-action 'none'; "
      "img-src data:; connect-src ",
      page.live ? "'self'" : "'none'", "; style-src ", SourceOf(style),
      "; script-src ", SourceOf(chart), " ", SourceOf(script));
  // One pass: inserted text isn't scanned again.
  return absl::StrReplaceAll(EmbeddedText(kPageAssets, "page.html"),
                             {{"{{POLICY}}", policy},
                              {"{{TITLE}}", HtmlText(page.title)},
                              {"{{STYLE}}", style},
                              {"{{NOSCRIPT}}", page.noscript},
                              {"{{REPORT_JSON}}", InScript(page.json)},
                              {"{{CHART_JS}}", chart},
                              {"{{PAGE_JS}}", script}});
}

}  // namespace capstan
