// SPDX-License-Identifier: Apache-2.0
//
// For a run on paper, which records what it asks of devices instead of doing
// it, so that tensors hold no values, and has only one of its ranks. The
// program that makes such runs (testing/roofline) defines these functions anew:
// the dynamic linker resolves the core's and plugins' calls to those.
#ifndef CAPSTAN_KERNELS_CONTEXT_ON_PAPER_H_
#define CAPSTAN_KERNELS_CONTEXT_ON_PAPER_H_

#include <functional>

namespace capstan {

// Whether this process is a run on paper, which needn't compute initial values:
// for a large model these take minutes. Here: false.
bool OnPaper();

// Called before ProcessGroup::Split with the color of each of `ranks` ranks,
// since on paper the missing ranks can't pass theirs. Here it does nothing.
void NoteSplit(int ranks, const std::function<int(int rank)>& color);

}  // namespace capstan

#endif  // CAPSTAN_KERNELS_CONTEXT_ON_PAPER_H_
