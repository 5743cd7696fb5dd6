// SPDX-License-Identifier: Apache-2.0
#include "desk/fit/estimate.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "base/machine.h"
#include "plugins/sdk/model.h"
#include "trainer/memory/memory_plan.h"
#include "trainer/metrics/console.h"
#include "trainer/profile/gpu_specs.h"
#include "trainer/profile/model_flops.h"
#include "trainer/session/micro_batch.h"

namespace capstan::fit {
namespace {

// Bytes that AdamW's update of an element reads and writes (docs/memory.md),
// and what a rank's share of a host's memory carries, in bytes/s.
constexpr double kUpdateBytes = 28.0;
constexpr double kHostBandwidth = 8e9;
// Of a GPU's peaks: products over a whole step (docs/roofline.md's table, bad,
// likely, good), its memory, and its link to others.
constexpr double kLikely = 0.50;
constexpr double kMemoryPart = 0.85;
constexpr double kLinkPart = 0.80;
// The host's part of a unit's forward and backward: launches.
constexpr double kUnitSeconds = 40 * 4e-6;
constexpr double kFewTokens = 256.0;
// Between ranks of a host, without a measurement.
constexpr double kHostLink = 1e9;
constexpr double kHostLatency = 30e-6;
constexpr double kGpuLatency = 15e-6;
// What TCP and frames leave of a link.
constexpr double kOfNetwork = 0.93;
// Gradients that GPUs reduce together, in bytes.
constexpr double kGpuBucket = 160e6;
// Ranges, as parts of what is predicted.
constexpr double kTriedRange = 0.04;
constexpr double kMeasuredRange = 0.10;
constexpr double kOtherHostsRange = 0.15;
constexpr double kFasterPart = 0.70;
constexpr double kSlowerPart = 1.60;
constexpr double kMemoryRange = 0.06;

// The update of a rank's elements; offloaded, by the host, with copies of
// gradients and parameters between it and the GPU.
double UpdateSeconds(const Candidate& one, const GpuSpecs* gpu) {
  if (gpu == nullptr) return kUpdateBytes * one.updated / kHostBandwidth;
  if (!one.optimizer_on_host) {
    return kUpdateBytes * one.updated / (kMemoryPart * gpu->bandwidth);
  }
  const double copied = one.parameters_on_host ? 12.0 : 8.0;  // an element
  return kUpdateBytes * one.updated / kHostBandwidth +
         copied * one.updated / (kLinkPart * gpu->host);
}

// The same but for the micro-batch and how it is accumulated.
bool SameStrategy(const Candidate& a, const Candidate& b) {
  return a.hosts == b.hosts && a.ranks == b.ranks &&
         a.Strategy() == b.Strategy();
}

}  // namespace

bool IsOf(const Measured& measured, const Candidate& candidate) {
  return measured.hosts == candidate.hosts &&
         measured.ranks == candidate.ranks &&
         measured.samples == candidate.choice.micro_batch &&
         measured.accumulation == candidate.accumulation &&
         measured.checkpointing == candidate.Checkpointing() &&
         measured.strategy == candidate.Strategy();
}

Estimator::Estimator(const Prepared& prepared, const Machine& machine)
    : prepared_(prepared), machine_(machine), measured_(machine.measured) {}

bool Estimator::knows_compute() const {
  if (machine_.here) return false;
  return machine_.tflops > 0.0 || !machine_.gpu.empty() || !measured_.empty();
}

void Estimator::Add(const Measured& measured) {
  // Of the same settings all are one.
  for (Measured& known : measured_) {
    if (known.hosts == measured.hosts && known.ranks == measured.ranks &&
        known.samples == measured.samples &&
        known.accumulation == measured.accumulation &&
        known.checkpointing == measured.checkpointing &&
        known.strategy == measured.strategy) {
      known.seconds = std::sqrt(known.seconds * measured.seconds);
      known.low = std::min(known.low, measured.low);
      known.high = std::max(known.high, measured.high);
      known.process = std::max(known.process, measured.process);
      return;
    }
  }
  measured_.push_back(measured);
}

void Estimator::Refuse(const Candidate& candidate) {
  refused_.push_back(candidate);
}

const Measured* Estimator::Find(const Candidate& candidate) const {
  for (const Measured& one : measured_) {
    if (IsOf(one, candidate)) return &one;
  }
  return nullptr;
}

void Estimator::Estimate(Candidate* candidate) const {
  const Measured* const measured = Find(*candidate);
  candidate->refused.clear();
  for (const Candidate& one : refused_) {
    if (SameStrategy(one, *candidate) &&
        one.choice.micro_batch == candidate->choice.micro_batch &&
        one.Checkpointing() == candidate->Checkpointing()) {
      candidate->refused = one.refused;
    }
  }
  EstimateMemory(measured, candidate);
  EstimateTime(measured, candidate);
}

void Estimator::EstimateMemory(const Measured* measured, Candidate* one) const {
  const auto range = [one](double part) {
    const auto bytes = static_cast<double>(one->memory);
    one->memory_low = static_cast<int64_t>(bytes * (1.0 - part));
    one->memory_high = static_cast<int64_t>(bytes * (1.0 + part));
  };
  if (!machine_.gpu.empty()) {
    const GpuRoom room = RoomOfGpu(machine_.gpu_memory, one->all_ranks());
    one->memory = Total(one->plan.at_peak);
    range(kMemoryRange);
    if (one->memory > room.for_tensors() && one->refused.empty()) {
      one->refused = absl::StrCat("needs ", ShortBytes(one->memory), " of the ",
                                  ShortBytes(room.for_tensors()),
                                  " that a GPU has for tensors");
    }
    return;
  }
  if (!one->plan.process.has_value()) return;
  // What processes were larger than planned, of these ranks.
  int64_t shift = 0;
  int64_t shifts = 0;
  for (const Measured& known : measured_) {
    if (known.ranks != one->ranks || known.process == 0 || known.planned == 0) {
      continue;
    }
    if (&known == measured) {
      shift = known.process - known.planned;
      shifts = 1;
      break;
    }
    shift += known.process - known.planned;
    ++shifts;
  }
  one->memory = *one->plan.process + (shifts > 0 ? shift / shifts : int64_t{0});
  range(measured != nullptr ? kMemoryRange / 2 : kMemoryRange);
  const int64_t needed = one->memory * one->ranks;
  if (machine_.memory > 0 && needed > machine_.memory && one->refused.empty()) {
    one->refused = absl::StrCat("needs ", ShortBytes(needed), " of the ",
                                ShortBytes(machine_.memory), " of a host");
  }
}

void Estimator::EstimateTime(const Measured* measured, Candidate* one) const {
  one->tried = measured != nullptr;
  if (measured != nullptr) {
    one->seconds = measured->seconds;
    one->seconds_low =
        std::min(measured->low, one->seconds * (1.0 - kTriedRange));
    one->seconds_high =
        std::max(measured->high, one->seconds * (1.0 + kTriedRange));
    return;
  }
  one->seconds = Predict(*one, one->Checkpointing()) * Correction(*one);
  const bool from_peaks =
      !machine_.gpu.empty() && MicroSeconds(measured_, one->ranks, 1, 0) == 0;
  const double range = machine_.here ? kMeasuredRange : kOtherHostsRange;
  one->seconds_low = one->seconds * (from_peaks ? kFasterPart : 1.0 - range);
  one->seconds_high = one->seconds * (from_peaks ? kSlowerPart : 1.0 + range);
}

double Estimator::Predict(const Candidate& one,
                          const std::string& checkpointing) const {
  const GpuSpecs* const gpu =
      machine_.gpu.empty() ? nullptr : FindGpuSpecs(machine_.gpu);
  StepWork work;
  work.update_seconds = UpdateSeconds(one, gpu);
  work.micro_seconds = MicroStep(one, checkpointing, work.update_seconds);
  work.accumulation = one.accumulation;
  const double recompute = RecomputeFactor({}, 0, checkpointing);
  work.forward_share = 1.0 / 3.0 / recompute;
  work.units = static_cast<int>(prepared_.job.parts.model->units().size());
  work.traffic = one.traffic;
  work.link = LinkOf(one.hosts, one.ranks);
  if (one.traffic.to_replicas > 0.0) {
    work.replicas = work.link;
    work.link = LinkOf(1, one.ranks);
  }
  work.overlaps = gpu != nullptr || one.hosts > 1;
  if (gpu != nullptr) work.bucket = kGpuBucket;
  return StepSeconds(work);
}

double Estimator::MicroStep(const Candidate& one,
                            const std::string& checkpointing,
                            double update) const {
  const double factor = RecomputeFactor(measured_, one.ranks, checkpointing);
  const double measured =
      MicroSeconds(measured_, one.ranks, one.choice.micro_batch, update);
  if (measured > 0.0) return measured * factor;
  const TrainJob& job = prepared_.job;
  const Model& model = *job.parts.model;
  const int64_t length = std::max<int64_t>(1, LongestRow(job));
  const double tokens =
      static_cast<double>(one.choice.micro_batch) * static_cast<double>(length);
  const ModelFlops flops = FlopsOf(model, nullptr);
  const double work = flops.Of(tokens, static_cast<double>(length));
  double rate = machine_.tflops * 1e12;
  double host = 0.0;
  const GpuSpecs* const gpu =
      machine_.gpu.empty() ? nullptr : FindGpuSpecs(machine_.gpu);
  if (gpu != nullptr) {
    if (rate == 0.0) {
      rate = kLikely * PeakFlops(*gpu, job.parts.policy().compute, true);
    }
    host = kUnitSeconds * static_cast<double>(model.units().size());
  }
  if (rate == 0.0 || work == 0.0) return 0.0;
  // Small products don't fill a GPU.
  const double small = gpu == nullptr ? 0.0 : kFewTokens / tokens;
  return std::max(host, work / rate * (1.0 + small)) * factor;
}

Link Estimator::LinkOf(int hosts, int ranks) const {
  const int all = hosts * ranks;
  if (all == 1) return Link();
  const GpuSpecs* const gpu =
      machine_.gpu.empty() ? nullptr : FindGpuSpecs(machine_.gpu);
  if (hosts == 1) {
    if (gpu != nullptr) return Link(kGpuLatency, kLinkPart * gpu->link);
    if (machine_.hosts == 1 && !machine_.sends.empty()) {
      return Link(machine_.sends);
    }
    double sent = 0.0;
    double seconds = 0.0;
    for (const Measured& one : measured_) {
      if (one.ranks != ranks || one.communication <= 0.0) continue;
      sent += one.sent;
      seconds += one.communication;
    }
    return Link(kHostLatency, seconds > 0.0 ? sent / seconds : kHostLink);
  }
  if (!machine_.sends.empty()) return Link(machine_.sends);
  // All ranks of a host share its link. A rank that sends s bytes by the ring
  // algorithms adds s n / (2 (n - 1)) bytes up, of which hosts send
  // 2 (h - 1) / h each.
  const double n = all;
  const double h = hosts;
  const double share = n / (n - 1) * (h - 1) / h;
  double rate = kOfNetwork * machine_.gbit * 1e9 / 8 / share;
  if (gpu != nullptr) rate = std::min(rate, kLinkPart * gpu->link);
  return Link(1e-6 * machine_.latency_us * 2 * (h - 1) + kHostLatency, rate);
}

double Estimator::Correction(const Candidate& one) const {
  // Steps that were measured with the same strategy: those of the same
  // micro-batch, if there are any, since they differ by recomputation alone.
  double near = 0.0;
  double far = 0.0;
  int nears = 0;
  int fars = 0;
  for (const Measured& known : measured_) {
    if (known.hosts != one.hosts || known.ranks != one.ranks ||
        known.strategy != one.Strategy()) {
      continue;
    }
    Candidate other = one;
    other.choice.micro_batch = known.samples;
    other.accumulation = known.accumulation;
    const double predicted = Predict(other, known.checkpointing);
    if (predicted <= 0.0) continue;
    const double factor = std::log(known.seconds / predicted);
    const bool same = known.samples == one.choice.micro_batch &&
                      known.accumulation == one.accumulation;
    (same ? near : far) += factor;
    ++(same ? nears : fars);
  }
  if (nears > 0) return std::exp(near / nears);
  return fars > 0 ? std::exp(far / fars) : 1.0;
}

}  // namespace capstan::fit
