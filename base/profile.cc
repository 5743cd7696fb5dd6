// SPDX-License-Identifier: Apache-2.0
//
// Begin and End are in trainer/profile/records.cc, beside what they fill.
#include "base/profile.h"

namespace capstan {

std::atomic<bool> ProfileScope::enabled_{false};

}  // namespace capstan
