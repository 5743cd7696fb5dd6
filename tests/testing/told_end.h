// SPDX-License-Identifier: Apache-2.0
//
// Runs that last as long as what a test does to them, however fast a machine
// is: they end when they are told to.
#ifndef CAPSTAN_TESTS_TESTING_TOLD_END_H_
#define CAPSTAN_TESTS_TESTING_TOLD_END_H_

#include <cstdint>
#include <string>

#include "tests/testing/trainer_process.h"

namespace capstan {

// Of RunText::Train.
inline constexpr char kUntilTold[] = "max_steps: 1000000 control: true";

// Tells a run of kUntilTold whose steps are in folder/metrics.jsonl to end
// after `step`, or, if it is beyond that already, after twice as many, and so
// on. Returns after which one it ends; 0, and the test fails, if there is no
// answer.
int64_t EndAfter(int64_t step, const std::string& folder,
                 TrainerProcess* process);

}  // namespace capstan

#endif  // CAPSTAN_TESTS_TESTING_TOLD_END_H_
