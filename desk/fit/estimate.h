// SPDX-License-Identifier: Apache-2.0
//
// Time and memory of candidates, by what is known of a machine so far.
#ifndef CAPSTAN_DESK_FIT_ESTIMATE_H_
#define CAPSTAN_DESK_FIT_ESTIMATE_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "desk/fit/candidates.h"
#include "desk/fit/machine.h"
#include "desk/fit/predict.h"
#include "trainer/commands/prepare.h"
#include "trainer/profile/gpu_specs.h"
#include "trainer/session/run_parts.h"

namespace capstan::fit {

class Estimator {
 public:
  // `prepared` must outlive this.
  Estimator(const Prepared& prepared, const Machine& machine);

  // Whether the time of a micro-step is known with so many ranks of a host.
  bool knows_compute(int ranks) const;
  void Add(const Measured& measured);
  // The candidate can't be, as was seen: why is in it.
  void Refuse(const Candidate& candidate);
  const std::vector<Measured>& measured() const { return measured_; }

  // Fills in what is predicted, and whether it fits; seconds are 0 if nothing
  // is known.
  void Estimate(Candidate* candidate) const;

 private:
  // Between ranks of a host, and of a step: by what was measured with so many.
  struct OfRanks {
    double element = 0.0;
    double fixed = 0.0;
    Link link;
  };

  // Makes of_ranks_.
  void Sum();
  Steps StepsOf(int ranks) const;
  // Of these settings; null: none.
  const Measured* Find(const Candidate& candidate) const;
  void EstimateMemory(const Measured* measured, Candidate* one) const;
  void EstimateTime(const Measured* measured, Candidate* one) const;
  // Seconds of a step as its parts make it; 0: unknown.
  double Predict(const Candidate& one, const std::string& checkpointing) const;
  double MicroStep(const Candidate& one,
                   const std::string& checkpointing) const;
  // Tokens of a row, with padding, in micro-batches of the candidate.
  double LengthOf(const Candidate& one) const;
  Link LinkOf(int hosts, int ranks) const;
  // How much longer steps with this strategy took than was predicted.
  double Correction(const Candidate& one) const;

  const Prepared& prepared_;
  const Machine machine_;
  const GpuSpecs* const gpu_;  // null: ranks compute on CPUs
  const std::vector<int64_t> lengths_;
  std::vector<Measured> measured_;
  // What ranks forked from one process share with each other.
  const int64_t shared_pages_;
  std::map<int, OfRanks> of_ranks_;
  std::vector<Candidate> refused_;
};

// In tokens, of rows that are trained on, sorted; empty if they are equally
// long, or not text.
std::vector<int64_t> RowLengths(const TrainJob& job);

}  // namespace capstan::fit

#endif  // CAPSTAN_DESK_FIT_ESTIMATE_H_
