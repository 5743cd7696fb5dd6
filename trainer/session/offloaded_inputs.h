// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TRAINER_SESSION_OFFLOADED_INPUTS_H_
#define CAPSTAN_TRAINER_SESSION_OFFLOADED_INPUTS_H_

#include <ATen/core/Tensor.h>

#include <memory>
#include <utility>
#include <vector>

#include "base/side_stream.h"

namespace capstan {

// The inputs of recomputed units in host memory, from a unit's forward until
// its backward (train.offload.activations). On a GPU copies run on a stream of
// their own: to the host while the unit computes, and back while the unit after
// it does, so that backward has one input more on the device than the one in
// use. One thread at a time.
class OffloadedInputs {
 public:
  // An input in host memory. OffloadedInputs outlives it.
  class Input {
   public:
    Input(OffloadedInputs* owner, at::Tensor host)
        : owner_(*owner), host_(std::move(host)) {}
    ~Input();
    Input(const Input&) = delete;
    Input& operator=(const Input&) = delete;

    // Returns it on the device, and begins to copy back the one that was added
    // before it. Once.
    at::Tensor Take();

   private:
    friend class OffloadedInputs;
    void Return();

    OffloadedInputs& owner_;
    at::Tensor host_;      // pinned
    at::Tensor returned_;  // on the device, once it is on its way back
  };

  explicit OffloadedInputs(const at::Device& device);

  // Begins to copy the input of a unit that is about to run.
  std::shared_ptr<Input> Add(const at::Tensor& input);
  // Gives up the last input added: a unit runs whose input isn't offloaded.
  void Release();

 private:
  const at::Device device_;
  SideStream copies_;
  std::vector<std::weak_ptr<Input>> inputs_;  // in the order of their units
  at::Tensor leaving_;  // read by the copies until they are joined
};

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_SESSION_OFFLOADED_INPUTS_H_
