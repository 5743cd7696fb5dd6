// SPDX-License-Identifier: Apache-2.0
//
// The two ways in which MicroStepGraphs (micro_step_graph.h) runs an
// objective's Compute: without the units' bodies, to learn which values a batch
// brings from the host, and with nothing but work of the device, to record it.
#ifndef CAPSTAN_TRAINER_SESSION_RECORDING_PASSES_H_
#define CAPSTAN_TRAINER_SESSION_RECORDING_PASSES_H_

#include <ATen/core/Tensor.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "kernels/context/work_recorder.h"
#include "plugins/sdk/strategy.h"
#include "plugins/sdk/unit_runner.h"
#include "trainer/session/strategy_runner.h"

namespace capstan {

// "[2, 128] Long".
std::string ShapeText(const at::Tensor& tensor);

// Sets the process's recorder for its lifetime.
class RecorderScope {
 public:
  explicit RecorderScope(WorkRecorder* recorder) { SetWorkRecorder(recorder); }
  ~RecorderScope() { SetWorkRecorder(nullptr); }
  RecorderScope(const RecorderScope&) = delete;
  RecorderScope& operator=(const RecorderScope&) = delete;
};

// Used while bodies are skipped: notes what is reported, and copies values.
class ValuesNoter final : public WorkRecorder {
 public:
  at::Tensor Values(const at::Tensor& host, at::Device device) override;
  void Number(int64_t number) override;
  void Keep(const at::Tensor&) override {}

  // Equal for equal shapes and numbers, in their order.
  const std::string& kind() const { return kind_; }
  std::vector<at::Tensor>& values() { return values_; }

 private:
  std::string kind_;
  std::vector<at::Tensor> values_;
};

// Used while work is recorded: returns `values`, which the repeated work reads,
// and appends to `kept` what must be kept. Values throws within a unit's body
// or a backward, since these couldn't be updated.
class ValuesGiver final : public WorkRecorder {
 public:
  ValuesGiver(const std::vector<at::Tensor>* values,
              std::vector<at::Tensor>* kept)
      : values_(values), kept_(kept) {}
  at::Tensor Values(const at::Tensor& host, at::Device device) override;
  void Number(int64_t number) override;
  void Keep(const at::Tensor& tensor) override { kept_->push_back(tensor); }

  // Sets what runs now; empty for neither a body nor a backward.
  void set_within(std::string what) { within_ = std::move(what); }
  const std::string& kind() const { return kind_; }

 private:
  const std::vector<at::Tensor>* const values_;
  std::vector<at::Tensor>* const kept_;
  std::string kind_;
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
  at::Tensor Run(int unit, const at::Tensor& input, const Body& body) override;

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
  at::Tensor Run(int unit, const at::Tensor&, const Body&) override;
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
  at::Tensor Run(int unit, const at::Tensor& input, const Body& body) override;

 private:
  StrategyRunner* const runner_;
  ValuesGiver* const giver_;
};

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_SESSION_RECORDING_PASSES_H_
