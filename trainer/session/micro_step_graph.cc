// SPDX-License-Identifier: Apache-2.0
#include "trainer/session/micro_step_graph.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/zeros.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/random.h"
#include "base/status.h"
#include "cluster/comm/agree.h"
#include "trainer/profile/ranges.h"
#include "trainer/session/recording_passes.h"

namespace capstan {
namespace {

constexpr int kWarmUps = 2;
constexpr int kComparisons = 2;
// Kinds of one shape that are remembered without a recording.
constexpr size_t kMostKinds = 256;
// Recordings ever made, after which a run whose kinds don't recur stops trying.
constexpr int kMostRecorded = 4 * MicroStepGraphs::kMostGraphs;
constexpr size_t kMostNotes = 5;

// Why work can't be recorded, in one line: LibTorch's errors have more below.
std::string WhyNot(const absl::Status& status) {
  const std::vector<std::string> lines =
      absl::StrSplit(std::string(status.message()), '\n');
  // What CUDA answers to nearly all that it forbids.
  if (!absl::StrContains(lines[0], "capturing")) return lines[0];
  return absl::StrCat(
      "the model or the objective waits for the device or copies from or to "
      "the host (",
      lines[0], ")");
}

// A loss's tensors and the gradients behind it.
struct MicroStepResults {
  at::Tensor sum, metrics, gradients;
};

// A repetition may differ from a usual run by this many times as much as
// another usual run.
constexpr double kLikeThem = 4.0;

// Bits rather than numbers: NaN equals itself, and -0 isn't 0.
at::Tensor BitsOf(const at::Tensor& tensor) {
  switch (tensor.element_size()) {
    case 2:
      return tensor.view(at::kShort);
    case 4:
      return tensor.view(at::kInt);
    case 8:
      return tensor.view(at::kLong);
    default:
      return tensor;
  }
}

bool SameBits(const at::Tensor& a, const at::Tensor& b) {
  if (!a.defined() || !b.defined()) return a.defined() == b.defined();
  return at::equal(BitsOf(a), BitsOf(b));
}

double Distance(const at::Tensor& a, const at::Tensor& b) {
  if (!a.defined() || !b.defined()) return 0.0;
  return at::linalg_vector_norm(a.to(at::kDouble) - b.to(at::kDouble))
      .item<double>();
}

// Returns which result differs in any bit; empty if none does. Waits for the
// device.
std::string Difference(const MicroStepResults& a, const MicroStepResults& b) {
  if (!SameBits(a.sum, b.sum)) return "loss";
  if (!SameBits(a.metrics, b.metrics)) return "metrics";
  return SameBits(a.gradients, b.gradients) ? "" : "gradients";
}

// For usual runs that differ among themselves (`usual` and `again`): returns
// whether `other` is about as far from `usual` as `again` is; false with NaN.
// Waits for the device.
bool IsLikeThem(const MicroStepResults& usual, const MicroStepResults& again,
                const MicroStepResults& other) {
  for (const auto part : {&MicroStepResults::sum, &MicroStepResults::metrics,
                          &MicroStepResults::gradients}) {
    const double between = Distance(usual.*part, other.*part);
    const double among = Distance(usual.*part, again.*part);
    if (!(between <= kLikeThem * among)) return false;
  }
  return true;
}

bool SameCounts(const LossSum& a, const LossSum& b) {
  return a.count == b.count && a.tokens == b.tokens && a.padding == b.padding &&
         a.trained == b.trained;
}

}  // namespace

// What a batch's Compute without the bodies has told.
struct MicroStepGraphs::Skipped {
  std::string kind;                // what the recorder was told
  std::vector<at::Tensor> values;  // from the host, on the device
  LossSum loss;                    // its counts; the sum means nothing
};

struct MicroStepGraphs::Recording {
  std::unique_ptr<DeviceGraph> graph;
  Batch batch;                     // as recorded: what the work reads
  std::vector<at::Tensor> values;  // likewise
  std::vector<at::Tensor> kept;
  at::Tensor scale;
  double scale_is = 0.0;
  at::Tensor sum, metrics;      // what the work writes, besides gradients
  std::string gradients_after;  // HeldGradients::GradientState
  int compared = 0;
  int64_t used = 0;
};

struct MicroStepGraphs::Shape {
  std::string name;  // for notes
  int usual = 0;     // micro-steps run as usual
  bool given_up = false;
  std::vector<UnitOutput> outputs;   // in the order of UnitRunner::Run
  std::map<std::string, int> kinds;  // how often they came without a recording
  std::map<std::string, std::unique_ptr<Recording>> recordings;
};

MicroStepGraphs::MicroStepGraphs(Parts parts)
    : parts_(std::move(parts)), stream_(parts_.device) {
  parts_.gradients->FixGradients();
}

MicroStepGraphs::~MicroStepGraphs() = default;

std::string MicroStepGraphs::KeyOf(const Batch& batch,
                                   const std::vector<double>& totals) const {
  // All bits: an objective may have computed with them on the host, so that
  // they are part of the recording.
  std::string key =
      absl::StrJoin(totals, ",", [](std::string* out, double total) {
        absl::StrAppendFormat(out, "%a", total);
      });
  key += "|";
  for (const auto& [name, tensor] : batch) {
    absl::StrAppend(&key, name, tensor.is_cpu() ? " host " : " ",
                    ShapeText(tensor), "|");
  }
  return absl::StrCat(key, parts_.gradients->GradientState());
}

at::Tensor MicroStepGraphs::Placeholder(const UnitOutput& output) {
  const std::string key =
      absl::StrCat(absl::StrJoin(output.sizes, ","), " ",
                   c10::toString(output.options.dtype().toScalarType()));
  at::Tensor& zeros = placeholders_[key];
  if (!zeros.defined()) zeros = at::zeros(output.sizes, output.options);
  return zeros;
}

LossSum MicroStepGraphs::AsUsual(const Batch& batch, UnitRunner& runner) {
  LossSum loss = parts_.forward(batch, runner);
  parts_.backward(loss.sum, at::full({}, parts_.scale(), loss.sum.options()));
  loss.sum = loss.sum.detach();
  return loss;
}

LossSum MicroStepGraphs::UsualOrAlone(const Batch& batch, UnitRunner& runner) {
  if (recordings_ == 0) return AsUsual(batch, runner);
  HeldGradients& gradients = *parts_.gradients;
  const std::string state = gradients.GradientState();
  at::Tensor before;
  try {
    before = gradients.held().clone();
    return AsUsual(batch, runner);
  } catch (...) {
    // Without the recordings there may be enough.
    if (!absl::IsResourceExhausted(CurrentExceptionToStatus())) throw;
  }
  DropAll();
  gradients.SetGradientState(state);
  if (before.defined()) gradients.held().copy_(before);
  return AsUsual(batch, runner);
}

void MicroStepGraphs::DropAll() {
  stopped_ = true;
  for (const auto& [key, shape] : shapes_) shape->recordings.clear();
  recordings_ = 0;
  placeholders_.clear();
  NoteMemory();
  Tell(
      "from here on there are none: there isn't memory for them and for "
      "micro-steps that run as usual");
}

MicroStepGraphs::Shape& MicroStepGraphs::ShapeOf(
    const Batch& batch, const std::vector<double>& totals) {
  std::string key = KeyOf(batch, totals);
  const auto found = shapes_.find(key);
  if (found != shapes_.end()) return *found->second;
  if (shapes_.size() >= kMostKinds) {
    Tell(
        "many micro-steps run without a CUDA graph: shapes of batches or a "
        "step's totals hardly recur");
    placeholders_.clear();
    for (auto it = shapes_.begin(); it != shapes_.end();) {
      it = it->second->recordings.empty() ? shapes_.erase(it) : ++it;
    }
  }
  auto shape = std::make_unique<Shape>();
  for (const auto& [name, tensor] : batch) {
    if (tensor.is_cpu() || shape->name.size() > 100) continue;
    absl::StrAppend(&shape->name, shape->name.empty() ? "" : ", ", name, " ",
                    ShapeText(tensor));
  }
  return *(shapes_[std::move(key)] = std::move(shape));
}

void MicroStepGraphs::Tell(const std::string& what) {
  if (!told_.insert(what).second || told_.size() > kMostNotes) return;
  parts_.note(absl::StrCat(
      "train.cuda_graphs: ", what,
      told_.size() == kMostNotes ? "; further ones won't be told of" : ""));
}

LossSum MicroStepGraphs::Run(const Batch& batch,
                             const std::vector<double>& totals) {
  Shape& shape = ShapeOf(batch, totals);
  // Held, so that it can be run again, where there are recordings to give up.
  if (stopped_ || (shape.given_up && recordings_ == 0)) {
    return AsUsual(batch, *parts_.runner);
  }
  parts_.gradients->HoldReductions();
  if (shape.given_up) return UsualOrAlone(batch, *parts_.runner);
  if (shape.usual < kWarmUps) return WarmUp(batch, &shape);
  Skipped skipped;
  const absl::Status status = Skip(batch, shape, &skipped);
  if (status.ok()) return RunKind(batch, &shape, skipped);
  // Throws if it is the batch's fault.
  LossSum loss = UsualOrAlone(batch, *parts_.runner);
  GiveUp(&shape, absl::StrCat("without the model's work the objective fails: ",
                              WhyNot(status)));
  return loss;
}

LossSum MicroStepGraphs::WarmUp(const Batch& batch, Shape* shape) {
  NotingRunner runner(parts_.runner, &shape->outputs);
  LossSum loss;
  if (++shape->usual < kWarmUps) {
    loss = UsualOrAlone(batch, runner);
  } else {
    stream_.Run([&] { loss = UsualOrAlone(batch, runner); });
    stream_.Join();
    // The caller's stream isn't the one that made them.
    for (const at::Tensor* made : {&loss.sum, &loss.metrics}) {
      if (made->defined() && made->is_cuda()) {
        made->record_stream(c10::impl::VirtualGuardImpl(made->device().type())
                                .getStream(made->device()));
      }
    }
  }
  return loss;
}

absl::Status MicroStepGraphs::Skip(const Batch& batch, const Shape& shape,
                                   Skipped* skipped) {
  const at::NoGradGuard no_grad;
  ValuesNoter noter;
  const RecorderScope scope(&noter);
  SkippingRunner runner(
      parts_.strategy, &shape.outputs,
      [this](const UnitOutput& output) { return Placeholder(output); });
  const absl::Status status = CatchAll([&] {
    skipped->loss = parts_.forward(batch, runner);
    return absl::OkStatus();
  });
  CAPSTAN_RETURN_IF_ERROR(status);
  if (!runner.complete()) {
    return absl::FailedPreconditionError("it runs fewer units than before");
  }
  skipped->kind = noter.kind();
  skipped->values = std::move(noter.values());
  return absl::OkStatus();
}

LossSum MicroStepGraphs::RunKind(const Batch& batch, Shape* shape,
                                 const Skipped& skipped) {
  const auto found = shape->recordings.find(skipped.kind);
  if (found != shape->recordings.end()) {
    Recording& recording = *found->second;
    recording.used = ++uses_;
    const bool drawn =
        RandomUniform(RandomKey(0, "compared repetitions"),
                      static_cast<uint64_t>(uses_)) < 1.0 / parts_.compared_of;
    return drawn || recording.compared < kComparisons
               ? Compare(batch, shape, skipped, &recording)
               : Repeat(batch, skipped, &recording);
  }
  if (shape->kinds.size() == kMostKinds) shape->kinds.clear();
  // Beside the first kind only those that come again.
  const bool first = shape->recordings.empty() && shape->kinds.empty();
  if (++shape->kinds[skipped.kind] < 2 && !first) {
    return UsualOrAlone(batch, *parts_.runner);
  }
  if (recorded_ == kMostRecorded) {
    Tell(
        "further kinds of micro-steps run without a CUDA graph: so many have "
        "been recorded already");
    return UsualOrAlone(batch, *parts_.runner);
  }
  DropUnused();
  ++recorded_;
  const std::string before = parts_.gradients->GradientState();
  auto recording = std::make_unique<Recording>();
  const absl::Status status =
      CatchAll([&] { return Record(batch, skipped, recording.get()); });
  parts_.gradients->SetGradientState(before);
  if (status.ok()) {
    recording->used = ++uses_;
    shape->recordings[skipped.kind] = std::move(recording);
    shape->kinds.erase(skipped.kind);
    ++recordings_;
  } else {
    recording.reset();
    GiveUp(shape,
           absl::StrCat("their work can't be recorded: ", WhyNot(status)));
  }
  NoteMemory();
  return UsualOrAlone(batch, *parts_.runner);
}

absl::Status MicroStepGraphs::Record(const Batch& batch, const Skipped& skipped,
                                     Recording* recording) {
  for (const auto& [name, tensor] : batch) {
    recording->batch[name] = tensor.is_cpu() ? tensor : tensor.clone();
  }
  for (const at::Tensor& values : skipped.values) {
    recording->values.push_back(values.clone());
  }
  recording->scale_is = parts_.scale();
  recording->scale = at::full({}, recording->scale_is,
                              skipped.loss.sum.options().requires_grad(false));
  recording->graph = parts_.new_graph();
  absl::Status status;
  stream_.Run([&] { status = RecordWork(skipped, recording); });
  stream_.Join();
  return status;
}

absl::Status MicroStepGraphs::RecordWork(const Skipped& skipped,
                                         Recording* recording) {
  ValuesGiver giver(&recording->values, &recording->kept);
  const absl::Status status = CatchAll([&] {
    recording->graph->Begin();
    const RecorderScope scope(&giver);
    BodyRunner runner(parts_.runner, &giver);
    const LossSum loss = parts_.forward(recording->batch, runner);
    giver.set_within("a backward");
    parts_.backward(loss.sum, recording->scale);
    recording->sum = loss.sum.detach();
    recording->metrics = loss.metrics;
    return absl::OkStatus();
  });
  // Even after an error: the stream would go on recording.
  const absl::Status ended = recording->graph->End();
  CAPSTAN_RETURN_IF_ERROR(status);
  CAPSTAN_RETURN_IF_ERROR(ended);
  if (giver.kind() != skipped.kind) {
    return absl::FailedPreconditionError(
        "within its units it uses numbers of the host");
  }
  recording->gradients_after = parts_.gradients->GradientState();
  return absl::OkStatus();
}

LossSum MicroStepGraphs::Repeat(const Batch& batch, const Skipped& skipped,
                                Recording* recording) {
  const at::NoGradGuard no_grad;
  for (const auto& [name, tensor] : batch) {
    if (!tensor.is_cpu()) recording->batch.at(name).copy_(tensor);
  }
  for (size_t i = 0; i < skipped.values.size(); ++i) {
    recording->values[i].copy_(skipped.values[i]);
  }
  const double scale = parts_.scale();
  if (scale != recording->scale_is) recording->scale.fill_(scale);
  recording->scale_is = scale;
  {
    const Range range("CUDA graph");
    recording->graph->Replay();
  }
  parts_.gradients->SetGradientState(recording->gradients_after);
  LossSum loss = skipped.loss;
  loss.sum = recording->sum.clone();
  if (recording->metrics.defined()) loss.metrics = recording->metrics.clone();
  return loss;
}

// Leaves the usual run's loss and gradients.
LossSum MicroStepGraphs::Compare(const Batch& batch, Shape* shape,
                                 const Skipped& skipped, Recording* recording) {
  const std::string state = parts_.gradients->GradientState();
  const at::Tensor gradients = parts_.gradients->held();
  MicroStepResults theirs, first;
  at::Tensor before;
  const absl::Status room = CatchAll([&] {
    before = gradients.clone();
    theirs.gradients = at::empty_like(gradients);
    first.gradients = at::empty_like(gradients);
    return absl::OkStatus();
  });
  if (!room.ok()) {
    // One that has been compared needn't be again.
    if (recording->compared >= kComparisons) {
      return Repeat(batch, skipped, recording);
    }
    GiveUp(shape, "there is no memory for comparing it with the usual run");
    return UsualOrAlone(batch, *parts_.runner);
  }
  const auto results = [&](const LossSum& loss, const at::Tensor& copy) {
    copy.copy_(gradients);
    return MicroStepResults{loss.sum, loss.metrics, copy};
  };
  const auto usual = [&] {
    parts_.gradients->SetGradientState(state);
    gradients.copy_(before);
    return AsUsual(batch, *parts_.runner);
  };
  const LossSum repeated = Repeat(batch, skipped, recording);
  ++recording->compared;
  theirs = results(repeated, theirs.gradients);
  LossSum loss;
  try {
    loss = usual();
  } catch (...) {
    if (!absl::IsResourceExhausted(CurrentExceptionToStatus())) throw;
    theirs = first = MicroStepResults();
  }
  if (!loss.sum.defined()) {
    DropAll();  // the recording, too
    return usual();
  }
  first = results(loss, first.gradients);
  if (!SameCounts(loss, repeated)) {
    GiveUp(shape,
           "without the model's work the objective counts other targets");
    return loss;
  }
  const std::string other = Difference(first, theirs);
  if (other.empty()) return loss;
  // Do usual runs agree with each other?
  loss = usual();
  const MicroStepResults again = {loss.sum, loss.metrics, gradients};
  if (Difference(first, again).empty() || !IsLikeThem(first, again, theirs)) {
    GiveUp(shape,
           absl::StrCat("repeating their recorded work gives another ", other,
                        " than the usual run: the model or the "
                        "objective uses values of the host that change "
                        "with the batch"));
  }
  return loss;
}

void MicroStepGraphs::GiveUp(Shape* shape, const std::string& why) {
  shape->given_up = true;
  recordings_ -= static_cast<int>(shape->recordings.size());
  shape->recordings.clear();
  shape->kinds.clear();
  Tell(absl::StrCat("batches of ", shape->name,
                    " run without a CUDA graph: ", why));
}

void MicroStepGraphs::DropUnused() {
  while (recordings_ >= kMostGraphs) {
    Shape* of = nullptr;
    std::string kind;
    int64_t used = uses_ + 1;
    for (const auto& [key, shape] : shapes_) {
      for (const auto& [name, recording] : shape->recordings) {
        if (recording->used >= used) continue;
        used = recording->used;
        of = shape.get();
        kind = name;
      }
    }
    of->recordings.erase(kind);
    --recordings_;
  }
}

void MicroStepGraphs::AddMemory(GpuMemory* memory) const {
  memory->allocated += idle_memory_;
  memory->peak_allocated = std::max(memory->peak_allocated, memory->allocated);
}

}  // namespace capstan
