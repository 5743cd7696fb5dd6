// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_DESK_FIT_REPORT_H_
#define CAPSTAN_DESK_FIT_REPORT_H_

#include <nlohmann/json.hpp>
#include <string>

#include "desk/fit/fitter.h"

namespace capstan::fit {

// A ranked table, what falls out and why, and the best one's lines.
std::string AsText(const Answer& answer, int columns);
// All candidates.
nlohmann::ordered_json AsJson(const Answer& answer);
// Lines of a config that is merged over the run's: it is then run like this.
std::string ConfigText(const Answer& answer, const Candidate& candidate);

}  // namespace capstan::fit

#endif  // CAPSTAN_DESK_FIT_REPORT_H_
