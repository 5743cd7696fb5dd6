// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_CLUSTER_WATCH_STACKS_H_
#define CAPSTAN_CLUSTER_WATCH_STACKS_H_

#include <string>

namespace capstan {

// Prepares StacksOfThreads by taking a real-time signal for it. Called once,
// before it.
void PrepareStacks();

// Returns the stacks of this process's threads except the calling one, as
// lines, the main thread's first and equal ones once. Each thread writes its
// own in a signal handler; one that doesn't answer in time is listed with its
// state. Called by one thread at a time.
std::string StacksOfThreads();

}  // namespace capstan

#endif  // CAPSTAN_CLUSTER_WATCH_STACKS_H_
