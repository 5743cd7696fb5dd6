// SPDX-License-Identifier: Apache-2.0
#include "kernels/context/on_paper.h"

namespace capstan {

bool OnPaper() { return false; }

void NoteSplit(int /*ranks*/, const std::function<int(int rank)>& /*color*/) {}

}  // namespace capstan
