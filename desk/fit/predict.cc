// SPDX-License-Identifier: Apache-2.0
#include "desk/fit/predict.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <map>
#include <utility>

namespace capstan::fit {
namespace {

// Reductions that may be under way before computation waits (ReduceQueue).
constexpr size_t kReducesUnderWay = 2;
// Of a collective between ranks of a host, if only one kind was measured.
constexpr double kCollectiveSeconds = 30e-6;

// Collectives one after the other on a link.
class Line {
 public:
  explicit Line(const Link& link) : link_(link) {}
  // Starts one at `now` or when the line is free; returns when it is done.
  double Send(double now, double bytes) {
    if (bytes <= 0.0) return now;
    free_ = std::max(free_, now) + link_.Seconds(bytes);
    return free_;
  }
  double free() const { return free_; }

 private:
  const Link& link_;
  double free_ = 0.0;
};

double SecondsOf(const Link& link, double bytes, double pieces) {
  return pieces > 0.0 ? pieces * link.Seconds(bytes / pieces) : 0.0;
}

double StepWithoutOverlap(const StepWork& work) {
  const auto accumulation = static_cast<double>(work.accumulation);
  const Traffic& traffic = work.traffic;
  const auto own = [&work](double bytes, double pieces) {
    return SecondsOf(work.link, bytes, pieces);
  };
  const auto buckets = static_cast<double>(traffic.Buckets().size());
  const double units = traffic.units;
  return work.fixed_seconds + work.update_seconds +
         accumulation *
             (work.micro_seconds + own(traffic.gradients_each, buckets) +
              own(traffic.parameters_each, traffic.Gathers())) +
         own(traffic.gradients_once - traffic.to_replicas, buckets) +
         own(traffic.parameters_once, traffic.by_unit ? units : buckets) +
         SecondsOf(work.replicas, traffic.to_replicas * work.at_once, buckets);
}

// A step whose collectives run beside its computation.
class Player {
 public:
  explicit Player(const StepWork& work)
      : work_(work),
        traffic_(work.traffic),
        units_(std::max(1, work.traffic.units)),
        buckets_(work.traffic.Buckets()),
        line_(work.link),
        replicas_(work.replicas) {}

  double Seconds() {
    GatherOnce();
    for (int64_t micro = 0; micro < work_.accumulation; ++micro) {
      Forward(micro == 0);
      Backward(micro + 1 == work_.accumulation);
    }
    Complete(0);
    return std::max({now_, line_.free(), replicas_.free()}) +
           work_.update_seconds + work_.fixed_seconds;
  }

 private:
  struct Reduction {
    double done = 0.0;
    double to_replicas = 0.0;  // bytes, which are sent then
  };

  // The update's parameters, if by buckets: the last bucket first, as forward
  // needs it. A unit waits for all that have a part of it.
  void GatherOnce() {
    there_.assign(static_cast<size_t>(units_), 0.0);
    if (traffic_.by_unit || traffic_.parameters_once <= 0.0) return;
    double before = 0.0;  // gradients of the buckets so far, a part
    for (auto it = buckets_.rbegin(); it != buckets_.rend(); ++it) {
      const double part = *it / traffic_.gradients;
      const double done = line_.Send(0.0, part * traffic_.parameters_once);
      for (int unit = 0; unit < units_; ++unit) {
        if ((unit + 1.0) / units_ > before + 1e-9) there_[unit] = done;
      }
      before += part;
    }
  }

  void Forward(bool first) {
    const double seconds = work_.micro_seconds * work_.forward_share / units_;
    const double gather =
        traffic_.parameters_each / traffic_.Gathers() +
        (first && traffic_.by_unit ? traffic_.parameters_once / units_ : 0.0);
    // One unit ahead.
    double next = line_.Send(now_, gather);
    for (int unit = 0; unit < units_; ++unit) {
      now_ = std::max({now_, next, first ? there_[unit] : 0.0});
      if (unit + 1 < units_) {
        next = line_.Send(now_, gather);
      } else if (queues()) {
        Complete(0);  // of the micro-step before
      }
      now_ += seconds;
    }
  }

  void Backward(bool last) {
    const double seconds =
        work_.micro_seconds * (1.0 - work_.forward_share) / units_;
    const double gather = traffic_.parameters_each / traffic_.Gathers();
    size_t bucket = 0;
    double filled = 0.0;
    double next = now_;  // the last unit is still there
    for (int unit = 0; unit < units_; ++unit) {
      now_ = std::max(now_, next);
      // The first one's weights aren't needed for its gradients.
      if (unit + 2 < units_) next = line_.Send(now_, gather);
      now_ += seconds;
      filled += traffic_.gradients / units_;
      while (
          bucket < buckets_.size() &&
          (filled * (1.0 + 1e-9) >= buckets_[bucket] || unit + 1 == units_)) {
        Reduce(buckets_[bucket], last);
        filled -= buckets_[bucket++];
      }
    }
  }

  void Reduce(double gradients, bool last) {
    const double part = gradients / traffic_.gradients;
    const double sent =
        part * (traffic_.gradients_each +
                (last ? traffic_.gradients_once - traffic_.to_replicas : 0.0));
    const double to_replicas =
        last ? part * traffic_.to_replicas * work_.at_once : 0.0;
    if (sent <= 0.0 && to_replicas <= 0.0) return;
    if (queues()) Complete(kReducesUnderWay - 1);
    under_way_.push_back({line_.Send(now_, sent), to_replicas});
  }

  // Waits until so many reductions are left.
  void Complete(size_t left) {
    for (; under_way_.size() > left; under_way_.pop_front()) {
      now_ = std::max(now_, under_way_.front().done);
      replicas_.Send(now_, under_way_.front().to_replicas);
    }
  }

  bool queues() const { return !traffic_.all_reduce; }

  const StepWork& work_;
  const Traffic& traffic_;
  const int units_;
  const std::vector<double> buckets_;
  Line line_;
  Line replicas_;
  std::vector<double> there_;  // when each unit's parameters are
  std::deque<Reduction> under_way_;
  double now_ = 0.0;
};

// What a step took besides what it waited for and the update.
double OwnSeconds(const Measured& one, double element) {
  return std::max(0.1 * one.seconds,
                  one.seconds - one.exposed - element * one.updated);
}

bool IsOf(const Steps& steps, const Measured& one) {
  return one.hosts == 1 && one.ranks == steps.ranks;
}

// Steps that differ by accumulation alone, and by that the most.
struct StepPair {
  const Measured* few = nullptr;  // null: there are none
  const Measured* many = nullptr;
  double ratio = 1.0;  // of their micro-steps
};

StepPair WidestPair(const Steps& steps) {
  StepPair widest;
  for (const Measured& many : steps.measured) {
    if (!IsOf(steps, many)) continue;
    for (const Measured& few : steps.measured) {
      Measured same = few;
      same.accumulation = many.accumulation;
      const double ratio = static_cast<double>(many.accumulation) /
                           static_cast<double>(few.accumulation);
      if (ratio > widest.ratio && SameSettings(same, many)) {
        widest = {&few, &many, ratio};
      }
    }
  }
  return widest;
}

}  // namespace

std::vector<double> Traffic::Buckets() const {
  std::vector<double> sizes;
  if (gradients <= 0.0) return sizes;
  if (by_unit) {
    sizes.assign(static_cast<size_t>(std::max(1, units)),
                 gradients / std::max(1, units));
    return sizes;
  }
  double left = gradients;
  while (left > 0.0) {
    const double most = std::max(1.0, sizes.empty() ? first_bucket : bucket);
    sizes.push_back(std::min(left, most));
    left -= sizes.back();
  }
  return sizes;
}

double Traffic::Collectives(int64_t accumulation) const {
  const auto buckets = static_cast<double>(Buckets().size());
  const auto if_any = [](double bytes, double count) {
    return bytes > 0.0 ? count : 0.0;
  };
  return static_cast<double>(accumulation) *
             (if_any(gradients_each, buckets) +
              if_any(parameters_each, Gathers())) +
         if_any(gradients_once - to_replicas, buckets) +
         if_any(to_replicas, buckets) +
         if_any(parameters_once, by_unit ? units : buckets);
}

Link::Link(std::vector<SendTime> times) : times_(std::move(times)) {
  std::sort(
      times_.begin(), times_.end(),
      [](const SendTime& a, const SendTime& b) { return a.sent < b.sent; });
}

Link::Link(double latency, double bytes_per_second)
    : Link(std::vector<SendTime>{{0.0, latency},
                                 {1e9, latency + 1e9 / bytes_per_second}}) {}

double Link::Seconds(double sent) const {
  if (times_.empty() || sent <= 0.0) return 0.0;
  if (times_.size() == 1 || sent <= times_.front().sent) {
    const SendTime& first = times_.front();
    return times_.size() == 1 ? first.seconds * sent / first.sent
                              : first.seconds;
  }
  const SendTime& last = times_.back();
  // Beyond the last size at its own rate: the difference of two measured times
  // would be a guess.
  if (sent > last.sent) return last.seconds * sent / last.sent;
  size_t i = 1;
  while (i + 1 < times_.size() && times_[i].sent < sent) ++i;
  const SendTime& a = times_[i - 1];
  const SendTime& b = times_[i];
  const double latency = times_.front().seconds;
  return std::max(
      a.seconds + (sent - a.sent) / (b.sent - a.sent) * (b.seconds - a.seconds),
      latency + sent / last.sent * std::max(0.0, last.seconds - latency));
}

double StepSeconds(const StepWork& work) {
  return work.overlaps ? Player(work).Seconds() : StepWithoutOverlap(work);
}

double FixedSeconds(const Steps& steps) {
  const StepPair pair = WidestPair(steps);
  if (pair.few == nullptr) return 0.0;
  const double least = OwnSeconds(*pair.few, steps.element);  // a bound
  const double fixed =
      (pair.ratio * least - OwnSeconds(*pair.many, steps.element)) /
      (pair.ratio - 1.0);
  return std::min(std::max(0.0, fixed), 0.9 * least);
}

double ElementSeconds(const Steps& steps) {
  const StepPair pair = WidestPair(steps);
  // Less would make much of noise.
  if (pair.ratio < 2.0 || pair.few->updated <= 0.0) return steps.element;
  const double all = FixedSeconds({steps.measured, steps.ranks});
  return all > 0.0 ? std::min(steps.element, all / pair.few->updated)
                   : steps.element;
}

double MicroSeconds(const Steps& steps, int64_t samples) {
  // Seconds of a sample by the samples of a micro-batch, the least of several;
  // of those without recomputation, if there are any.
  std::map<int64_t, double> points;
  const bool plain =
      std::any_of(steps.measured.begin(), steps.measured.end(),
                  [&steps](const Measured& one) {
                    return IsOf(steps, one) && one.checkpointing == "NONE";
                  });
  for (const Measured& one : steps.measured) {
    if (!IsOf(steps, one) || (plain && one.checkpointing != "NONE")) continue;
    const double all = OwnSeconds(one, steps.element);
    const double own =
        std::max(0.1 * all, all - steps.fixed) /
        RecomputeFactor(steps.measured, steps.ranks, one.checkpointing);
    const double sample = own / static_cast<double>(one.accumulation) /
                          static_cast<double>(one.samples);
    const auto [at, added] = points.emplace(one.samples, sample);
    if (!added) at->second = std::min(at->second, sample);
  }
  if (points.empty()) return 0.0;
  const auto count = static_cast<double>(samples);
  auto above = points.lower_bound(samples);
  if (above == points.end()) return count * std::prev(above)->second;
  if (above == points.begin() || above->first == samples) {
    return count * above->second;
  }
  const auto below = std::prev(above);
  const double part = std::log(count / static_cast<double>(below->first)) /
                      std::log(static_cast<double>(above->first) /
                               static_cast<double>(below->first));
  return count * (below->second + part * (above->second - below->second));
}

Link HostLink(const Steps& steps, const Link& otherwise) {
  // Least squares, relative to the step, of collectives * cost + sent * slope.
  double nn = 0.0, ns = 0.0, ss = 0.0, nt = 0.0, st = 0.0;
  for (const Measured& one : steps.measured) {
    if (!IsOf(steps, one) || one.checkpointing != "NONE" || one.sent <= 0.0 ||
        one.collectives <= 0.0) {
      continue;
    }
    const double seconds = one.seconds - steps.fixed -
                           steps.element * one.updated -
                           static_cast<double>(one.accumulation) *
                               MicroSeconds(steps, one.samples);
    const double weight = 1.0 / one.seconds / one.seconds;
    nn += weight * one.collectives * one.collectives;
    ns += weight * one.collectives * one.sent;
    ss += weight * one.sent * one.sent;
    nt += weight * one.collectives * seconds;
    st += weight * one.sent * seconds;
  }
  if (ss == 0.0) return otherwise;
  const double determinant = nn * ss - ns * ns;
  double cost = kCollectiveSeconds;
  if (determinant > 1e-3 * nn * ss) {
    cost = std::max(0.0, (nt * ss - st * ns) / determinant);
  }
  double slope = (st - cost * ns) / ss;
  if (slope < 0.0) {
    slope = 0.0;
    cost = std::max(0.0, nt / nn);
  }
  return Link({{0.0, cost}, {1e9, cost + 1e9 * slope}});
}

double ExpectedLongest(const std::vector<int64_t>& lengths, int64_t count) {
  const auto rows = static_cast<double>(lengths.size());
  double sum = 0.0;
  double below = 0.0;  // the chance that all are shorter
  for (size_t i = 0; i < lengths.size(); ++i) {
    const double up_to =
        std::pow(static_cast<double>(i + 1) / rows, static_cast<double>(count));
    sum += static_cast<double>(lengths[i]) * (up_to - below);
    below = up_to;
  }
  return sum;
}

double RecomputeFactor(const std::vector<Measured>& measured, int ranks,
                       const std::string& checkpointing) {
  if (checkpointing == "NONE") return 1.0;
  double sum = 0.0;
  int count = 0;
  for (const Measured& one : measured) {
    if (one.ranks != ranks || one.checkpointing != checkpointing) continue;
    for (const Measured& without : measured) {
      if (without.ranks != ranks || without.checkpointing != "NONE" ||
          without.samples != one.samples ||
          without.accumulation != one.accumulation ||
          without.strategy != one.strategy) {
        continue;
      }
      sum += one.seconds / without.seconds;
      ++count;
    }
  }
  if (count > 0) return sum / count;
  // A forward is a third of a step; gate and up are half of a layer's forward.
  if (checkpointing == "EVERY_UNIT") return 4.0 / 3.0;
  // Their inputs are copied to the host and back beside the work.
  if (checkpointing == "EVERY_UNIT offload") return 1.4;
  return 7.0 / 6.0;
}

}  // namespace capstan::fit
