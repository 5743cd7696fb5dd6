// SPDX-License-Identifier: Apache-2.0
#include "kernels/context/row_division.h"

#include <atomic>

namespace capstan {
namespace {

std::atomic<int> division{1};

}  // namespace

void SetRowDivision(int ranks) { division = ranks; }

int CurrentRowDivision() { return division; }

}  // namespace capstan
