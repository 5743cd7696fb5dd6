// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_PLUGINS_SDK_PARAMETERS_H_
#define CAPSTAN_PLUGINS_SDK_PARAMETERS_H_

#include <cstdint>
#include <string>
#include <vector>

namespace capstan {

struct ParameterSpec {
  // Unique; the name in the model's Hugging Face checkpoint.
  std::string name;
  std::vector<int64_t> shape;
  // The unit that owns it; for a tied weight, the unit that uses it first.
  int unit = 0;
  bool trainable = true;
  // Other units whose forward uses it, ascending, all after `unit`.
  std::vector<int> other_units;
  // Whether its own unit's backward reads its value (false for an embedding).
  bool read_in_backward = true;
  int64_t numel() const;
};

// The role of a parameter (Model::role).
enum class ParameterRole : int {
  kMatrix = 0,  // a weight [out, in] (or [in, out]) inside the model
  kEmbedding,   // rows that are looked up; also where the head is tied to it
  kHead,        // the matrix of the last unit: maps to what is predicted
  kNorm,        // scales and shifts of normalisations
  kOther,       // biases, single vectors, tensors of more dimensions
};

}  // namespace capstan

#endif  // CAPSTAN_PLUGINS_SDK_PARAMETERS_H_
