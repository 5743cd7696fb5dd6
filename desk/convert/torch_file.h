// SPDX-License-Identifier: Apache-2.0
//
// Files of torch.save, read as data: tensors in place and plain containers.
#ifndef CAPSTAN_DESK_CONVERT_TORCH_FILE_H_
#define CAPSTAN_DESK_CONVERT_TORCH_FILE_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/optional.h"
#include "desk/convert/pickle.h"
#include "desk/convert/tensor_view.h"
#include "desk/convert/zip_entries.h"

namespace capstan {

// Reads a pickle that names only what files of weights need: PyTorch's types
// and what rebuilds tensors, and classes of data that DeepSpeed and
// torch.distributed.checkpoint save beside them. PERMISSION_DENIED names
// another global, and says what to do.
absl::StatusOr<std::unique_ptr<const Pickle>> ReadTorchPickle(
    absl::string_view bytes);

// The dtype of a global, "torch.bfloat16"; unset if it is none that safetensors
// has.
absl::optional<c10::ScalarType> DtypeOf(const PickleValue& value);

// A list of whole numbers, a torch.Size among others; unset if it's none, or
// longer than any tensor's.
absl::optional<std::vector<int64_t>> SizesOf(const PickleValue& value);

// A file in either of torch.save's formats: a zip archive (torch/serialization.
// py, _save), or the older sequence of pickles and storages (_legacy_save).
class TorchFile {
 public:
  // `bytes` must outlive the file and its tensors. Errors don't name the file.
  static absl::StatusOr<std::unique_ptr<const TorchFile>> Open(
      absl::string_view bytes);

  const PickleValue& root() const { return pickle_->root(); }

  // Whether a value is a tensor, be it one that can't be converted.
  static bool IsTensor(const PickleValue& value);
  // Such a value's tensor; its elements are within its storage, which is read
  // if the file has a checksum of it. UNIMPLEMENTED says why it can't be
  // converted (sparse, quantised, complex), INVALID_ARGUMENT what is wrong with
  // it. Not thread-safe.
  absl::StatusOr<TensorView> Tensor(const PickleValue& value) const;
  // A whole number, be it a tensor's.
  absl::optional<int64_t> Count(const PickleValue& value) const;

 private:
  absl::Status OpenZip(absl::string_view bytes);
  absl::Status OpenLegacy(absl::string_view bytes);
  absl::Status AddLegacyStorages(const PickleValue& keys,
                                 absl::string_view bytes);

  std::unique_ptr<const Pickle> pickle_;
  // By key. Their checksums are compared, and forgotten, at the first use.
  mutable std::map<std::string, ZipEntry> storages_;
};

}  // namespace capstan

#endif  // CAPSTAN_DESK_CONVERT_TORCH_FILE_H_
