// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TRAINER_SESSION_LOSS_SPIKES_H_
#define CAPSTAN_TRAINER_SESSION_LOSS_SPIKES_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "trainer/checkpoint/checkpoint.h"
#include "trainer/run_config.pb.h"

namespace capstan {

// Tells losses that lie far above those before them: train.loss_spikes.
//
// A function of the reduced losses alone, so that all ranks judge alike. Its
// memory, the window, is in TrainState: a resumed run judges like one that
// wasn't interrupted.
class LossSpikeJudge {
 public:
  explicit LossSpikeJudge(const LossSpikes& config);

  // A FieldError if the config's numbers make no sense.
  static absl::Status Check(const LossSpikes& config);

  // Whether the config asks for anything.
  bool enabled() const { return z_score_ > 0; }
  // The largest mean loss of the next step that isn't a spike. Infinity until
  // the window holds enough losses: a quarter of its length, at least 8.
  double Limit(const TrainState& state) const;
  // How far `loss` lies above the window's mean, in its standard deviations.
  double Score(const TrainState& state, double loss) const;
  // Takes a step's finite mean loss into the window, unless it is a spike. As
  // many spikes in a row as the window needs losses are a new level rather than
  // spikes: then the window begins anew, and this returns true.
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
