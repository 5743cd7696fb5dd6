// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_PLUGINS_SDK_PARAMETERS_H_
#define CAPSTAN_PLUGINS_SDK_PARAMETERS_H_

#include <cstdint>
#include <string>
#include <vector>

namespace capstan {

struct ParameterSpec {
  std::string name;  // unique; as in the Hugging Face checkpoint
  std::vector<int64_t> shape;
  int unit = 0;  // that owns it; of a tied weight, the first that uses it
  bool trainable = true;
  std::vector<int> other_units;  // whose forward uses it; ascending, > `unit`
  bool read_in_backward = true;  // by its own unit; false for embeddings
  int64_t numel() const;
};

enum class ParameterRole : int {
  kMatrix = 0,  // a weight [out, in] (or [in, out]) inside the model
  kEmbedding,   // rows that are looked up; also where the head is tied to it
  kHead,        // the matrix of the last unit: maps to what is predicted
  kNorm,        // scales and shifts of normalisations
  kOther,       // biases, single vectors, tensors of more dimensions
};

}  // namespace capstan

#endif  // CAPSTAN_PLUGINS_SDK_PARAMETERS_H_
