// SPDX-License-Identifier: Apache-2.0
//
// What audit tells of steps that came out otherwise.
#ifndef CAPSTAN_DESK_AUDIT_DIFFERENCE_TEXT_H_
#define CAPSTAN_DESK_AUDIT_DIFFERENCE_TEXT_H_

#include <string>

#include "desk/audit/steps_again.h"

namespace capstan {

// A sentence without its full stop. `deterministic`: the run was
// (train.deterministic).
std::string DifferenceText(const ReceiptDifference& difference,
                           bool deterministic);

}  // namespace capstan

#endif  // CAPSTAN_DESK_AUDIT_DIFFERENCE_TEXT_H_
