// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_DESK_DOCTOR_GPUS_H_
#define CAPSTAN_DESK_DOCTOR_GPUS_H_

#include <nlohmann/json.hpp>

#include "desk/doctor/finding.h"

namespace capstan::doctor {

// The judgement of ReadGpuHealth's array (desk/gpus/health.h): a finding for
// each GPU, kOk for one that runs don't get.
Findings JudgeGpus(const nlohmann::ordered_json& gpus);

}  // namespace capstan::doctor

#endif  // CAPSTAN_DESK_DOCTOR_GPUS_H_
