// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_PLUGINS_SDK_PARAMETERS_H_
#define CAPSTAN_PLUGINS_SDK_PARAMETERS_H_

#include <cstdint>
#include <string>
#include <vector>

namespace capstan {

class Model;

struct ParameterSpec {
  // As in the model's Hugging Face checkpoint; unique.
  std::string name;
  std::vector<int64_t> shape;
  // The unit that owns it. A tied weight is one parameter of the unit that
  // uses it first.
  int unit = 0;
  bool trainable = true;
  // The other units whose forward uses it, ascending, all after `unit`.
  std::vector<int> other_units;
  // Whether backward reads its value in its own unit (an embedding's doesn't).
  bool read_in_backward = true;
  int64_t numel() const;
};

// What a parameter is for.
enum class ParameterRole : int {
  kMatrix = 0,  // a weight [out, in] (or [in, out]) inside the model
  kEmbedding,   // rows that are looked up; also where the head is tied to it
  kHead,        // the matrix of the last unit: maps to what is predicted
  kNorm,        // scales and shifts of normalisations
  kOther,       // biases, single vectors, tensors of more dimensions
};

// A model whose parameters' roles don't follow from their units, shapes and
// names derives from this as well; RoleOf finds it by dynamic_cast.
class ParameterRoles {
 public:
  virtual ~ParameterRoles();
  virtual ParameterRole role(int parameter) const = 0;
};

// What ParameterRoles says, or else: a matrix that its unit's backward doesn't
// read is an embedding, one of the last unit the head; of the rest, what has
// "norm" in its name is a norm's.
ParameterRole RoleOf(const Model& model, int parameter);

}  // namespace capstan

#endif  // CAPSTAN_PLUGINS_SDK_PARAMETERS_H_
