// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TRAINER_MEMORY_PLAN_TABLE_H_
#define CAPSTAN_TRAINER_MEMORY_PLAN_TABLE_H_

#include <string>
#include <vector>

#include "trainer/memory/memory_plan.h"

namespace capstan {

// A column of the table.
struct PlannedStrategy {
  std::string name;      // "capstan.ddp"
  std::string settings;  // where they come from: "this run"
  MemoryPlan plan;
};

// A strategy that can't run this, and why.
struct RefusedStrategy {
  std::string name;
  std::string reason;
};

// Memory by category and bytes sent, one column per strategy, followed by the
// refused ones. Plain text.
std::string PlanTable(const std::vector<PlannedStrategy>& strategies,
                      const std::vector<RefusedStrategy>& refused);

// "optimizer state".
std::string CategoryText(MemoryCategory category);

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_MEMORY_PLAN_TABLE_H_
