// SPDX-License-Identifier: Apache-2.0
#include "desk/fit/predict.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

namespace capstan::fit {
namespace {

// Of replicas' gradients, so that the first is complete soon.
constexpr double kFirstBucket = 1 << 20;

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

// Gradients that wait until a bucket is full.
class Buckets {
 public:
  Buckets(double first, double bucket, Line* line)
      : bucket_(bucket), line_(line), next_(first) {}
  void Add(double now, double bytes) {
    waiting_ += bytes;
    while (waiting_ >= next_) {
      line_->Send(now, next_);
      waiting_ -= next_;
      next_ = bucket_;
    }
  }
  void Flush(double now) {
    line_->Send(now, waiting_);
    waiting_ = 0.0;
  }

 private:
  const double bucket_;
  Line* const line_;
  double next_;
  double waiting_ = 0.0;
};

double StepWithoutOverlap(const StepWork& work) {
  const auto accumulation = static_cast<double>(work.accumulation);
  const Traffic& traffic = work.traffic;
  // A collective for each unit, or one for all.
  const auto sent = [&work, &traffic](double bytes, bool parameters) {
    if (bytes <= 0.0) return 0.0;
    const double pieces = traffic.by_unit
                              ? work.units * (parameters ? 2.0 : 1.0)
                              : std::ceil(bytes / work.bucket);
    return pieces * work.link.Seconds(bytes / pieces);
  };
  return accumulation *
             (work.micro_seconds + sent(traffic.gradients_each, false) +
              sent(traffic.parameters_each, true)) +
         sent(traffic.gradients_once - traffic.to_replicas, false) +
         sent(traffic.parameters_once, false) +
         work.replicas.Seconds(traffic.to_replicas) + work.update_seconds;
}

}  // namespace

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
  size_t i = 1;
  while (i + 1 < times_.size() && times_[i].sent < sent) ++i;
  const SendTime& a = times_[i - 1];
  const SendTime& b = times_[i];
  // Beyond the last size at its own rate: the difference of two measured times
  // would be a guess.
  if (sent > b.sent) return b.seconds * sent / b.sent;
  return a.seconds +
         (sent - a.sent) / (b.sent - a.sent) * (b.seconds - a.seconds);
}

double StepSeconds(const StepWork& work) {
  if (!work.overlaps) return StepWithoutOverlap(work);
  const Traffic& traffic = work.traffic;
  const int units = std::max(1, work.units);
  const double forward = work.micro_seconds * work.forward_share / units;
  const double backward =
      work.micro_seconds * (1.0 - work.forward_share) / units;
  const double gather = traffic.parameters_each / 2 / units;
  const double once = traffic.parameters_once / units;
  Line line(work.link);
  Buckets buckets(traffic.all_reduce ? kFirstBucket : work.bucket, work.bucket,
                  &line);
  // The update's parameters arrive while the first forward runs, a unit after
  // the other.
  std::vector<double> there(static_cast<size_t>(units), 0.0);
  if (once > 0.0) {
    const double all =
        traffic.by_unit ? 0.0 : line.Send(0.0, traffic.parameters_once);
    for (int unit = 0; unit < units; ++unit) {
      there[unit] =
          traffic.by_unit ? line.Send(0.0, once) : all * (unit + 1) / units;
    }
  }
  double now = 0.0;
  for (int64_t micro = 0; micro < work.accumulation; ++micro) {
    // One unit ahead.
    double next = line.Send(now, gather);
    for (int unit = 0; unit < units; ++unit) {
      now = std::max({now, next, micro == 0 ? there[unit] : 0.0});
      if (unit + 1 < units) next = line.Send(now, gather);
      now += forward;
    }
    const bool last = micro + 1 == work.accumulation;
    const double gradients =
        (traffic.gradients_each +
         (last ? traffic.gradients_once - traffic.to_replicas : 0.0)) /
        units;
    next = line.Send(now, gather);
    for (int unit = 0; unit < units; ++unit) {
      now = std::max(now, next);
      if (unit + 1 < units) next = line.Send(now, gather);
      now += backward;
      if (traffic.by_unit) {
        line.Send(now, gradients);
      } else {
        buckets.Add(now, gradients);
      }
    }
    buckets.Flush(now);
  }
  now = std::max(now, line.free());
  return now + work.replicas.Seconds(traffic.to_replicas) + work.update_seconds;
}

double MicroSeconds(const std::vector<Measured>& measured, int ranks,
                    int64_t samples, double update) {
  // Seconds of a sample by the samples of a micro-batch, the least of several;
  // of those without recomputation, if there are any.
  std::map<int64_t, double> points;
  const bool plain = std::any_of(
      measured.begin(), measured.end(), [ranks](const Measured& one) {
        return one.hosts == 1 && one.ranks == ranks &&
               one.checkpointing == "NONE";
      });
  for (const Measured& one : measured) {
    if (one.hosts != 1 || one.ranks != ranks ||
        (plain && one.checkpointing != "NONE")) {
      continue;
    }
    const double own =
        std::max(0.1 * one.seconds, one.seconds - one.communication - update) /
        RecomputeFactor(measured, ranks, one.checkpointing);
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
