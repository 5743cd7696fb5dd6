// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TRAINER_SESSION_MICRO_STEP_GRAPH_H_
#define CAPSTAN_TRAINER_SESSION_MICRO_STEP_GRAPH_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "base/side_stream.h"
#include "cluster/comm/device_graph.h"
#include "plugins/sdk/held_gradients.h"
#include "plugins/sdk/objective.h"
#include "plugins/sdk/strategy.h"
#include "trainer/metrics/reporter.h"
#include "trainer/session/recording_passes.h"
#include "trainer/session/strategy_runner.h"

namespace capstan {

// Runs micro-steps as CUDA graphs (train.cuda_graphs): the work of forward and
// backward is recorded once for each kind of micro-step and then repeated as a
// whole, which costs the host one launch.
//
// A kind is determined by the batch's shapes and dtypes, the step's totals,
// which gradients exist already, and what the model and the objective report
// about values on the host (WorkRecorder). To learn the latter and the counts
// of a batch, the objective's Compute runs without the units' bodies, which are
// the only costly part (Skip below). Of each kind
//   1. two micro-steps run as usual, the second one on the recording stream, so
//      that libraries have their plans and workspaces;
//   2. the next one is recorded, and runs as usual;
//   3. the next two run both ways: loss, metrics and gradients must be equal to
//      the bit, or the kind is run as usual from then on, with a note. (Where
//      usual runs differ among themselves, the difference must be like theirs.)
//   4. From then on the recorded work is repeated. About one repetition in
//      Parts::compared_of, drawn by their number, is compared likewise: a value
//      of the host may change late.
// What can't be recorded (a wait for the device, a copy to or from the host, a
// library that refuses, no memory) falls back likewise. Collectives stay
// outside: HeldGradients.
class MicroStepGraphs {
 public:
  struct Parts {
    Strategy* strategy = nullptr;
    HeldGradients* gradients = nullptr;  // the same object
    StrategyRunner* runner = nullptr;
    at::Device device = at::kCPU;
    std::function<LossSum(const Batch&, UnitRunner&)> forward;
    // `scale`: a scalar on the device, with which backward begins.
    std::function<void(const at::Tensor& loss_sum, const at::Tensor& scale)>
        backward;
    // The value of such a scalar at present.
    std::function<double()> scale;
    std::function<std::unique_ptr<DeviceGraph>()> new_graph;
    std::function<int64_t()> idle_memory;  // GpuTools::idle_graph_memory
    std::function<void(const std::string&)> note;
    double compared_of = 1000.0;  // 1: all (train.check_cuda_graphs)
  };

  // The most recordings that are kept; the least recently used are dropped.
  static constexpr int kMostGraphs = 64;

  explicit MicroStepGraphs(Parts parts);
  ~MicroStepGraphs();

  // Runs forward and backward of a batch, after Strategy::BeginMicroStep. The
  // returned loss is detached and has its own memory.
  LossSum Run(const Batch& batch, const std::vector<double>& totals);

  // Adds the memory that repeated work uses while it runs, which the allocator
  // doesn't see.
  void AddMemory(GpuMemory* memory) const;

 private:
  struct Skipped;
  struct Recording;
  struct Shape;

  std::string KeyOf(const Batch& batch,
                    const std::vector<double>& totals) const;
  Shape& ShapeOf(const Batch& batch, const std::vector<double>& totals);
  LossSum AsUsual(const Batch& batch, UnitRunner& runner);
  // Like AsUsual; if memory runs out, drops all recordings for good and tries
  // again.
  LossSum UsualOrAlone(const Batch& batch, UnitRunner& runner);
  void DropAll();
  LossSum WarmUp(const Batch& batch, Shape* shape);
  absl::Status Skip(const Batch& batch, const Shape& shape, Skipped* skipped);
  LossSum RunKind(const Batch& batch, Shape* shape, const Skipped& skipped);
  absl::Status Record(const Batch& batch, const Skipped& skipped,
                      Recording* recording);
  absl::Status RecordWork(const Skipped& skipped, Recording* recording);
  LossSum Repeat(const Batch& batch, const Skipped& skipped,
                 Recording* recording);
  LossSum Compare(const Batch& batch, Shape* shape, const Skipped& skipped,
                  Recording* recording);
  at::Tensor Placeholder(const UnitOutput& output);
  void GiveUp(Shape* shape, const std::string& why);
  // Tells the user, once for each text and not too often.
  void Tell(const std::string& what);
  void DropUnused();
  void NoteMemory() { idle_memory_ = parts_.idle_memory(); }

  const Parts parts_;
  SideStream stream_;  // records
  std::map<std::string, std::unique_ptr<Shape>> shapes_;
  std::map<std::string, at::Tensor> placeholders_;
  bool stopped_ = false;  // nothing is recorded any more
  int recordings_ = 0;
  int recorded_ = 0;  // ever
  int64_t uses_ = 0;
  std::set<std::string> told_;
  int64_t idle_memory_ = 0;
};

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_SESSION_MICRO_STEP_GRAPH_H_
