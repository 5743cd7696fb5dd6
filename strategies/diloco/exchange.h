// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_STRATEGIES_DILOCO_EXCHANGE_H_
#define CAPSTAN_STRATEGIES_DILOCO_EXCHANGE_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>

#include "plugins/sdk/process_group.h"
#include "strategies/diloco/diloco.pb.h"

namespace capstan::diloco {

// An exchange is of so many elements at most: 32 MiB of float32.
constexpr int64_t kMostExchanged = int64_t{1} << 23;
// INT8 sends no fewer bytes than FLOAT32 among more replicas than these if it
// overlaps.
constexpr int kMostThatOverlapInBytes = 8;

struct ExchangeOptions {
  Config::Deltas deltas = Config::FLOAT32;
  // Mean() is called later, and has no collectives.
  bool overlaps = false;
};

// The mean over the replicas of shared - own, as the same bits on all ranks of
// `group`. The constructor begins to exchange it. Both throw
// CommunicationError.
class Exchange {
 public:
  // `shared` and `own` are [n] float32 and may change when this returns.
  Exchange(const at::Tensor& shared, const at::Tensor& own,
           const ExchangeOptions& options, ProcessGroup* group);

  // Waits for it, and returns the mean, [n], which the caller may overwrite.
  // Called once.
  at::Tensor Mean();

  // Bytes that a rank sends for `elements` in all, and the memory of an
  // exchange in progress or at its end.
  static int64_t Sent(int64_t elements, const ExchangeOptions& options,
                      int replicas);
  static int64_t Memory(int64_t elements, const ExchangeOptions& options,
                        int replicas);

 private:
  void SendBytes();
  // Throws if a rank's failure has cut the exchange off: `marks` of the ranks
  // whose sum is known.
  void CheckMarks(const at::Tensor& marks) const;
  at::Tensor MeanOfBytes();

  const ExchangeOptions options_;
  ProcessGroup& group_;
  const at::Device home_;  // of what it is made of
  const int64_t count_;
  bool gathers_ = true;
  // This rank's, then the sum; in bytes, this rank's means of a slice.
  at::Tensor value_;
  at::Tensor packed_;
  at::Tensor all_;
  std::unique_ptr<Work> work_;
};

}  // namespace capstan::diloco

#endif  // CAPSTAN_STRATEGIES_DILOCO_EXCHANGE_H_
