// SPDX-License-Identifier: Apache-2.0
//
// Time and memory of candidates, by what is known of a machine so far.
#ifndef CAPSTAN_DESK_FIT_ESTIMATE_H_
#define CAPSTAN_DESK_FIT_ESTIMATE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "desk/fit/candidates.h"
#include "desk/fit/machine.h"
#include "desk/fit/predict.h"
#include "trainer/commands/prepare.h"

namespace capstan::fit {

class Estimator {
 public:
  // `prepared` must outlive this.
  Estimator(const Prepared& prepared, const Machine& machine);

  // Whether the time of a micro-step is known without measuring.
  bool knows_compute() const;
  void Add(const Measured& measured);
  // The candidate can't be, as was seen: why is in it.
  void Refuse(const Candidate& candidate);
  const std::vector<Measured>& measured() const { return measured_; }

  // Fills in what is predicted, and whether it fits.
  void Estimate(Candidate* candidate) const;

 private:
  // Of these settings; null: none.
  const Measured* Find(const Candidate& candidate) const;
  void EstimateMemory(const Measured* measured, Candidate* one) const;
  void EstimateTime(const Measured* measured, Candidate* one) const;
  // Seconds of a step as its parts make it; 0: unknown.
  double Predict(const Candidate& one, const std::string& checkpointing) const;
  double MicroStep(const Candidate& one, const std::string& checkpointing,
                   double update) const;
  Link LinkOf(int hosts, int ranks) const;
  // How much longer steps with this strategy took than was predicted.
  double Correction(const Candidate& one) const;

  const Prepared& prepared_;
  const Machine machine_;
  std::vector<Measured> measured_;
  std::vector<Candidate> refused_;
};

// Whether `measured` is a step of the candidate.
bool IsOf(const Measured& measured, const Candidate& candidate);

}  // namespace capstan::fit

#endif  // CAPSTAN_DESK_FIT_ESTIMATE_H_
