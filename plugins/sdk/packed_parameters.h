// SPDX-License-Identifier: Apache-2.0
//
// Since minor version 3.
#ifndef CAPSTAN_PLUGINS_SDK_PACKED_PARAMETERS_H_
#define CAPSTAN_PLUGINS_SDK_PACKED_PARAMETERS_H_

#include <cstdint>

#include "absl/status/status.h"

namespace capstan {

class Model;

// A model also derives from this if some of its frozen parameters are packed: a
// strategy holds, shards and gathers their bytes, whose meaning only the model
// knows (4-bit weights, say). Model::Bind then gets a contiguous 1-D uint8
// tensor of PackedBytes(i) bytes, aligned to 64, in place of one in spec.shape
// and the compute dtype. Model::InitialValue gives the values that the bytes
// stand for. Strategies find this by dynamic_cast.
class PackedParameters {
 public:
  virtual ~PackedParameters();

  // 0: parameter `index` isn't packed. Constant from Model::AddLora on; more
  // than 0 only for frozen ones.
  virtual int64_t PackedBytes(int index) const = 0;

  // Writes bytes [begin, begin + count) of a packed parameter to `out`, without
  // ever holding all of its values. Thread-safe.
  virtual absl::Status PackedValue(int index, int64_t begin, int64_t count,
                                   uint8_t* out) const = 0;

  // Writes the values that all its PackedBytes(index) `bytes`, in host memory,
  // stand for: spec.numel() of them. Thread-safe.
  virtual void Unpack(int index, const uint8_t* bytes, float* out) const = 0;
};

// The bytes of parameter `index` if it is packed, else 0.
int64_t PackedBytesOf(const Model& model, int index);

}  // namespace capstan

#endif  // CAPSTAN_PLUGINS_SDK_PACKED_PARAMETERS_H_
