// SPDX-License-Identifier: Apache-2.0
//
// The masks of a batch in masked diffusion, and their weights in the loss.
// Computed on the host, from a few bytes per token, for each row independently:
// a batch may be split into micro-batches and ranks in any way.
#ifndef CAPSTAN_PLUGINS_LLADA_MASKED_DIFFUSION_NOISE_H_
#define CAPSTAN_PLUGINS_LLADA_MASKED_DIFFUSION_NOISE_H_

#include <cstdint>
#include <vector>

#include "plugins/llada/masked_diffusion/masked_diffusion.pb.h"
#include "plugins/sdk/dataset.h"
#include "plugins/sdk/model.h"

namespace capstan::masked_diffusion {

// A text: a range of a row within which every token sees every other.
struct Document {
  int64_t begin = 0;  // in the batch's B * T positions
  int64_t end = 0;    // past the last
  int64_t row = 0;
  int64_t targets = 0;  // tokens that may be masked
};

// The documents of a batch, in order; they cover it.
struct Layout {
  int64_t batch = 0;   // B
  int64_t length = 0;  // T
  std::vector<Document> documents;
  std::vector<char> is_target;   // B * T
  std::vector<int64_t> samples;  // the rows' "sample_position"
  // Whether each row is one document; if not, the model needs positions.
  bool whole_rows = true;
};

// Uniform in [0, 1), 53 bits; masks are keyed by position and sample.
double Uniform(uint64_t key, uint64_t low, uint64_t high);

// The key of a batch's random numbers.
struct NoiseKey {
  // For training; depends on the run's seed.
  static NoiseKey ForTraining(uint64_t seed);
  // For evaluation, the same in all runs. t covers [0, 1) evenly over the
  // samples (multiples of the golden ratio), which estimates its mean better
  // than random numbers do.
  static NoiseKey ForEvaluation();

  uint64_t t = 0;
  uint64_t mask = 0;
  uint64_t length = 0;
  bool even_t = false;
};

// Reads "labels", "positions" and "sample_position" (dataset.h); `batch` must
// have the last, and "input_ids". Positions after a row's last label, or after
// the length that a share `random_length_ratio` of the rows is cut to, become a
// document without targets.
Layout LayoutOf(const Batch& batch, const NoiseKey& key,
                double random_length_ratio);

struct Noise {
  std::vector<double> p;     // of each document, the masking probability
  std::vector<char> hidden;  // B * T; a subset of is_target
};

// p = (1 - eps) t + eps.
Noise DrawNoise(const Layout& layout, const NoiseKey& key, double eps);

// The number of targets, as in LossSum::count.
int64_t CountOf(const Layout& layout, const Noise& noise, Config::Loss loss);

// A batch as the model sees it, on the batch's device, and its targets, there
// or on the CPU; without dropout's keys.
struct HiddenBatch {
  TokenInput input;
  TokenTargets targets;
};
HiddenBatch Hide(const Batch& batch, const Layout& layout, const Noise& noise,
                 Config::Loss loss, int64_t mask_token,
                 bool host_targets = false);

}  // namespace capstan::masked_diffusion

#endif  // CAPSTAN_PLUGINS_LLADA_MASKED_DIFFUSION_NOISE_H_
