// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_DESK_WHY_SLOW_PAGE_H_
#define CAPSTAN_DESK_WHY_SLOW_PAGE_H_

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "desk/why_slow/causes.h"
#include "desk/why_slow/speed_record.h"

namespace capstan::why_slow {

// A page of text, lines of up to `columns`.
std::string PageText(const SpeedRecord& run, const Summary& summary,
                     const std::vector<Cause>& causes, int columns);
// The same for programs: run, ranks, steps, seconds (of a step), by phase, and
// causes, each with name, text, advice, gain (seconds of a step) and share.
nlohmann::ordered_json PageJson(const SpeedRecord& run, const Summary& summary,
                                const std::vector<Cause>& causes);

}  // namespace capstan::why_slow

#endif  // CAPSTAN_DESK_WHY_SLOW_PAGE_H_
