// SPDX-License-Identifier: Apache-2.0
//
// Since minor version 3.
#ifndef CAPSTAN_PLUGINS_SDK_INFERENCE_WEIGHTS_H_
#define CAPSTAN_PLUGINS_SDK_INFERENCE_WEIGHTS_H_

#include <ATen/core/Tensor.h>

#include <vector>

#include "absl/status/status.h"

namespace capstan {

// How matrices are kept in memory for inference. Activations are float32.
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

  // Parameter `index` of the model's folder in read-only memory, which is the
  // file's, in the file's dtype. Lives as long as the model. Undefined if it
  // isn't in a file, or not in a form that BindForInference takes.
  virtual at::Tensor StoredWeight(int index) const = 0;

  // As Model::Bind, for forwards without gradients on the CPU. `weights` are
  // float32, or what StoredWeight returned, or, of packed parameters, bytes;
  // matrices are brought into `form`, each freed before the next.
  virtual absl::Status BindForInference(std::vector<at::Tensor> weights,
                                        WeightForm form) = 0;
};

}  // namespace capstan

#endif  // CAPSTAN_PLUGINS_SDK_INFERENCE_WEIGHTS_H_
