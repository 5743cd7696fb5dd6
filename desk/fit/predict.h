// SPDX-License-Identifier: Apache-2.0
//
// How long a step takes, from what its parts take. Pure functions.
#ifndef CAPSTAN_DESK_FIT_PREDICT_H_
#define CAPSTAN_DESK_FIT_PREDICT_H_

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "desk/fit/machine.h"

namespace capstan::fit {

// What a rank sends in a step, in bytes, as the ring algorithms do.
struct Traffic {
  // By each micro-step, and once in a step.
  double gradients_each = 0.0;
  double gradients_once = 0.0;
  double parameters_each = 0.0;
  double parameters_once = 0.0;
  // Of gradients_once: between replicas of groups of `group` ranks that share a
  // model.
  double to_replicas = 0.0;
  int group = 0;
  // Whether parameters are gathered unit by unit, for forward and backward, and
  // gradients reduced so.
  bool by_unit = false;
  // Whether gradients go to all ranks, which is twice the way (all-reduce).
  bool all_reduce = false;
  int units = 1;
  // Bytes of gradients: of a rank, and what is reduced together if not by unit,
  // the first time and then.
  double gradients = 0.0;
  double first_bucket = 1 << 20;
  double bucket = 25.0 * (1 << 20);

  double Of(int64_t accumulation) const {
    return gradients_once + parameters_once +
           static_cast<double>(accumulation) *
               (gradients_each + parameters_each);
  }
  // Of gradients, in bytes, in the order of backward.
  std::vector<double> Buckets() const;
  // Unit by unit, how often a micro-step gathers: not the last one's again for
  // backward, which begins with it, nor the first one's, an embedding.
  double Gathers() const { return std::max(1, 2 * units - 2); }
  // How many a step has.
  double Collectives(int64_t accumulation) const;
};

// The time of a collective by what it sends.
class Link {
 public:
  // No ranks, no time.
  Link() = default;
  // Between measured sizes linear, but no faster than the largest's rate, since
  // what limits a link lets short bursts pass; beyond it at its rate.
  explicit Link(std::vector<SendTime> times);
  // `latency` seconds and a rate.
  Link(double latency, double bytes_per_second);

  double Seconds(double sent) const;
  bool known() const { return !times_.empty(); }

 private:
  std::vector<SendTime> times_;  // by `sent`
};

// A step of a rank.
struct StepWork {
  double micro_seconds = 0.0;  // forward and backward of a micro-batch
  double forward_share = 1.0 / 3.0;
  int64_t accumulation = 1;
  double fixed_seconds = 0.0;  // of a step, whatever it computes
  double update_seconds = 0.0;
  Traffic traffic;
  Link link;        // of collectives
  Link replicas;    // of what goes to replicas, by
  int at_once = 1;  // ranks of a host that send at the same time
  // Whether collectives run beside computation; on cores that compute they
  // don't.
  bool overlaps = true;
};

// By playing the step: units one after another, collectives in their order on
// the link, each when its data are there; computation waits for parameters that
// aren't there, and, as reductions do in strategies that share gradients out,
// for all but two that are under way.
double StepSeconds(const StepWork& work);

// Steps that were measured with `ranks` of a host; in seconds, what the update
// of an element takes, and what a step takes whatever its micro-steps.
struct Steps {
  const std::vector<Measured>& measured;
  int ranks = 1;
  double element = 0.0;
  double fixed = 0.0;
};

// Steps::fixed, from steps that differ by accumulation alone; without such 0,
// and micro-steps have it all.
double FixedSeconds(const Steps& steps);

// Seconds of an element's update: steps.element, but no more than what of steps
// that differ by accumulation alone doesn't grow with it. Small models' states
// stay in the caches.
double ElementSeconds(const Steps& steps);

// Seconds of a micro-step of `samples` without recomputation: by the two
// nearest sizes that were measured, between which the time of a sample is taken
// to change with the size's logarithm. 0: nothing was measured.
double MicroSeconds(const Steps& steps, int64_t samples);

// Between ranks of a host: what a collective costs, and the rate, from steps
// with few collectives and with many. `otherwise` if none were measured.
Link HostLink(const Steps& steps, const Link& otherwise);

// Tokens of the longest of `count` rows, the mean, if rows have these lengths,
// which are sorted.
double ExpectedLongest(const std::vector<int64_t>& lengths, int64_t count);

// How much longer a micro-step takes with that recomputation: as measured, or
// as the work says.
double RecomputeFactor(const std::vector<Measured>& measured, int ranks,
                       const std::string& checkpointing);

}  // namespace capstan::fit

#endif  // CAPSTAN_DESK_FIT_PREDICT_H_
