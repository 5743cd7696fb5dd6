// SPDX-License-Identifier: Apache-2.0
//
// How a resumed run notices that a reward's model is another one: by what it
// says of one answer.
#ifndef CAPSTAN_PLUGINS_GRPO_REWARDS_PROBE_H_
#define CAPSTAN_PLUGINS_GRPO_REWARDS_PROBE_H_

#include <map>
#include <string>

#include "absl/types/optional.h"

namespace capstan::grpo {

struct Probe {
  std::string row;  // a digest of the prompt's row, whose answer is "?"
  double score = 0.0;
};

// By a reward's name.
using Probes = std::map<std::string, Probe>;

// A reward, beside RewardFunction, whose CheckRow asks its model.
class Probed {
 public:
  virtual ~Probed() = default;
  // Unset before CheckRow, and if the model scores no such answer.
  virtual absl::optional<Probe> probe() const = 0;
};

// A sentence for each reward that scores the same answer otherwise than before,
// but for rounding; "" if there is none.
std::string WhatScoresOtherwise(const Probes& before, const Probes& now);

}  // namespace capstan::grpo

#endif  // CAPSTAN_PLUGINS_GRPO_REWARDS_PROBE_H_
