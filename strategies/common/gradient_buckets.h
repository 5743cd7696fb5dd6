// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_STRATEGIES_COMMON_GRADIENT_BUCKETS_H_
#define CAPSTAN_STRATEGIES_COMMON_GRADIENT_BUCKETS_H_

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <vector>

#include "strategies/common/flat_layout.h"

namespace capstan {

// Collects the gradients of parameters in one flat buffer, and says when a
// bucket of it is complete.
//
// Where the buffer has the parameters' dtype, a parameter's .grad is a view
// into it; where it is wider (float32 sums of bfloat16 gradients), the
// gradient of each micro-step is added to it and dropped. Either way the
// buffer is written, not zeroed and added to, by the first micro-step.
class GradientBuckets {
 public:
  // Called in backward, on the autograd thread, with buckets 0, 1, 2, .. in
  // that order on all ranks, each once a step, when all its gradients are
  // there and all before it have been called for.
  using OnReady = std::function<void(int bucket)>;

  // parameters: indexed as layout.ranges[].parameter says. flat: 1-D
  // [layout.numel]. All outlive this object.
  GradientBuckets(const FlatLayout& layout, std::vector<Bucket> buckets,
                  const std::vector<at::Tensor>& parameters, at::Tensor flat,
                  OnReady on_ready);
  ~GradientBuckets();

  GradientBuckets(const GradientBuckets&) = delete;
  GradientBuckets& operator=(const GradientBuckets&) = delete;

  const std::vector<Bucket>& buckets() const { return buckets_; }
  at::Tensor BucketView(int bucket) const;

  // Before each micro-step; `first` drops the last step's gradients, `last`
  // makes this micro-step's gradients complete the buckets.
  void Begin(bool first, bool last);

  // After the last micro-step: zeroes what no micro-step has written, and
  // calls on_ready for the buckets that are left.
  void Finish();

 private:
  struct Slot {
    at::Tensor parameter;
    at::Tensor view;  // of flat_, in the parameter's shape
    int bucket = 0;
    bool written = false;
  };
  class Hook;

  void Collect(Slot& slot);
  void Report(int bucket);

  std::vector<Bucket> buckets_;
  at::Tensor flat_;
  OnReady on_ready_;
  bool grad_is_view_ = false;
  bool last_ = false;
  std::vector<std::unique_ptr<Slot>> slots_;
  std::vector<int> pending_;  // a bucket's gradients still to come
  int next_bucket_ = 0;       // the first not called for
};

}  // namespace capstan

#endif  // CAPSTAN_STRATEGIES_COMMON_GRADIENT_BUCKETS_H_
