// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TRAINER_SESSION_LOSS_SPIKES_H_
#define CAPSTAN_TRAINER_SESSION_LOSS_SPIKES_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "host/config/run_config.pb.h"
#include "trainer/checkpoint/checkpoint.h"

namespace capstan {

// Detects losses far above the previous ones (train.loss_spikes).
//
// It depends only on the reduced losses, so that all ranks agree. Its window of
// losses is in TrainState, so that a resumed run decides like an uninterrupted
// one.
class LossSpikeJudge {
 public:
  explicit LossSpikeJudge(const LossSpikes& config);

  // Returns a FieldError if the config's numbers are invalid.
  static absl::Status Check(const LossSpikes& config);

  // Whether the config asks for anything.
  bool enabled() const { return z_score_ > 0; }
  // Returns the largest mean loss of the next step that isn't a spike. Infinity
  // until the window holds enough losses: a quarter of its length, at least 8.
  double Limit(const TrainState& state) const;
  // Returns how many standard deviations `loss` lies above the window's mean.
  double Score(const TrainState& state, double loss) const;
  // Adds a step's finite mean loss to the window, unless it is a spike. If
  // there are as many spikes in a row as the window needs losses, they are a
  // new level rather than spikes: then clears the window and returns true.
  bool Take(double loss, bool spike, TrainState* state) const;

 private:
  struct Spread {
    double mean = 0.0;
    double deviation = 0.0;
  };
  Spread SpreadOf(const TrainState& state) const;
  int64_t Needed() const;

  const double z_score_;
  const int64_t window_;
};

// A line about a spike at state.step: "step 7: the loss 9.12 is a spike ..".
std::string SpikeText(const LossSpikes& config, const TrainState& state,
                      double loss, double score);

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_SESSION_LOSS_SPIKES_H_
