// SPDX-License-Identifier: Apache-2.0
//
// A run on paper (`trainer roofline`): what it asks of devices is noted and
// never done, so that nobody reads what tensors hold, and of all ranks only one
// is there.
#ifndef CAPSTAN_BASE_ON_PAPER_H_
#define CAPSTAN_BASE_ON_PAPER_H_

#include <functional>
#include <vector>

namespace capstan {

// Whether this process runs so: initial values needn't be made, which for a
// large model take minutes. Set before the run begins. Any thread.
void SetOnPaper(bool on_paper);
bool OnPaper();

// To be called before ProcessGroup::Split, with the color that each of `ranks`
// ranks says: on paper those that aren't there can't. Nothing else changes by
// it, and without a run on paper nothing at all.
void NoteSplit(int ranks, const std::function<int(int rank)>& color);
// By rank, what was noted since the last call; empty: nothing.
std::vector<int> TakeNotedSplit();

}  // namespace capstan

#endif  // CAPSTAN_BASE_ON_PAPER_H_
