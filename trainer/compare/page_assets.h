// SPDX-License-Identifier: Apache-2.0
//
// The parts of report.html, generated from page/ and Debian's Chart.js (see
// BUILD).
#ifndef CAPSTAN_TRAINER_COMPARE_PAGE_ASSETS_H_
#define CAPSTAN_TRAINER_COMPARE_PAGE_ASSETS_H_

namespace capstan {

extern const char kPageHtml[];
extern const char kPageCss[];
extern const char kPageJs[];
extern const char kChartJs[];

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_COMPARE_PAGE_ASSETS_H_
