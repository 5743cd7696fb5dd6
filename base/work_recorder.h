// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_BASE_WORK_RECORDER_H_
#define CAPSTAN_BASE_WORK_RECORDER_H_

#include <ATen/core/Tensor.h>

namespace capstan {

// Learns what the work of a GPU depends on besides the tensors that it is
// given, in order to repeat the work later without the code that enqueued it
// (trainer/session/micro_step_graph.h). Code that knows such a thing tells the
// current recorder, if there is one. Called on the thread that runs a model's
// forward and on autograd's, one at a time.
class WorkRecorder {
 public:
  virtual ~WorkRecorder();

  // The values of `host`, a CPU tensor, as a tensor on `device`: they may be
  // others each time. Undefined: the caller copies them as usual.
  virtual at::Tensor Values(const at::Tensor& host, at::Device device) = 0;

  // The work is only right for this number (a size or a choice that follows
  // from values on the host).
  virtual void Number(int64_t number) = 0;

  // The work reads `tensor`, whose owner may replace it between micro-steps (a
  // cache): the recorder keeps its memory.
  virtual void Keep(const at::Tensor& tensor) = 0;
};

// Null: nobody records.
WorkRecorder* CurrentWorkRecorder();
void SetWorkRecorder(WorkRecorder* recorder);

// While it exists nobody records: for work that isn't repeated, since its
// result is kept (Keep).
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

// Whether micro-steps of this run are recorded (train.cuda_graphs): what they
// launch should then depend on no more numbers of the host than it must. Set
// before the first one.
bool WorkIsRepeated();
void SetWorkIsRepeated(bool repeated);

}  // namespace capstan

#endif  // CAPSTAN_BASE_WORK_RECORDER_H_
