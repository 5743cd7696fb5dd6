// SPDX-License-Identifier: Apache-2.0
//
// Matrices in fewer bits, made as they are asked for (kernels/quant has the
// formats).
#ifndef CAPSTAN_PLUGINS_SDK_LIB_PACKED_MATRIX_H_
#define CAPSTAN_PLUGINS_SDK_LIB_PACKED_MATRIX_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "plugins/sdk/model.h"

namespace capstan {

// A matrix's bytes as kernels::Nf4Layout or Fp8Layout lays them out.
// Thread-safe.
class PackedMatrix {
 public:
  virtual ~PackedMatrix();
  virtual Quantize format() const = 0;  // not kFolders
  virtual int64_t bytes() const = 0;
  // Bytes [begin, begin + count).
  virtual absl::Status ReadBytes(int64_t begin, int64_t count,
                                 uint8_t* out) const = 0;
  // Values [begin, begin + count), which the bytes stand for.
  virtual absl::Status ReadValues(int64_t begin, int64_t count,
                                  float* out) const = 0;
};

// Reads values [begin, begin + count) of a matrix, thread-safe.
using ReadMatrix =
    std::function<absl::Status(int64_t begin, int64_t count, float* out)>;

// Quantises `read` [rows, columns] to `format`, not kFolders; it is `name` in
// errors: a value that isn't finite is one. Parts are quantised as they are
// asked for and not kept, but for double-quantised scales: their offset is a
// mean over all, so asking for one reads the whole matrix, and the last
// matrix's are kept (1/64 byte a value).
std::unique_ptr<PackedMatrix> QuantizeMatrix(Quantize format, int64_t rows,
                                             int64_t columns, ReadMatrix read,
                                             std::string name);

}  // namespace capstan

#endif  // CAPSTAN_PLUGINS_SDK_LIB_PACKED_MATRIX_H_
