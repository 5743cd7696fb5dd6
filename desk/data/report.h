// SPDX-License-Identifier: Apache-2.0
//
// What `trainer data` says, as text, JSON and a page.
#ifndef CAPSTAN_DESK_DATA_REPORT_H_
#define CAPSTAN_DESK_DATA_REPORT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "desk/data/facts.h"
#include "desk/data/samples.h"

namespace capstan {

struct DataReport {
  std::string title;               // the config or the files
  std::string reader;              // "capstan.chat"
  int64_t samples = 0;             // 0: a run can't read the data
  int64_t held_back = 0;           // samples
  int64_t max_length = 0;          // tokens of a sample; 0: no text
  std::vector<std::string> notes;  // the reader's
  DataFacts facts;
  std::vector<ShownSample> shown;
};

// For a screen of `columns` cells; with colours if `terminal`.
std::string ReportText(DataReport& report, bool terminal, int columns);

// One object, on one line.
std::string ReportJson(DataReport& report);

// A page that needs nothing but itself.
std::string ReportPage(DataReport& report);

}  // namespace capstan

#endif  // CAPSTAN_DESK_DATA_REPORT_H_
