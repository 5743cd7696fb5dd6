// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_PLUGINS_SDK_BEAM_SEARCHER_H_
#define CAPSTAN_PLUGINS_SDK_BEAM_SEARCHER_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "plugins/sdk/objective.h"

namespace capstan {

// When a search may end before its texts reach the greatest length.
enum class BeamsEnd {
  kUnlikelyToImprove,  // by the score at the present length
  kOnceFull,           // as soon as there are as many texts as beams
  kCannotImprove,      // by the score at the greatest length
};

struct BeamSettings {
  int64_t beams = 1;
  // A text's score is its log-probability / length ^ length_penalty.
  double length_penalty = 1.0;
  BeamsEnd end = BeamsEnd::kUnlikelyToImprove;
};

struct Beam {
  std::vector<int64_t> text;  // prompt included
  double score;
};

// An Objective also derives from this if it can search for likely texts instead
// of sampling one; found by dynamic_cast.
class BeamSearcher {
 public:
  virtual ~BeamSearcher();

  // Returns the BeamSettings::beams best texts that begin with `prompt` (at
  // least one token), the best first. Ignores the options that only matter for
  // random draws (temperature, top_k, top_p, min_p, seed) and doesn't call
  // on_token. UNIMPLEMENTED if the model's cache is no BatchedCache.
  virtual absl::StatusOr<std::vector<Beam>> SearchBeams(
      Model& model, const std::vector<int64_t>& prompt,
      const SampleOptions& options, const BeamSettings& settings,
      UnitRunner& runner) = 0;
};

}  // namespace capstan

#endif  // CAPSTAN_PLUGINS_SDK_BEAM_SEARCHER_H_
