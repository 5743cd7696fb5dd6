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
// A small collective between hosts whose cores compute, however fast the link:
// a chain of threads that wake each other (bench/README.md, "Across hosts").
constexpr double kBusyLatency = 650e-6;
// And what such a core sends, receives and sums up by TCP, bytes/s: all-reduces
// of 4 to 64 MiB over 10 Gbit/s, which the link doesn't decide.
constexpr double kBusyLink = 0.7e9;
// What TCP and frames leave of a link.
constexpr double kOfNetwork = 0.93;
// Ranges, as parts of what is predicted.
constexpr double kTriedRange = 0.04;
constexpr double kMeasuredRange = 0.10;
constexpr double kOtherHostsRange = 0.15;
constexpr double kFasterPart = 0.70;
constexpr double kSlowerPart = 1.60;
constexpr double kMemoryRange = 0.06;
// Libraries' code that steps run, of a process.
constexpr int64_t kCodeBytes = int64_t{30} << 20;

// Of the update of an element, whose bytes are in the device's memory.
double ElementSeconds(const GpuSpecs* gpu) {
  return kUpdateBytes /
         (gpu == nullptr ? kHostBandwidth : kMemoryPart * gpu->bandwidth);
}

// The update of a rank's elements, each of `element` seconds; offloaded, by the
// host, with copies of gradients and parameters between it and the GPU.
double UpdateSeconds(const Candidate& one, const GpuSpecs* gpu,
                     double element) {
  if (gpu == nullptr || !one.optimizer_on_host) return element * one.updated;
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

Estimator::Estimator(const Prepared& prepared, const Machine& machine)
    : prepared_(prepared),
      machine_(machine),
      gpu_(machine.gpu.empty() ? nullptr : FindGpuSpecs(machine.gpu)),
      lengths_(RowLengths(prepared.job)),
      measured_(machine.measured),
      shared_pages_(ReadProcessMemory().anonymous + kCodeBytes) {
  // Other devices' steps say nothing of these.
  measured_.erase(std::remove_if(measured_.begin(), measured_.end(),
                                 [&machine](const Measured& one) {
                                   return one.gpu != machine.gpu;
                                 }),
                  measured_.end());
  Sum();
}

std::vector<int64_t> RowLengths(const TrainJob& job) {
  constexpr int64_t kMostRows = 100000;
  const DatasetReader& data = *job.parts.train_data;
  // And what is answered to them.
  const int64_t more = LongestRow(job) - data.max_sequence_length();
  std::vector<int64_t> lengths;
  for (int64_t i = 0; i < std::min(kMostRows, data.size()); ++i) {
    const int64_t length = data.sample_length(i);
    if (length > 0) lengths.push_back(length + more);
  }
  std::sort(lengths.begin(), lengths.end());
  return lengths;
}

Steps Estimator::StepsOf(int ranks) const {
  const auto known = of_ranks_.find(ranks);
  if (known == of_ranks_.end()) return {measured_, ranks, ElementSeconds(gpu_)};
  return {measured_, ranks, known->second.element, known->second.fixed};
}

void Estimator::Sum() {
  of_ranks_.clear();
  for (const Measured& one : measured_) {
    if (of_ranks_.count(one.ranks) > 0) continue;
    Steps steps = StepsOf(one.ranks);
    steps.element = ElementSeconds(steps);
    steps.fixed = FixedSeconds(steps);
    of_ranks_[one.ranks] = {steps.element, steps.fixed,
                            HostLink(steps, Link(kHostLatency, kHostLink))};
  }
}

bool Estimator::knows_compute(int ranks) const {
  if (!machine_.here && (machine_.tflops > 0.0 || gpu_ != nullptr)) return true;
  return MicroSeconds(StepsOf(ranks), 1) > 0.0;
}

void Estimator::Add(const Measured& measured) {
  // Of the same settings all are one.
  for (Measured& known : measured_) {
    if (SameSettings(known, measured)) {
      known.seconds = std::sqrt(known.seconds * measured.seconds);
      known.low = std::min(known.low, measured.low);
      known.high = std::max(known.high, measured.high);
      known.process = std::max(known.process, measured.process);
      known.others = std::max(known.others, measured.others);
      return Sum();
    }
  }
  measured_.push_back(measured);
  Sum();
}

void Estimator::Refuse(const Candidate& candidate) {
  refused_.push_back(candidate);
}

const Measured* Estimator::Find(const Candidate& candidate) const {
  const Measured step = StepOf(candidate);
  for (const Measured& one : measured_) {
    if (SameSettings(one, step)) return &one;
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
      one->refused =
          absl::StrCat("needs ", ShortBytes(one->memory), " of the ",
                       ShortBytes(std::max<int64_t>(0, room.for_tensors())),
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
  // Pages that forked ranks share count once.
  const int64_t needed =
      one->memory * one->ranks -
      std::min(one->memory, shared_pages_) * (one->ranks - 1);
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
  const bool from_peaks = gpu_ != nullptr && machine_.tflops == 0.0 &&
                          MicroSeconds(StepsOf(one->ranks), 1) == 0.0;
  const double range = machine_.here ? kMeasuredRange : kOtherHostsRange;
  one->seconds_low = one->seconds * (from_peaks ? kFasterPart : 1.0 - range);
  one->seconds_high = one->seconds * (from_peaks ? kSlowerPart : 1.0 + range);
}

double Estimator::Predict(const Candidate& one,
                          const std::string& checkpointing) const {
  StepWork work;
  work.update_seconds = UpdateSeconds(one, gpu_, StepsOf(one.ranks).element);
  work.micro_seconds = MicroStep(one, checkpointing);
  if (work.micro_seconds == 0.0) return 0.0;
  work.fixed_seconds = StepsOf(one.ranks).fixed;
  work.accumulation = one.accumulation;
  const double recompute = RecomputeFactor({}, 0, checkpointing);
  work.forward_share = 1.0 / 3.0 / recompute;
  work.traffic = one.traffic;
  work.link = LinkOf(one.hosts, one.ranks);
  if (one.traffic.to_replicas > 0.0) {
    // Each rank of a group has replicas of its own, by the same link.
    work.replicas = LinkOf(one.hosts, 1);
    work.at_once = std::min(one.traffic.group, one.ranks);
    if (one.traffic.group <= one.ranks) work.link = LinkOf(1, one.ranks);
  }
  work.overlaps = gpu_ != nullptr || one.hosts > 1;
  const bool over_hosts = one.hosts > 1 && (one.traffic.to_replicas == 0.0 ||
                                            one.traffic.group > one.ranks);
  if (gpu_ != nullptr || one.hosts == 1) return StepSeconds(work);
  if (over_hosts && !work.traffic.all_reduce) {
    // Sums pass from host to host as a whole (cluster/comm's chain), so a
    // reduce-scatter sends as much as an all-reduce.
    Traffic& traffic = work.traffic;
    traffic.gradients_once += traffic.gradients_once - traffic.to_replicas;
    traffic.gradients_each *= 2;
  }
  // What a link leaves time to hide still takes the cores' time.
  StepWork busy = work;
  busy.overlaps = false;
  busy.replicas = Link(kBusyLatency, kBusyLink);
  if (over_hosts) busy.link = busy.replicas;
  return std::max(StepSeconds(work), StepSeconds(busy));
}

double Estimator::LengthOf(const Candidate& one) const {
  return lengths_.empty() ? static_cast<double>(
                                std::max<int64_t>(1, LongestRow(prepared_.job)))
                          : ExpectedLongest(lengths_, one.choice.micro_batch);
}

double Estimator::MicroStep(const Candidate& one,
                            const std::string& checkpointing) const {
  const double factor = RecomputeFactor(measured_, one.ranks, checkpointing);
  const double measured =
      MicroSeconds(StepsOf(one.ranks), one.choice.micro_batch);
  if (measured > 0.0) return measured * factor;
  const TrainJob& job = prepared_.job;
  const Model& model = *job.parts.model;
  const double length = LengthOf(one);
  const double tokens = static_cast<double>(one.choice.micro_batch) * length;
  // In a deterministic run each rank computes all positions.
  const Train& train = job.loaded.config.train();
  const int sequence =
      train.deterministic() ? 1 : MeshOf(train, one.hosts * one.ranks).sequence;
  const double work = FlopsOf(model, nullptr).Of(tokens, length) / sequence;
  double rate = machine_.tflops * 1e12;
  double host = 0.0;
  if (gpu_ != nullptr) {
    if (rate == 0.0) {
      rate = kLikely * PeakFlops(*gpu_, job.parts.policy().compute, true);
    }
    host = kUnitSeconds * static_cast<double>(model.units().size());
  }
  if (rate == 0.0 || work == 0.0) return 0.0;
  // Small products don't fill a GPU.
  const double small = gpu_ == nullptr ? 0.0 : kFewTokens * sequence / tokens;
  return std::max(host, work / rate * (1.0 + small)) * factor;
}

Link Estimator::LinkOf(int hosts, int ranks) const {
  const int all = hosts * ranks;
  if (all == 1) return Link();
  if (hosts == 1) {
    if (gpu_ != nullptr) return Link(kGpuLatency, kLinkPart * gpu_->link);
    if (machine_.hosts == 1 && !machine_.sends.empty()) {
      return Link(machine_.sends);
    }
    const auto known = of_ranks_.find(ranks);
    return known == of_ranks_.end() ? Link(kHostLatency, kHostLink)
                                    : known->second.link;
  }
  if (!machine_.sends.empty()) return Link(machine_.sends);
  // All ranks of a host share its link. A rank that sends s bytes by the ring
  // algorithms adds s n / (2 (n - 1)) bytes up, of which hosts send
  // 2 (h - 1) / h each; in a chain, without GPUs, those in the midst 2.
  const double n = all;
  const double h = hosts;
  const bool chain = gpu_ == nullptr && hosts > 2;
  const double share = n / (n - 1) * (chain ? 1.0 : (h - 1) / h);
  double rate = kOfNetwork * machine_.gbit * 1e9 / 8 / share;
  if (gpu_ != nullptr) rate = std::min(rate, kLinkPart * gpu_->link);
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
