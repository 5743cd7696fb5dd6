// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_STRATEGIES_COMMON_GRADIENT_BUCKETS_H_
#define CAPSTAN_STRATEGIES_COMMON_GRADIENT_BUCKETS_H_

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <vector>

#include "plugins/sdk/plan.h"
#include "strategies/common/flat_layout.h"

namespace capstan {

// Collects the gradients of parameters in flat buckets, and says when one is
// complete.
//
// Buckets are slices of one buffer that the caller keeps, or (if that isn't
// given) have a buffer each, made when their first gradient comes, which Take
// gives away. Where a bucket has the parameters' dtype, a parameter's .grad is
// a view into it; where it is wider (float32 sums of bfloat16 gradients), the
// gradient of each micro-step is added to it and dropped. Either way a bucket
// is written, not zeroed and added to, by the first micro-step.
class GradientBuckets {
 public:
  // Called in backward, on the autograd thread, or by Finish, with buckets 0,
  // 1, 2, .. in that order on all ranks, each until it returns, when all its
  // gradients are there and all before it have been called for.
  using OnReady = std::function<void(int bucket)>;

  struct Options {
    at::ScalarType dtype = at::kFloat;  // of the sums
    at::Tensor flat;   // [layout.numel] of dtype, or undefined; outlives this
    OnReady on_ready;  // may be null
  };

  // parameters: one a spec, indexed as layout.ranges[].parameter says.
  GradientBuckets(const std::vector<ParameterSpec>& specs,
                  const FlatLayout& layout, std::vector<Bucket> buckets,
                  const std::vector<at::Tensor>& parameters, Options options);
  ~GradientBuckets();

  GradientBuckets(const GradientBuckets&) = delete;
  GradientBuckets& operator=(const GradientBuckets&) = delete;

  const std::vector<Bucket>& buckets() const { return buckets_; }

  // Before each micro-step; `first` drops the gradients that are there, `last`
  // makes this micro-step's gradients complete the buckets.
  void Begin(bool first, bool last);

  // The sums of a bucket, [its numel], zeros where no micro-step has left a
  // gradient and in its padding. Without a flat buffer they are the caller's
  // from then on, and may be the memory of a gradient that autograd has made.
  // A gradient that comes for the bucket before the next Begin is an error.
  at::Tensor Take(int bucket);

  // After the last micro-step: calls on_ready for the buckets that are left.
  void Finish();

 private:
  struct Slot {
    at::Tensor parameter;
    int64_t offset = 0;  // in its bucket
    int64_t length = 0;
    int bucket = 0;
    at::Tensor view;  // of the bucket, in the parameter's shape
    bool written = false;
    // Used by several units, so it may get a gradient from each: only the end
    // of the micro-step completes it.
    bool tied = false;
  };
  struct BucketState {
    std::vector<Slot*> slots;
    at::Tensor sums;  // undefined until the first gradient
    int pending = 0;  // gradients still to come in the last micro-step
    bool taken = false;
  };
  class Hook;

  void Collect(Slot& slot);
  void Open(int bucket);
  // Makes a gradient that fills its bucket alone the bucket itself.
  bool Adopt(Slot& slot);
  void Report(int bucket);

  std::vector<Bucket> buckets_;
  const Options options_;
  bool last_ = false;
  std::vector<std::unique_ptr<Slot>> slots_;
  std::vector<BucketState> states_;
  int next_bucket_ = 0;  // the first not called for
};

// The bytes of the gradients that autograd makes for each unit in `compute`,
// one a unit, if each is taken over as soon as it is there: the largest.
std::vector<int64_t> LargestGradients(const Model& model,
                                      at::ScalarType compute);

}  // namespace capstan

#endif  // CAPSTAN_STRATEGIES_COMMON_GRADIENT_BUCKETS_H_
