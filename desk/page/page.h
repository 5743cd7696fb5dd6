// SPDX-License-Identifier: Apache-2.0
//
// Pages of runs: one file each, which loads nothing.
#ifndef CAPSTAN_DESK_PAGE_PAGE_H_
#define CAPSTAN_DESK_PAGE_PAGE_H_

#include <string>

#include "base/embedded_files.h"

namespace capstan {

struct Page {
  std::string title;
  std::string json;      // what the script finds as `report`
  std::string style;     // CSS, behind assets/base.css
  std::string script;    // behind assets/base.js and charts.js
  std::string noscript;  // said where there is no JavaScript
  // Whether the page may ask the server that it comes from.
  bool live = false;
};

// The page, with all that it needs. Its Content-Security-Policy has a browser
// run these scripts alone, and refuse any request elsewhere.
std::string PageHtml(const Page& page);

// The CSS that all pages begin with: assets/base.css.
std::string BaseStyle();

// The text of `files` at `path`, which must be there.
std::string EmbeddedText(const EmbeddedFile* files, const char* path);

// `text` with what HTML would take for markup, or an attribute's end, escaped.
std::string HtmlText(const std::string& text);

}  // namespace capstan

#endif  // CAPSTAN_DESK_PAGE_PAGE_H_
