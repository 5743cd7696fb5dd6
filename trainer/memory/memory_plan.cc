// SPDX-License-Identifier: Apache-2.0
#include "trainer/memory/memory_plan.h"

#include <c10/core/ScalarType.h>

#include <algorithm>
#include <utility>

#include "absl/numeric/bits.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "plugins/sdk/model.h"
#include "trainer/metrics/console.h"
#include "trainer/optimizer/optimizer_state.h"
#include "trainer/optimizer/paged_state.h"

namespace capstan {
namespace {

int64_t& In(MemoryByCategory& bytes, MemoryCategory category) {
  return bytes[static_cast<int>(category)];
}

// Of what a micro-step takes and gives back.
int64_t MicroStepBytes(const MemoryByCategory& bytes) {
  return bytes[static_cast<size_t>(MemoryCategory::kActivations)] +
         bytes[static_cast<size_t>(MemoryCategory::kLogits)] +
         bytes[static_cast<size_t>(MemoryCategory::kWorkspace)];
}

int64_t TrainableElements(const Model& model) {
  int64_t elements = 0;
  for (const ParameterSpec& spec : model.parameters()) {
    if (spec.trainable) elements += spec.numel();
  }
  return elements;
}

int64_t At(const std::vector<int64_t>& bytes, size_t unit) {
  return unit < bytes.size() ? bytes[unit] : 0;
}

// Steps through a training step and keeps the moment of peak use.
class TimeLine {
 public:
  // `always` is held from set-up to the end.
  explicit TimeLine(const MemoryByCategory& always)
      : always_(always), at_peak_(always) {}

  struct Moment {
    int64_t buckets = 0;
    int64_t activations = 0;
    int64_t logits = 0;
    int64_t workspace = 0;
  };
  void Add(const Moment& moment) {
    MemoryByCategory bytes = always_;
    In(bytes, MemoryCategory::kBuckets) += moment.buckets;
    In(bytes, MemoryCategory::kActivations) += moment.activations;
    In(bytes, MemoryCategory::kLogits) += moment.logits;
    In(bytes, MemoryCategory::kWorkspace) += moment.workspace;
    if (Total(bytes) > Total(at_peak_)) at_peak_ = bytes;
  }
  const MemoryByCategory& at_peak() const { return at_peak_; }

 private:
  const MemoryByCategory always_;
  MemoryByCategory at_peak_;
};

// Whether unit `i`'s input goes to host memory.
bool Offloaded(const ActivationCheckpointing& checkpointing, size_t i) {
  return i > 0 && checkpointing.offload &&
         checkpointing.Covers(static_cast<int>(i));
}

// A micro-step: forward unit by unit, then backward in reverse.
void AddMicroStep(const StrategyPlan& strategy,
                  const std::vector<UnitMemory>& units,
                  const ActivationCheckpointing& checkpointing, bool on_gpu,
                  TimeLine* line) {
  // The first unit reads the data, which has no gradient.
  const auto checkpointed = [&](size_t i) {
    return i > 0 && i < units.size() &&
           checkpointing.Covers(static_cast<int>(i));
  };
  // A unit's input that isn't kept but is there while the unit runs.
  const auto fetched = [&](size_t i) {
    return Offloaded(checkpointing, i) ? units[i - 1].output : 0;
  };
  size_t last = units.size();  // behind the last that is offloaded
  while (last > 0 && !Offloaded(checkpointing, last - 1)) --last;
  // On a GPU also that of the offloaded unit before it, once the last of them
  // has begun its backward.
  const auto returning = [&](size_t i) {
    if (!on_gpu || i >= last) return int64_t{0};
    for (size_t j = i; j-- > 0;) {
      if (Offloaded(checkpointing, j)) return units[j - 1].output;
    }
    return int64_t{0};
  };
  // What stays of a unit until its backward.
  const auto kept_of = [&](size_t i) {
    const int64_t bytes = checkpointed(i) ? units[i].output : units[i].kept;
    // Its output goes to the host once the next unit has run.
    return bytes - (Offloaded(checkpointing, i + 1)
                        ? std::min(bytes, units[i].output)
                        : 0);
  };
  TimeLine::Moment kept;  // by the units run so far
  for (size_t i = 0; i < units.size(); ++i) {
    const UnitMemory& unit = units[i];
    kept.logits += unit.logits_kept;
    TimeLine::Moment now = kept;
    now.buckets = At(strategy.forward_buckets, i);
    now.activations += unit.kept + unit.forward_workspace + fetched(i);
    now.logits += unit.logits_passing;
    line->Add(now);
    kept.activations += kept_of(i);
  }
  for (size_t i = units.size(); i-- > 0;) {
    const UnitMemory& unit = units[i];
    kept.activations -= kept_of(i);
    TimeLine::Moment now = kept;
    now.buckets = At(strategy.backward_buckets, i);
    now.activations += unit.kept + fetched(i) + returning(i);
    now.logits += unit.logits_passing;
    now.workspace = unit.output;  // the gradient of its output
    if (checkpointed(i)) {
      TimeLine::Moment again = now;
      again.activations += unit.forward_workspace;
      line->Add(again);
    } else {
      // The unit after it was the last to need its output.
      now.activations -= unit.output;
    }
    TimeLine::Moment collecting = now;
    now.workspace += unit.backward_workspace;
    now.workspace += At(strategy.backward_workspace, i);
    // A gradient without storage of its own is written to its bucket: on a GPU
    // each of a matrix, else those that make the workspace negative.
    const int64_t collected = At(strategy.collect_buckets, i);
    now.buckets +=
        on_gpu ? collected
               : std::min(collected,
                          std::max<int64_t>(0, -unit.backward_workspace));
    line->Add(now);
    // Parameter gradients exist and go into their buckets.
    collecting.buckets += At(strategy.collect_buckets, i);
    collecting.logits -= unit.logits_passing;
    collecting.workspace += At(strategy.backward_workspace, i);
    // What the head kept has become one of them.
    collecting.workspace += std::min<int64_t>(0, unit.backward_workspace);
    line->Add(collecting);
  }
}

// Evaluation: the forward without gradients, of which a unit leaves its output.
void AddEvaluation(const StrategyPlan& strategy,
                   const std::vector<UnitMemory>& units, TimeLine* line) {
  for (size_t i = 0; i < units.size(); ++i) {
    const UnitMemory& unit = units[i];
    TimeLine::Moment now;
    now.buckets = At(strategy.forward_buckets, i);
    now.activations = unit.kept + unit.forward_workspace;
    // Its input, and the tables that the first unit keeps for all.
    if (i > 0) {
      now.activations += units[i - 1].output + units[0].kept - units[0].output;
    }
    now.logits = unit.logits_kept + unit.logits_passing;
    line->Add(now);
  }
}

int64_t StateBytes(const StrategyPlan& plan, const MemoryRequest& request) {
  return OptimizerStateBytes(*request.optimizer, *request.strategy.model,
                             plan.optimizer_elements,
                             request.strategy.precision.master);
}

// Host memory that a strategy holds if it offloads.
int64_t OffloadedBytes(const StrategyPlan& plan, int64_t optimizer_state) {
  int64_t bytes = 0;
  if (plan.optimizer_on_host) {
    bytes += plan.masters + plan.gradients + optimizer_state;
  }
  if (plan.parameters_on_host) bytes += plan.parameters;
  return bytes;
}

// What of paged state is on the device at a time: two pieces.
int64_t PagedPiece(const StrategyPlan& strategy, int64_t optimizer_state,
                   bool on_gpu) {
  if (!on_gpu || strategy.optimizer_elements == 0) return 0;
  const double part =
      std::min(1.0, 2.0 * static_cast<double>(kElementsOfPiece) /
                        static_cast<double>(strategy.optimizer_elements));
  return static_cast<int64_t>(part * static_cast<double>(optimizer_state));
}

}  // namespace

bool MemoryPlan::Knows(MemoryCategory category) const {
  return activations_known || (category != MemoryCategory::kActivations &&
                               category != MemoryCategory::kLogits &&
                               category != MemoryCategory::kWorkspace);
}

MemoryPlan PlanMemory(const StrategyPlan& strategy, int64_t optimizer_state,
                      const std::vector<UnitMemory>& units,
                      const ActivationCheckpointing& checkpointing, bool on_gpu,
                      bool paged_state, int64_t update,
                      const std::vector<UnitMemory>& evaluation) {
  MemoryByCategory always{};
  if (!on_gpu || !strategy.parameters_on_host) {
    In(always, MemoryCategory::kParameters) = strategy.parameters;
  }
  if (!on_gpu || !strategy.optimizer_on_host) {
    In(always, MemoryCategory::kGradients) = strategy.gradients;
    In(always, MemoryCategory::kMasters) = strategy.masters;
    In(always, MemoryCategory::kOptimizerState) =
        paged_state ? PagedPiece(strategy, optimizer_state, on_gpu)
                    : optimizer_state;
  }
  TimeLine line(always);
  line.Add({/*buckets=*/strategy.publish_buckets});
  if (!on_gpu || !strategy.optimizer_on_host) {
    TimeLine::Moment updating;
    updating.workspace = update;
    line.Add(updating);
  }
  if (units.empty()) {
    for (const auto* buckets :
         {&strategy.forward_buckets, &strategy.backward_buckets}) {
      for (const int64_t bytes : *buckets) line.Add({bytes});
    }
  }
  AddMicroStep(strategy, units, checkpointing, on_gpu, &line);

  MemoryPlan plan;
  plan.at_peak = line.at_peak();
  if (!evaluation.empty()) {
    TimeLine evaluating(always);
    AddEvaluation(strategy, evaluation, &evaluating);
    plan.evaluation = Total(evaluating.at_peak());
    if (plan.evaluation > Total(plan.at_peak)) {
      plan.at_peak = evaluating.at_peak();
    }
  }
  plan.activations_known = !units.empty();
  plan.sent = strategy.sent_for_gradients + strategy.sent_for_parameters;
  if (on_gpu) {
    plan.host = OffloadedBytes(strategy, optimizer_state);
    if (paged_state && !strategy.optimizer_on_host) {
      plan.host += optimizer_state;
    }
    for (size_t i = 1; i < units.size(); ++i) {
      if (!Offloaded(checkpointing, i)) continue;
      // LibTorch's pinned memory is a power of two.
      plan.host += static_cast<int64_t>(
          absl::bit_ceil(static_cast<uint64_t>(units[i - 1].output)));
    }
  } else if (paged_state) {
    plan.file = optimizer_state;
  }
  return plan;
}

int64_t SavedBytes(const MemoryRequest& request, int64_t held) {
  const c10::ScalarType master = request.strategy.precision.master;
  const int64_t elements = TrainableElements(*request.strategy.model);
  const int64_t all =
      elements * static_cast<int64_t>(c10::elementSize(master)) +
      OptimizerStateBytes(*request.optimizer, *request.strategy.model, elements,
                          master);
  const int64_t ranks = std::max(1, request.strategy.world_size);
  if (!request.local_steps) return all / ranks;
  // Its part of its replica, which is all of it unless several ranks train
  // one, and its slice of the shared model and of what is kept for it.
  const double part = static_cast<double>(std::min(held, elements)) /
                      static_cast<double>(std::max<int64_t>(1, elements));
  return static_cast<int64_t>(part * static_cast<double>(all)) +
         2 * elements * static_cast<int64_t>(c10::elementSize(master)) / ranks;
}

namespace {

// What CUDA graphs take besides: the pool of the largest micro-step, while
// another runs as usual beside it, and while the two are compared three copies
// of the gradients. Gradients that the strategy would reduce bucket by bucket
// are all there.
int64_t GraphBytes(const StrategyPlan& plan, const MemoryRequest& request,
                   const MemoryByCategory& at_peak) {
  const int64_t gradients =
      TrainableElements(*request.strategy.model) *
      static_cast<int64_t>(c10::elementSize(request.strategy.precision.reduce));
  return MicroStepBytes(at_peak) +
         (plan.gradients < gradients ? 4 : 3) * gradients;
}

// What a run's blocks of memory take in other sizes than at its peak: of rows
// of other lengths, which never end, and of evaluation.
int64_t OtherSizes(const MemoryRequest& request, int64_t samples,
                   const MemoryByCategory& at_peak) {
  if (request.lengths_differ) return BlockCache::Slack(Total(at_peak));
  if (request.evaluation_length == 0 ||
      (request.evaluation_length == request.length &&
       samples == request.samples)) {
    return 0;
  }
  return MicroStepBytes(at_peak);
}

}  // namespace

MemoryPlan PlanMemory(const Strategy& strategy, const MemoryRequest& request) {
  const StrategyPlan plan = strategy.Plan(request.strategy);
  const auto units_of = [&request](int64_t samples, int64_t length) {
    return length == 0
               ? std::vector<UnitMemory>()
               : request.strategy.model->PlanUnits(
                     samples, length, request.strategy.precision.compute);
  };
  const int64_t samples = request.evaluation_samples > 0
                              ? request.evaluation_samples
                              : request.samples;
  MemoryPlan memory =
      PlanMemory(plan, StateBytes(plan, request),
                 units_of(request.samples, request.length),
                 request.checkpointing, request.on_gpu, request.paged_state,
                 request.optimizer->UpdateBytes(
                     {request.strategy.model, plan.optimizer_elements,
                      request.on_gpu && !plan.optimizer_on_host}),
                 units_of(samples, request.evaluation_length));
  if (request.cuda_graphs) {
    memory.at_peak[static_cast<size_t>(MemoryCategory::kWorkspace)] +=
        GraphBytes(plan, request, memory.at_peak);
  }
  const int64_t saved = SavedBytes(request, plan.optimizer_elements);
  if (request.snapshot) memory.snapshot = saved;
  memory.mirror = request.mirror_images * saved;
  if (memory.activations_known && !request.on_gpu && request.resident > 0) {
    memory.process =
        memory.snapshot + memory.mirror +
        ExpectedProcess(request.resident, Total(memory.at_peak),
                        OtherSizes(request, samples, memory.at_peak),
                        request.strategy.precision.compute);
  }
  return memory;
}

int64_t ExpectedProcess(int64_t resident, int64_t tensors, int64_t other_sizes,
                        c10::ScalarType compute) {
  // The heap, buffers between ranks, and pages of libraries' code that the
  // first steps touch: between 31 and 52 MiB, by how the page cache holds them.
  constexpr int64_t kRest = int64_t{44} << 20;
  // Kernels for 16-bit types.
  constexpr int64_t kHalfRest = int64_t{6} << 20;
  return resident + tensors +
         std::min(BlockCache::Slack(tensors), other_sizes) + kRest +
         (compute == c10::ScalarType::Float ? 0 : kHalfRest);
}

absl::Status CheckHostMemory(const Strategy& strategy,
                             const MemoryRequest& request, int ranks,
                             int64_t available) {
  const StrategyPlan plan = strategy.Plan(request.strategy);
  return CheckHostMemory(plan, StateBytes(plan, request), ranks, available);
}

absl::Status CheckHostMemory(const StrategyPlan& strategy,
                             int64_t optimizer_state, int ranks,
                             int64_t available) {
  const int64_t needed = ranks * OffloadedBytes(strategy, optimizer_state);
  if (needed <= available) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat(
      "offload needs ", ShortBytes(needed), " of host memory for ", ranks,
      ranks == 1 ? " rank" : " ranks", ", this machine has ",
      ShortBytes(available),
      " available: run fewer ranks on it, shard over more machines, or turn "
      "offload off"));
}

namespace {

// What NCCL takes on a GPU: for each channel and each neighbour (in a ring two,
// which are a tree's within a machine) a buffer to receive for each of its
// protocols, and room to send, both mapped in pieces of 2 MiB. NCCL 2.28: 8
// steps of 640 threads with 8 lines of 16 bytes (LL) or 120 numbers of 8 bytes
// (LL128), and NCCL_BUFFSIZE, 4 MiB; its issue 1685 shows pieces of 10,485,760
// and 2,097,152 bytes. 24 channels are those of A100s by NVLink; machines
// without have fewer.
int64_t NcclBytes(int ranks, const NcclSizes& sizes) {
  constexpr int64_t kPiece = int64_t{2} << 20;
  constexpr int64_t kLowLatency = 8 * 640 * (8 * 16 + 120 * 8);
  constexpr int64_t kSimple = int64_t{4} << 20;
  constexpr int kChannels = 24;
  if (ranks < 2) return 0;
  const int64_t buffers =
      kLowLatency + (sizes.buffer > 0 ? sizes.buffer : kSimple);
  const int64_t connection = (buffers + kPiece - 1) / kPiece * kPiece + kPiece;
  const int64_t channels =
      sizes.max_ctas > 0 ? std::min(kChannels, sizes.max_ctas) : kChannels;
  return channels * std::min(ranks - 1, 2) * connection;
}

}  // namespace

GpuRoom RoomOfGpu(int64_t bytes, int ranks, const NcclSizes& nccl) {
  // nvidia-smi's figure for a process of PyTorch 2.10 with CUDA 13.0 and no
  // tensor is 426 MiB on an RTX 6000 Ada (unslothai/unsloth-zoo, pull request
  // 1053); kernels are loaded when they are first used, ours, cuBLAS's and
  // cuDNN's some 100 MiB.
  constexpr int64_t kContext = int64_t{544} << 20;
  // On compute capability 9.0 and 10.0 32 MiB for the stream that multiplies,
  // on others 8.1 (LibTorch 2.11, ATen/cuda/CublasHandlePool.cpp); the
  // allocator counts it among tensors.
  constexpr int64_t kWorkspaces = int64_t{32} << 20;
  // The allocator takes memory in pieces of 2 MiB for tensors below 1 MiB, of
  // 20 MiB below 10 MiB, and in multiples of 2 MiB above; a part of each piece
  // and between them stays free.
  constexpr double kFragmentation = 0.05;
  GpuRoom room;
  room.bytes = bytes;
  room.context = kContext;
  room.workspaces = kWorkspaces;
  room.nccl = NcclBytes(ranks, nccl);
  room.fragmentation =
      static_cast<int64_t>(kFragmentation * static_cast<double>(bytes));
  return room;
}

absl::StatusOr<int64_t> BytesFromText(absl::string_view text) {
  constexpr std::pair<absl::string_view, double> kUnits[] = {
      {"KiB", 1024.0},       {"MiB", 1048576.0},
      {"GiB", 1073741824.0}, {"TiB", 1099511627776.0},
      {"MB", 1e6},           {"GB", 1e9},
      {"TB", 1e12},          {"B", 1.0}};
  absl::string_view number = absl::StripAsciiWhitespace(text);
  double factor = 0.0;
  for (const auto& [unit, bytes] : kUnits) {
    if (absl::ConsumeSuffix(&number, unit)) {
      factor = bytes;
      break;
    }
  }
  double value = 0.0;
  const bool is_number =
      absl::SimpleAtod(absl::StripAsciiWhitespace(number), &value);
  if (is_number && value > 0.0 && factor == 0.0) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", text, "' lacks a unit: write ", number, "GB, ",
                     number, "GiB or, for bytes, ", number, "B"));
  }
  if (!is_number || !(value > 0.0) || !(value * factor < 9e15)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "'", text, "' isn't an amount of memory: write 24GiB or 80GB"));
  }
  return static_cast<int64_t>(value * factor);
}

}  // namespace capstan
