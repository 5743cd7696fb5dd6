// SPDX-License-Identifier: Apache-2.0
#include "trainer/session/offloaded_inputs.h"

#include <ATen/ops/empty.h>

#include <utility>

#include "plugins/sdk/memory.h"

namespace capstan {

OffloadedInputs::OffloadedInputs(const at::Device& device)
    : device_(device), copies_(device) {}

std::shared_ptr<OffloadedInputs::Input> OffloadedInputs::Add(
    const at::Tensor& input) {
  Release();  // the input before this one
  leaving_ = input;
  const at::Tensor host = at::empty(
      input.sizes(),
      input.options().device(at::kCPU).pinned_memory(device_.is_cuda()));
  copies_.Run([&] { host.copy_(input, /*non_blocking=*/true); });
  const auto added = std::make_shared<Input>(this, host);
  inputs_.push_back(added);
  return added;
}

void OffloadedInputs::Release() {
  if (!leaving_.defined()) return;
  copies_.Join();
  leaving_.reset();
}

OffloadedInputs::Input::~Input() {
  if (!returned_.defined()) return;
  // Of a backward that was broken off: the copy may be writing.
  try {
    owner_.copies_.Join();
  } catch (...) {
    // The device is lost, of which another error tells.
  }
}

void OffloadedInputs::Input::Return() {
  const MemoryScope scope(MemoryCategory::kActivations);
  returned_ =
      at::empty(host_.sizes(),
                host_.options().device(owner_.device_).pinned_memory(false));
  owner_.copies_.Run([this] { returned_.copy_(host_, /*non_blocking=*/true); });
}

at::Tensor OffloadedInputs::Input::Take() {
  if (!returned_.defined()) Return();
  owner_.copies_.Join();
  owner_.leaving_.reset();
  at::Tensor taken = std::exchange(returned_, at::Tensor());
  host_.reset();
  std::vector<std::weak_ptr<Input>>& inputs = owner_.inputs_;
  while (!inputs.empty()) {
    const std::shared_ptr<Input> before = inputs.back().lock();
    if (before != nullptr && before->host_.defined()) {
      if (!before->returned_.defined()) before->Return();
      break;
    }
    inputs.pop_back();
  }
  return taken;
}

}  // namespace capstan
