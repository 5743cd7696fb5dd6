// SPDX-License-Identifier: Apache-2.0
//
// What masked diffusion hides of a batch, and what that counts in the loss. All
// of it is computed on the host, from a few bytes a token, and depends on each
// row alone: a batch may be cut among micro-batches and ranks in any way.
#ifndef CAPSTAN_PLUGINS_OBJECTIVE_MASKED_DIFFUSION_NOISE_H_
#define CAPSTAN_PLUGINS_OBJECTIVE_MASKED_DIFFUSION_NOISE_H_

#include <cstdint>
#include <vector>

#include "plugins/objective/masked_diffusion/masked_diffusion.pb.h"
#include "plugins/sdk/dataset.h"
#include "plugins/sdk/model.h"

namespace capstan {
namespace masked_diffusion {

// A text: a stretch of a row, within which every token sees every other.
struct Document {
  int64_t begin = 0;  // in the batch's B * T positions
  int64_t end = 0;    // behind the last
  int64_t row = 0;
  int64_t targets = 0;  // tokens that may be hidden
};

// The documents of a batch, in order; they cover it.
struct Layout {
  int64_t batch = 0;   // B
  int64_t length = 0;  // T
  std::vector<Document> documents;
  std::vector<char> is_target;   // B * T
  std::vector<int64_t> samples;  // the rows' "sample_position"
  // Whether rows are one document each; if not, the model has to be told.
  bool whole_rows = true;
};

// Where a batch's random numbers come from.
struct NoiseKey {
  // Training's: one for each run.
  static NoiseKey ForTraining(uint64_t seed);
  // That of all evaluations, of all runs. t runs through the samples evenly (by
  // the golden ratio's multiples), which estimates its mean better than random
  // numbers do.
  static NoiseKey ForEvaluation();

  uint64_t t = 0;
  uint64_t mask = 0;
  uint64_t length = 0;
  bool even_t = false;
};

// Reads "labels", "positions" and "sample_position" (dataset.h); `batch` must
// have the last, and "input_ids". What is behind a row's last label, or behind
// the length that a share `random_length_ratio` of the rows is cut to, becomes
// a document without targets.
Layout LayoutOf(const Batch& batch, const NoiseKey& key,
                double random_length_ratio);

struct Noise {
  std::vector<double> p;     // of each document, the probability of a mask
  std::vector<char> hidden;  // B * T; where it is set, is_target is
};

// p = (1 - eps) t + eps.
Noise DrawNoise(const Layout& layout, const NoiseKey& key, double eps);

// The targets of a batch, in the sense of LossSum::count.
int64_t CountOf(const Layout& layout, const Noise& noise, Config::Loss loss);

// A batch as the model sees it, on the batch's device, and what its logits are
// held against; without dropout's keys.
struct HiddenBatch {
  TokenInput input;
  TokenTargets targets;
};
HiddenBatch Hide(const Batch& batch, const Layout& layout, const Noise& noise,
                 Config::Loss loss, int64_t mask_token);

}  // namespace masked_diffusion
}  // namespace capstan

#endif  // CAPSTAN_PLUGINS_OBJECTIVE_MASKED_DIFFUSION_NOISE_H_
