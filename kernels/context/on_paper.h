// SPDX-License-Identifier: Apache-2.0
//
// A run on paper (testing/roofline) records what it asks of devices instead of
// doing it, so that tensors hold no values, and has only one of its ranks.
#ifndef CAPSTAN_KERNELS_CONTEXT_ON_PAPER_H_
#define CAPSTAN_KERNELS_CONTEXT_ON_PAPER_H_

#include <functional>
#include <vector>

namespace capstan {

// Whether this process is a run on paper, which needn't compute initial values:
// for a large model these take minutes. Set before the run begins. Thread-safe.
void SetOnPaper(bool on_paper);
bool OnPaper();

// Called before ProcessGroup::Split with the color of each of `ranks` ranks,
// since on paper the missing ranks can't pass theirs. Does nothing in other
// runs.
void NoteSplit(int ranks, const std::function<int(int rank)>& color);
// Returns the colors noted since the last call, by rank; empty if there are
// none.
std::vector<int> TakeNotedSplit();

}  // namespace capstan

#endif  // CAPSTAN_KERNELS_CONTEXT_ON_PAPER_H_
