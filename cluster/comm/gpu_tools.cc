// SPDX-License-Identifier: Apache-2.0
#include "cluster/comm/gpu_tools.h"

#include <c10/util/Exception.h>

namespace capstan {
namespace {

const GpuTools* the_tools = nullptr;

}  // namespace

const GpuTools* TheGpuTools() { return the_tools; }

void SetGpuTools(const GpuTools* tools) { the_tools = tools; }

std::shared_ptr<void> PinMemory(void* memory, int64_t bytes) {
  TORCH_CHECK(the_tools != nullptr, "memory is pinned for a GPU");
  the_tools->pin(memory, bytes);
  return std::shared_ptr<void>(memory, the_tools->unpin);
}

}  // namespace capstan
