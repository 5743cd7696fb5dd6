// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TRAINER_WATCH_STACKS_H_
#define CAPSTAN_TRAINER_WATCH_STACKS_H_

#include <string>

namespace capstan {

// Prepares StacksOfThreads: takes a real-time signal for it. Once, before it is
// called.
void PrepareStacks();

// The stacks of this process's threads, but for the calling one, as lines: the
// main thread's first, equal ones once. Each thread writes down its own in a
// signal handler; one that doesn't answer in time is listed with its state. One
// thread at a time.
std::string StacksOfThreads();

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_WATCH_STACKS_H_
