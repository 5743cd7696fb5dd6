// SPDX-License-Identifier: Apache-2.0
//
// How long a step takes, from what its parts take. Pure functions.
#ifndef CAPSTAN_DESK_FIT_PREDICT_H_
#define CAPSTAN_DESK_FIT_PREDICT_H_

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
  // Of gradients_once: between replicas of groups of ranks that share a model.
  double to_replicas = 0.0;
  // Whether parameters are gathered unit by unit, for forward and backward.
  bool by_unit = false;
  // Whether gradients go to all ranks, which is twice the way (all-reduce).
  bool all_reduce = false;

  double Of(int64_t accumulation) const {
    return gradients_once + parameters_once +
           static_cast<double>(accumulation) *
               (gradients_each + parameters_each);
  }
};

// The time of a collective by what it sends.
class Link {
 public:
  // No ranks, no time.
  Link() = default;
  // Between measured sizes linear, beyond the last at its rate.
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
  double update_seconds = 0.0;
  int units = 1;
  Traffic traffic;
  Link link;      // of collectives
  Link replicas;  // of what goes to replicas
  // Whether collectives run beside computation; on cores that compute they
  // don't.
  bool overlaps = true;
  // Of gradients that are reduced together.
  double bucket = 25.0 * (1 << 20);
};

// By playing the step: units one after another, collectives in their order on
// the link, each when its data are there; computation waits for parameters that
// aren't there.
double StepSeconds(const StepWork& work);

// Seconds of a micro-step of `samples` without recomputation, from steps that
// were measured with the same ranks: those of the two nearest sizes, between
// which the time of a sample is taken to change with the size's logarithm.
// `update` is what the update takes. 0: nothing was measured.
double MicroSeconds(const std::vector<Measured>& measured, int ranks,
                    int64_t samples, double update);

// How much longer a micro-step takes with that recomputation: as measured, or
// as the work says.
double RecomputeFactor(const std::vector<Measured>& measured, int ranks,
                       const std::string& checkpointing);

}  // namespace capstan::fit

#endif  // CAPSTAN_DESK_FIT_PREDICT_H_
