// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_STRATEGIES_COMMON_GRADIENT_BUCKETS_H_
#define CAPSTAN_STRATEGIES_COMMON_GRADIENT_BUCKETS_H_

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <vector>

#include "absl/types/optional.h"
#include "base/gradient_sink.h"
#include "plugins/sdk/plan.h"
#include "strategies/common/flat_layout.h"

namespace capstan {

// Collects the gradients of parameters in flat buckets, and says when one is
// complete.
//
// Buckets are slices of one buffer that the caller keeps, or (if that isn't
// given) have a buffer each, made when their first gradient comes, which Take
// gives away. A bucket is written, not zeroed and added to, by the first
// micro-step. A gradient that autograd leaves in a parameter's .grad is copied
// or added to its place and dropped at once.
//
// Backward may write there itself (GradientSink): Open gives an alias of the
// place, autograd hands it on to .grad as it is, and nothing is left to do.
// There is no place where sums are wider than gradients (float32 sums of
// bfloat16 ones).
//
// A parameter that is used several times gets its gradients one by one (each
// use has a backward of its own: activation checkpointing) or already added up
// by autograd (uses in one graph). Two aliases of one place must not be added
// up, so between Open and the gradient's arrival there is no second one, and a
// gradient that arrives elsewhere meanwhile tells by the alias what it is:
// autograd has let go of it, so this is the sum with what the place holds, and
// replaces it; or still has it, so this is another one, to be added.
class GradientBuckets final : public GradientSink {
 public:
  // Called in backward, on the autograd thread, or by Finish, with buckets 0,
  // 1, 2, .. in that order on all ranks, each until it returns, when all its
  // gradients are there and all before it have been called for.
  using OnReady = std::function<void(int bucket)>;

  struct Options {
    at::ScalarType dtype = at::kFloat;  // of the sums
    at::Tensor flat;   // [layout.numel] of dtype, or undefined; outlives this
    OnReady on_ready;  // may be null
    // If set, its backward gets these places (Model::BindGradients) as long as
    // this lives; outlives this.
    Model* model = nullptr;
  };

  // parameters: one a spec, indexed as layout.ranges[].parameter says.
  GradientBuckets(const std::vector<ParameterSpec>& specs,
                  const FlatLayout& layout, std::vector<Bucket> buckets,
                  const std::vector<at::Tensor>& parameters, Options options);
  ~GradientBuckets() override;

  GradientBuckets(const GradientBuckets&) = delete;
  GradientBuckets& operator=(const GradientBuckets&) = delete;

  const std::vector<Bucket>& buckets() const { return buckets_; }

  // Before each micro-step; `first` drops the gradients that are there, `last`
  // makes this micro-step's gradients complete the buckets.
  void Begin(bool first, bool last);

  // The place is of the parameters' device; it is part of the bucket, which is
  // made if it isn't there. After an error between this and the gradient's
  // arrival the bucket's values are void until the next first micro-step.
  Place Open(int parameter) override;

  // The sums of a bucket, [its numel], zeros where no micro-step has left a
  // gradient and in its padding. Without a flat buffer they are the caller's
  // from then on, and may be the memory of a gradient that autograd has made.
  // A gradient that comes for the bucket before the next Begin is an error.
  at::Tensor Take(int bucket);

  // After the last micro-step: calls on_ready for the buckets that are left.
  void Finish();

 private:
  using WeakTensor =
      c10::weak_intrusive_ptr<at::TensorImpl, at::UndefinedTensorImpl>;
  struct Slot {
    at::Tensor parameter;
    int64_t offset = 0;  // in its bucket
    int64_t length = 0;
    int bucket = 0;
    at::Tensor view;  // of the bucket, in the parameter's shape
    bool written = false;
    // What Open gave, until the gradient arrives.
    absl::optional<WeakTensor> opened;
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
  // Puts a gradient that isn't there yet into its place.
  void Put(Slot& slot, const at::Tensor& gradient);
  BucketState& StateOf(const Slot& slot);
  void MakeSums(int bucket);
  // Whether the slot's gradient fills its bucket alone.
  bool FillsBucket(const Slot& slot) const;
  // Makes such a gradient the bucket itself.
  bool Adopt(Slot& slot, const at::Tensor& gradient);
  void Report(int bucket);

  std::vector<Bucket> buckets_;
  const Options options_;
  bool last_ = false;
  std::vector<std::unique_ptr<Slot>> slots_;
  std::vector<Slot*> slot_of_parameter_;  // null: frozen
  std::vector<BucketState> states_;
  int next_bucket_ = 0;  // the first not called for
};

// The bytes of the gradients that backward makes for each unit in `compute`,
// one a unit, if each is taken over as soon as it is there: the largest. A
// model that writes them into their places (GradientSink) counts so much less
// in UnitMemory::backward_workspace.
std::vector<int64_t> LargestGradients(const Model& model,
                                      at::ScalarType compute);

}  // namespace capstan

#endif  // CAPSTAN_STRATEGIES_COMMON_GRADIENT_BUCKETS_H_
