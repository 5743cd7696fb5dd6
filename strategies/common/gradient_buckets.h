// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_STRATEGIES_COMMON_GRADIENT_BUCKETS_H_
#define CAPSTAN_STRATEGIES_COMMON_GRADIENT_BUCKETS_H_

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/types/optional.h"
#include "kernels/context/gradient_sink.h"
#include "kernels/context/wide_gradient_sink.h"
#include "plugins/sdk/plan.h"
#include "strategies/common/flat_layout.h"

namespace capstan {

// Collects the gradients of parameters in flat buckets, and reports when a
// bucket is complete.
//
// Buckets are slices of one buffer of the caller's, or else separate buffers,
// allocated when their first gradient arrives and returned by Take. The first
// micro-step overwrites a bucket, so it needn't be zeroed. A gradient that
// autograd leaves in a parameter's .grad is copied or added to its slot and
// dropped at once.
//
// Backward may also write to the slot itself (GradientSink): Open returns an
// alias of the slot, which autograd passes to .grad without a copy. If sums are
// wider than gradients (float32 sums of bfloat16), OpenWide returns the slot,
// and autograd passes nothing: the node that would have accumulated .grad says
// when all uses of a graph have written.
//
// A parameter used several times gets its gradients one by one (activation
// checkpointing) or summed by autograd (uses in one graph). Two aliases of one
// slot must not be summed, so there is at most one between Open and the
// gradient's arrival. A gradient that arrives elsewhere in the meantime is a
// sum that includes the slot's value, and replaces it, if autograd has released
// the alias; otherwise it is a separate gradient, and is added.
class GradientBuckets final : public GradientSink, public WideGradientSink {
 public:
  // Called for buckets 0, 1, 2, .. in order on all ranks, on the autograd
  // thread during backward or by Finish: once all gradients of the bucket have
  // arrived, and the previous call has returned.
  using OnReady = std::function<void(int bucket)>;

  struct Options {
    at::ScalarType dtype = at::kFloat;  // of the sums
    at::Tensor flat;   // [layout.numel] of dtype, or undefined; outlives this
    OnReady on_ready;  // may be null
    // If set, its backward writes to these buckets (Model::BindGradients)
    // during the lifetime of this; outlives this.
    Model* model = nullptr;
  };

  // parameters: one per spec, indexed by layout.ranges[].parameter.
  GradientBuckets(const std::vector<ParameterSpec>& specs,
                  const FlatLayout& layout, std::vector<Bucket> buckets,
                  const std::vector<at::Tensor>& parameters, Options options);
  ~GradientBuckets() override;

  GradientBuckets(const GradientBuckets&) = delete;
  GradientBuckets& operator=(const GradientBuckets&) = delete;

  const std::vector<Bucket>& buckets() const { return buckets_; }

  // Begins a micro-step. `first` drops existing gradients; `last` makes this
  // micro-step's gradients complete the buckets.
  void Begin(bool first, bool last);

  // For HeldGradients, whose comments say what they do.
  void Fix();
  void Hold() { held_ = true; }
  const at::Tensor& flat() const { return flat_; }
  std::string State() const;
  void SetState(const std::string& state);

  // The place is part of the bucket, on the parameters' device; allocates the
  // bucket if needed. After an error between Open and the gradient's arrival
  // the bucket is invalid until the next first micro-step.
  Place Open(int parameter) override;
  Place OpenWide(int parameter) override;

  // The sums of a bucket [its numel], zero where no micro-step has left a
  // gradient and in padding. Without a flat buffer the caller takes ownership;
  // the memory may be that of a gradient made by autograd. A gradient that
  // arrives for the bucket before the next Begin is an error.
  at::Tensor Take(int bucket);

  // After the last micro-step: calls on_ready for the remaining buckets.
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
    // The alias from Open, until the gradient arrives.
    absl::optional<WeakTensor> opened;
    // Whether OpenWide has been called, until its graph is through.
    bool opened_wide = false;
    // Used by several units, each of which may add a gradient, so only the end
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
  void Arrived(Slot& slot);
  // Copies or adds a gradient that is elsewhere to its slot.
  void Put(Slot& slot, const at::Tensor& gradient);
  BucketState& StateOf(const Slot& slot);
  void MakeSums(int bucket);
  // Says where the bucket's gradients are.
  void SetSums(int bucket, const at::Tensor& sums);
  // Whether the slot is the only one of its bucket.
  bool FillsBucket(const Slot& slot) const;
  // Uses such a gradient as the bucket itself.
  bool Adopt(Slot& slot, const at::Tensor& gradient);
  void Report(int bucket);

  std::vector<Bucket> buckets_;
  const Options options_;
  at::Tensor flat_;  // of this micro-step
  bool last_ = false;
  bool held_ = false;  // no bucket is reported before Finish
  std::vector<std::unique_ptr<Slot>> slots_;
  std::vector<Slot*> slot_of_parameter_;  // null: frozen
  std::vector<BucketState> states_;
  int next_bucket_ = 0;  // the first not called for
};

// The size in bytes of each unit's largest gradient in `compute`: all that
// exists at a time if each is taken over as soon as it is made. A model that
// writes gradients to a GradientSink subtracts them from
// UnitMemory::backward_workspace.
std::vector<int64_t> LargestGradients(const Model& model,
                                      at::ScalarType compute);

}  // namespace capstan

#endif  // CAPSTAN_STRATEGIES_COMMON_GRADIENT_BUCKETS_H_
