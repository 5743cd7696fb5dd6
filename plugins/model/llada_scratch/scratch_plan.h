// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_PLUGINS_MODEL_LLADA_SCRATCH_SCRATCH_PLAN_H_
#define CAPSTAN_PLUGINS_MODEL_LLADA_SCRATCH_SCRATCH_PLAN_H_

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <vector>

#include "plugins/model/llada_scratch/scratch_config.h"
#include "plugins/sdk/model.h"

namespace capstan {
namespace llada_scratch {

// What Model::PlanUnits asks for: what LibTorch's operators and autograd hold
// in one forward and backward, with a target at each place. To be kept in step
// with llada_scratch.cc.
std::vector<UnitMemory> PlanUnits(const Config& sizes, int64_t samples,
                                  int64_t length, c10::ScalarType compute);

}  // namespace llada_scratch
}  // namespace capstan

#endif  // CAPSTAN_PLUGINS_MODEL_LLADA_SCRATCH_SCRATCH_PLAN_H_
