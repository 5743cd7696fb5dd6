// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_PLUGINS_SDK_INFERENCE_WEIGHTS_H_
#define CAPSTAN_PLUGINS_SDK_INFERENCE_WEIGHTS_H_

#include <ATen/core/Tensor.h>

#include <vector>

#include "absl/status/status.h"

namespace capstan {

// The format of matrices in memory during inference. Activations are float32.
enum class WeightForm {
  kStored,  // in the dtype in which a folder has them
  kFloat32,
  kBfloat16,
  kInt8,  // with a scale a row: max |x| / 127
};

// A Model also derives from this if it can compute on a CPU, without gradients,
// with matrices of fewer bits than its activations, or with the memory that its
// files are mapped to; found by dynamic_cast.
class InferenceWeights {
 public:
  virtual ~InferenceWeights();

  // Parameter `index` as a read-only view of the mapped file in the model's
  // folder, in the file's dtype. Valid as long as the model. Undefined if no
  // file has it in a form that BindForInference takes.
  virtual at::Tensor StoredWeight(int index) const = 0;

  // Like Model::Bind, for forwards without gradients on the CPU. `weights` are
  // float32 tensors, results of StoredWeight, or the bytes of packed
  // parameters. Converts matrices to `form`, freeing each before it converts
  // the next.
  virtual absl::Status BindForInference(std::vector<at::Tensor> weights,
                                        WeightForm form) = 0;
};

}  // namespace capstan

#endif  // CAPSTAN_PLUGINS_SDK_INFERENCE_WEIGHTS_H_
