// SPDX-License-Identifier: Apache-2.0
//
// The two ways in which MicroStepGraphs (micro_step_graph.h) runs an
// objective's Compute: without the units' bodies, to learn which values a batch
// brings from the host, and with nothing but work of the device, to record it.
#ifndef CAPSTAN_TRAINER_SESSION_RECORDING_PASSES_H_
#define CAPSTAN_TRAINER_SESSION_RECORDING_PASSES_H_

#include <ATen/core/Tensor.h>

#include <functional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "kernels/context/work_recorder.h"
#include "plugins/sdk/strategy.h"
#include "plugins/sdk/unit_runner.h"
#include "trainer/session/strategy_runner.h"

namespace capstan {

// "[2, 128] Long".
inline std::string ShapeText(const at::Tensor& tensor) {
  return absl::StrCat("[", absl::StrJoin(tensor.sizes(), ", "), "] ",
                      c10::toString(tensor.scalar_type()));
}

// Sets the process's recorder for its lifetime.
class RecorderScope {
 public:
  explicit RecorderScope(WorkRecorder* recorder) { SetWorkRecorder(recorder); }
  ~RecorderScope() { SetWorkRecorder(nullptr); }
  RecorderScope(const RecorderScope&) = delete;
  RecorderScope& operator=(const RecorderScope&) = delete;
};

// Notes the shapes and numbers that are reported.
class KindRecorder : public WorkRecorder {
 public:
  void Number(int64_t number) override {
    absl::StrAppend(&kind_, number, "; ");
  }

  // Equal for equal shapes and numbers, in their order.
  const std::string& kind() const { return kind_; }

 protected:
  void NoteValues(const at::Tensor& host) {
    absl::StrAppend(&kind_, "values ", ShapeText(host), "; ");
  }

 private:
  std::string kind_;
};

// Used while bodies are skipped: copies values.
class ValuesNoter final : public KindRecorder {
 public:
  at::Tensor Values(const at::Tensor& host, at::Device device) override {
    NoteValues(host);
    const at::Tensor pinned = host.is_pinned() || !device.is_cuda()
                                  ? host
                                  : host.contiguous().pin_memory();
    values_.push_back(pinned.to(device, host.scalar_type(),
                                /*non_blocking=*/true, /*copy=*/true));
    return values_.back();
  }
  void Keep(const at::Tensor&) override {}

  std::vector<at::Tensor>& values() { return values_; }

 private:
  std::vector<at::Tensor> values_;
};

// Used while work is recorded: returns `values`, which the repeated work reads,
// and appends to `kept` what must be kept. Values throws within a unit's body
// or a backward, since these couldn't be updated.
class ValuesGiver final : public KindRecorder {
 public:
  ValuesGiver(const std::vector<at::Tensor>* values,
              std::vector<at::Tensor>* kept)
      : values_(values), kept_(kept) {}
  at::Tensor Values(const at::Tensor& host, at::Device) override {
    NoteValues(host);
    if (!within_.empty()) {
      throw std::runtime_error(absl::StrCat(
          "values of the host are brought to the device within ", within_));
    }
    if (next_ == values_->size() || (*values_)[next_].sizes() != host.sizes() ||
        (*values_)[next_].scalar_type() != host.scalar_type()) {
      throw std::runtime_error(
          "other values of the host are brought to the device with than "
          "without the units' work");
    }
    return (*values_)[next_++];
  }
  void Keep(const at::Tensor& tensor) override { kept_->push_back(tensor); }

  // Sets what runs now; empty for neither a body nor a backward.
  void set_within(std::string what) { within_ = std::move(what); }

 private:
  const std::vector<at::Tensor>* const values_;
  std::vector<at::Tensor>* const kept_;
  std::string within_;
  size_t next_ = 0;
};

// What a unit has returned.
struct UnitOutput {
  int unit = 0;
  std::vector<int64_t> sizes;
  at::TensorOptions options;
};

// Runs units, and notes what they return, in `outputs`.
class NotingRunner final : public UnitRunner {
 public:
  NotingRunner(UnitRunner* runner, std::vector<UnitOutput>* outputs)
      : runner_(runner), outputs_(outputs) {
    outputs_->clear();
  }
  at::Tensor Run(int unit, const at::Tensor& input, const Body& body) override {
    at::Tensor output = runner_->Run(unit, input, body);
    outputs_->push_back(
        {unit, output.sizes().vec(), output.options().requires_grad(false)});
    return output;
  }

 private:
  UnitRunner* const runner_;
  std::vector<UnitOutput>* const outputs_;
};

// Calls the strategy as a forward does, and returns a placeholder for what the
// bodies would. Throws if units come in another order than before.
class SkippingRunner final : public UnitRunner {
 public:
  using Placeholder = std::function<at::Tensor(const UnitOutput&)>;
  SkippingRunner(Strategy* strategy, const std::vector<UnitOutput>* outputs,
                 Placeholder placeholder)
      : strategy_(strategy),
        outputs_(outputs),
        placeholder_(std::move(placeholder)) {}
  at::Tensor Run(int unit, const at::Tensor&, const Body&) override {
    if (complete() || (*outputs_)[next_].unit != unit) {
      throw std::runtime_error("the model runs other units than before");
    }
    if (strategy_->wants_unit_callbacks()) {
      strategy_->PreForward(unit);
      strategy_->PostForward(unit);
    }
    return placeholder_((*outputs_)[next_++]);
  }
  // Whether all units have been run.
  bool complete() const { return next_ == outputs_->size(); }

 private:
  Strategy* const strategy_;
  const std::vector<UnitOutput>* const outputs_;
  const Placeholder placeholder_;
  size_t next_ = 0;
};

// Runs bodies without calling the strategy, which SkippingRunner has called,
// and tells `giver` which one runs.
class BodyRunner final : public UnitRunner {
 public:
  BodyRunner(StrategyRunner* runner, ValuesGiver* giver)
      : runner_(runner), giver_(giver) {
    runner_->set_callbacks(false);
  }
  ~BodyRunner() override { runner_->set_callbacks(true); }
  BodyRunner(const BodyRunner&) = delete;
  BodyRunner& operator=(const BodyRunner&) = delete;
  at::Tensor Run(int unit, const at::Tensor& input, const Body& body) override {
    giver_->set_within(absl::StrCat("unit ", unit));
    at::Tensor output = runner_->Run(unit, input, body);
    giver_->set_within("");
    return output;
  }

 private:
  StrategyRunner* const runner_;
  ValuesGiver* const giver_;
};

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_SESSION_RECORDING_PASSES_H_
