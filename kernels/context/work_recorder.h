// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_KERNELS_CONTEXT_WORK_RECORDER_H_
#define CAPSTAN_KERNELS_CONTEXT_WORK_RECORDER_H_

#include <ATen/core/Tensor.h>

namespace capstan {

// Records what the work of a GPU depends on besides its tensors, in order to
// repeat the work later without the code that enqueued it
// (trainer/session/micro_step_graph.h). Code with such a dependency reports it
// to the current recorder, if there is one. Called on the thread that runs a
// model's forward and on autograd's, one at a time.
class WorkRecorder {
 public:
  virtual ~WorkRecorder();

  // Returns the values of `host`, a CPU tensor, which may differ each time, as
  // a tensor on `device`. If undefined, the caller copies them as usual.
  virtual at::Tensor Values(const at::Tensor& host, at::Device device) = 0;

  // Reports that the work is only valid for this number (a size or a choice
  // that follows from values on the host).
  virtual void Number(int64_t number) = 0;

  // Reports that the work reads `tensor`, which its owner may replace between
  // micro-steps (a cache), so that the recorder keeps its memory.
  virtual void Keep(const at::Tensor& tensor) = 0;
};

// Returns the current recorder, or null.
WorkRecorder* CurrentWorkRecorder();
void SetWorkRecorder(WorkRecorder* recorder);

// Suspends recording during its lifetime, for work that isn't repeated because
// its result is kept (Keep).
class UnrecordedScope {
 public:
  UnrecordedScope() : recorder_(CurrentWorkRecorder()) {
    SetWorkRecorder(nullptr);
  }
  ~UnrecordedScope() { SetWorkRecorder(recorder_); }
  UnrecordedScope(const UnrecordedScope&) = delete;
  UnrecordedScope& operator=(const UnrecordedScope&) = delete;

 private:
  WorkRecorder* const recorder_;
};

// Whether micro-steps of this run are recorded (train.cuda_graphs), so that
// their work should depend on as few numbers of the host as possible. Set
// before the first one.
bool WorkIsRepeated();
void SetWorkIsRepeated(bool repeated);

}  // namespace capstan

#endif  // CAPSTAN_KERNELS_CONTEXT_WORK_RECORDER_H_
