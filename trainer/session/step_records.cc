// SPDX-License-Identifier: Apache-2.0
#include "trainer/session/step_records.h"

#include <algorithm>
#include <numeric>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "base/clock.h"
#include "base/machine.h"
#include "cluster/comm/agree.h"
#include "cluster/comm/gpu_tools.h"
#include "kernels/context/recompute.h"
#include "plugins/sdk/dataset.h"
#include "trainer/memory/tracking_allocator.h"
#include "trainer/profile/gpu_specs.h"
#include "trainer/session/metric_sums.h"

namespace capstan {
namespace {

constexpr int64_t kWarmUpSteps = 2;
constexpr size_t kMostKept = 8192;

std::vector<CountedFile> FilesOf(
    const std::vector<const DatasetReader*>& readers) {
  std::vector<CountedFile> files;
  for (const DatasetReader* reader : readers) {
    for (CountedFile& file : reader->counted_files()) {
      files.push_back(std::move(file));
    }
  }
  return files;
}

}  // namespace

void StepMedians::Add(const Step& step) {
  // A run with only warm-up steps keeps its last one.
  if (added_ <= kWarmUpSteps) {
    kept_.clear();
    bytes_sent_ = 0.0;
  }
  bytes_sent_ += static_cast<double>(step.communication.bytes_sent);
  const int64_t place = std::max<int64_t>(added_++ - kWarmUpSteps, 0);
  if (place % stride_ != 0) return;
  if (kept_.size() == kMostKept) {
    for (size_t i = 0; i < kMostKept / 2; ++i) kept_[i] = kept_[2 * i];
    kept_.resize(kMostKept / 2);
    stride_ *= 2;
  }
  kept_.push_back(step);
}

void StepMedians::Summarize(double peak, RunSummary* summary) const {
  const auto median = [this](auto value) {
    std::vector<double> values;
    for (const Step& step : kept_) values.push_back(value(step));
    return Median(std::move(values));
  };
  summary->step_seconds_median =
      median([](const Step& step) { return step.seconds; });
  summary->tokens_per_second = median([](const Step& step) {
    return step.tokens / std::max(step.seconds, 1e-9);
  });
  summary->bytes_sent_per_step =
      static_cast<int64_t>(bytes_sent_ / static_cast<double>(std::max<int64_t>(
                                             added_ - kWarmUpSteps, 1)));
  if (peak > 0.0) {
    const auto utilisation = [&](bool all) {
      return median([&](const Step& step) {
        return (step.flops + (all ? step.recomputed : 0.0)) /
               std::max(step.seconds, 1e-9) / peak;
      });
    };
    summary->mfu = utilisation(false);
    if (utilisation(true) > *summary->mfu) summary->hfu = utilisation(true);
  }
  summary->communication_seconds =
      median([](const Step& step) { return step.communication.busy_seconds; });
  summary->exposed_communication_seconds = median(
      [](const Step& step) { return step.communication.exposed_seconds; });
}

StepRecords::StepRecords(Session* session)
    : session_(*session), memory_before_(ReadProcessMemory().resident) {}

void StepRecords::Begin(double ready_seconds) {
  ready_seconds_ = ready_seconds;
  if (!session_.group->device().is_cuda()) return;
  const std::string why = FindPeak();
  if (!why.empty()) session_.Note(absl::StrCat("no MFU: ", why));
}

std::string StepRecords::FindPeak() {
  ProcessGroup& group = *session_.group;
  const c10::ScalarType compute = session_.parts.policy().compute;
  const std::string name = TheGpuTools()->name(group.device().index());
  const GpuSpecs* const gpu = FindGpuSpecs(name);
  const std::vector<double> peaks = FromAllRanks(
      group, gpu == nullptr
                 ? 0.0
                 : PeakFlops(*gpu, compute, session_.config.train().tf32()));
  if (session_.parts.objective->unit() != kTokenUnit) {
    // GPUs compute rows of the data's full length.
    row_length_ = session_.parts.train_data->max_sequence_length();
    if (row_length_ == 0) {
      return absl::StrCat("the run counts ", session_.parts.objective->unit(),
                          ", whose lengths aren't known");
    }
  }
  const ActivationCheckpointing checkpointing =
      CheckpointingOf(session_.config.train(), *session_.parts.model);
  flops_ = FlopsOf(
      *session_.parts.model,
      [&checkpointing](int unit) {
        // The first unit reads ids, and isn't recomputed.
        return unit > 0 && checkpointing.Covers(unit);
      },
      RecomputesMlp());
  if (!flops_.unknown.empty()) {
    return absl::StrCat("the model's FLOPs aren't known: ", flops_.unknown);
  }
  if (gpu == nullptr) {
    return absl::StrCat("the peak of \"", name, "\" isn't known");
  }
  if (*std::min_element(peaks.begin(), peaks.end()) == 0.0) {
    return absl::StrCat("not all GPUs' peaks in ", c10::toString(compute),
                        " are known");
  }
  peak_ = std::accumulate(peaks.begin(), peaks.end(), 0.0);
  return "";
}

void StepRecords::Record(const StepInFlight& step,
                         absl::optional<double> spike) {
  const StepSums& sums = step.sums;
  const TrainState& state = session_.state;
  // With deferred sums, a step overlaps the start of the next.
  const double now = MonotonicSeconds();
  const double seconds = now - std::max(step.start, recorded_);
  recorded_ = now;
  // On average: a row's square isn't known here.
  const double length =
      row_length_ > 0
          ? static_cast<double>(row_length_)
          : sums.tokens / static_cast<double>(std::max<int64_t>(
                              session_.job.batch.global_batch_size, 1));
  const double tokens = row_length_ > 0 ? sums.tokens * length : sums.tokens;
  const double flops = flops_.Of(tokens, length);
  medians_.Add({seconds, sums.tokens, step.communication, flops,
                flops_.Recomputed(tokens, length)});
  TaggedNumbers tagged = SumMetrics(step);
  if (session_.reporter == nullptr) return;
  StepMetrics metrics;
  metrics.step = state.step;
  metrics.loss = sums.count > 0 ? sums.loss_sum / sums.count : 0.0;
  metrics.grad_norm = step.outcome.grad_norm;
  metrics.lr = step.lr;
  metrics.tokens = state.tokens;
  metrics.trained_tokens = state.trained_tokens;
  metrics.padding = PaddingShare(sums.tokens, sums.padding);
  metrics.step_seconds = seconds;
  metrics.tokens_per_second = sums.tokens / std::max(seconds, 1e-9);
  metrics.bytes_sent = step.communication.bytes_sent;
  metrics.communication_seconds = step.communication.busy_seconds;
  metrics.exposed_seconds = step.communication.exposed_seconds;
  if (peak_ > 0.0) metrics.mfu = flops / std::max(seconds, 1e-9) / peak_;
  metrics.gpu_memory = step.memory;
  metrics.skipped = step.outcome.skipped;
  metrics.spike = spike;
  if (session_.scaler.enabled()) metrics.loss_scale = session_.scaler.scale();
  metrics.tagged = std::move(tagged);
  if (step.witness_failures > 0) {
    metrics.tagged.emplace_back("witness_failures",
                                static_cast<double>(step.witness_failures));
  }
  session_.reporter->Step(metrics);
}

TaggedNumbers StepRecords::SumMetrics(const StepInFlight& issued) {
  const int64_t step = session_.state.step;
  std::vector<double> sums = issued.summed_metrics;
  if ((!issued.metrics.defined() && sums.empty()) ||
      !(Due(LogEvery(session_.config.train()), step) ||
        step == session_.max_steps)) {
    return {};
  }
  const MetricSums metric_sums(StepMetricTags(session_.parts));
  const int ranks = session_.group->size();
  if (sums.empty()) {
    const at::Tensor host =
        metric_sums.ForRanks(issued.metrics, session_.group->rank(), ranks)
            .to(at::kCPU)
            .contiguous();
    sums.assign(host.const_data_ptr<double>(),
                host.const_data_ptr<double>() + host.numel());
    session_.group->AllReduceHost(absl::MakeSpan(sums));
  }
  return metric_sums.Numbers(sums, ranks);
}

RunSummary StepRecords::Summary() {
  RunSummary summary = session_.Progress();
  summary.ready_seconds = ready_seconds_;
  summary.train_files = FilesOf({session_.parts.train_data.get()});
  summary.eval_files = FilesOf(session_.parts.evaluated());
  medians_.Summarize(peak_, &summary);
  AddMemory(&summary);
  return summary;
}

void StepRecords::AddMemory(RunSummary* summary) {
  ProcessGroup& group = *session_.group;
  const MemoryPlan& plan = session_.job.memory;
  const bool gpu = group.device().is_cuda();
  const int64_t host = ReadProcessMemory().peak;
  const MemoryByCategory mine = TrackedMemory().at_peak;
  GpuMemory on_gpu = gpu ? ReadGpuMemory(group.device()) : GpuMemory();
  on_gpu.peak_allocated = std::max(on_gpu.peak_allocated, gpu_peak_);
  const int64_t held = gpu ? on_gpu.peak_allocated : Total(mine);
  const auto gather = [&group](int64_t bytes) {
    return AllGatherHost(group, std::vector<int64_t>{bytes});
  };
  summary->peak_memory_bytes = gather(gpu ? held : host);
  summary->memory_growth_bytes = gather(host - memory_before_);
  if (gpu) {
    const auto largest = [&gather](int64_t bytes) {
      const std::vector<int64_t> all = gather(bytes);
      return *std::max_element(all.begin(), all.end());
    };
    summary->gpu_memory = {largest(on_gpu.allocated), largest(on_gpu.reserved),
                           largest(on_gpu.peak_allocated),
                           largest(on_gpu.peak_reserved)};
  } else {
    summary->planned_process_bytes = plan.process;
  }

  const std::vector<int64_t> totals = gather(held);
  const size_t most =
      std::max_element(totals.begin(), totals.end()) - totals.begin();
  for (int i = 0; i < kMemoryCategories; ++i) {
    const auto category = static_cast<MemoryCategory>(i);
    CategoryBytes bytes;
    bytes.category = MemoryCategoryName(category);
    if (plan.Knows(category)) bytes.predicted = plan.at_peak[i];
    // Categories are only counted in host memory.
    const int64_t measured = gather(mine[i])[most];
    if (!gpu) bytes.measured = measured;
    summary->memory.push_back(std::move(bytes));
  }
  CategoryBytes total;
  total.category = "total";
  if (plan.activations_known) total.predicted = Total(plan.at_peak);
  total.measured = totals[most];
  summary->memory.push_back(std::move(total));
}

}  // namespace capstan
