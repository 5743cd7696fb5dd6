// SPDX-License-Identifier: Apache-2.0
//
// What a run is, shown before it starts.
#ifndef CAPSTAN_TRAINER_METRICS_BANNER_H_
#define CAPSTAN_TRAINER_METRICS_BANNER_H_

#include <string>

#include "trainer/metrics/reporter.h"

namespace capstan {

// Several lines; with `bold` the first is bold on a terminal.
std::string BannerText(const RunFacts& facts, bool bold);

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_METRICS_BANNER_H_
