// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_DATASETS_CHAT_MIXTURE_H_
#define CAPSTAN_DATASETS_CHAT_MIXTURE_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace capstan {
namespace chat {

// Several sources as one sequence of samples: which of them sample i is, is a
// pure function of i. Without weights the sources come one after the other,
// each of their samples once. With weights they come in a random order, each
// source by its share: as few samples in all as it takes for every sample of
// every source to come at least once. A source that repeats has all of its
// samples before any comes again.
class Mixture {
 public:
  struct Draw {
    size_t source;
    int64_t sample;
  };

  // sizes: samples of each source, some greater than 0. weights: none, or one
  // greater than 0 a source.
  static absl::StatusOr<Mixture> Create(absl::Span<const int64_t> sizes,
                                        absl::Span<const double> weights,
                                        uint64_t seed);

  int64_t size() const { return ends_.back(); }
  Draw At(int64_t index) const;  // in [0, size())

 private:
  Mixture() = default;

  bool weighted_ = false;
  uint64_t order_key_ = 0;
  std::vector<int64_t> sizes_;
  std::vector<int64_t> ends_;  // of each source's draws, one behind the other
  std::vector<uint64_t> keys_;
};

}  // namespace chat
}  // namespace capstan

#endif  // CAPSTAN_DATASETS_CHAT_MIXTURE_H_
