// SPDX-License-Identifier: Apache-2.0
#include "plugins/objective/common/twin_runner.h"

#include <ATen/core/grad_mode.h>

#include <utility>
// Last: its CHECK is the one to use.
#include <glog/logging.h>

namespace capstan {
namespace {

class Recorder final : public UnitRunner {
 public:
  explicit Recorder(RecordedForward* record) : record_(*record) {}

  at::Tensor Run(int unit, const at::Tensor& input, const Body& body) override {
    if (record_.units.empty()) record_.input = input;
    record_.units.push_back({unit, body});
    return input;
  }

 private:
  RecordedForward& record_;
};

}  // namespace

RecordedForward Record(const std::function<void(UnitRunner&)>& forward) {
  // What forward decides by it, it decides for a forward without.
  const at::NoGradGuard no_gradients;
  RecordedForward record;
  Recorder recorder(&record);
  forward(recorder);
  return record;
}

RecordedForward RecordWithoutAdapter(
    Model& model, const std::function<void(UnitRunner&)>& forward) {
  model.SetAdapterEnabled(false);
  RecordedForward record;
  try {
    record = Record(forward);
  } catch (...) {
    model.SetAdapterEnabled(true);
    throw;
  }
  model.SetAdapterEnabled(true);
  return record;
}

TwinRunner::TwinRunner(RecordedForward twin, UnitRunner* runner)
    : twin_(std::move(twin)),
      runner_(runner),
      state_(std::make_shared<at::Tensor>(twin_.input)) {}

at::Tensor TwinRunner::Run(int unit, const at::Tensor& input,
                           const Body& body) {
  CHECK(next_ < twin_.units.size() && twin_.units[next_].unit == unit)
      << "both forwards run the same units";
  const Body twin = twin_.units[next_++].body;
  // Activation checkpointing runs a body again, which has no twin then.
  const auto pending = std::make_shared<bool>(true);
  return runner_->Run(
      unit, input, [twin, body, pending, state = state_](const at::Tensor& x) {
        if (*pending) {
          *pending = false;
          const at::NoGradGuard no_gradients;
          *state = twin(*state);
        }
        return body(x);
      });
}

}  // namespace capstan
