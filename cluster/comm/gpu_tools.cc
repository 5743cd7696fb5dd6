// SPDX-License-Identifier: Apache-2.0
#include "cluster/comm/gpu_tools.h"

namespace capstan {
namespace {

const GpuTools* the_tools = nullptr;

}  // namespace

const GpuTools* TheGpuTools() { return the_tools; }

void SetGpuTools(const GpuTools* tools) { the_tools = tools; }

}  // namespace capstan
