// SPDX-License-Identifier: Apache-2.0
//
// One rank's file of a checkpoint: safetensors, with checksums by chunk in the
// manifest, so that any part can be read and checked alone.
#ifndef CAPSTAN_TRAINER_CHECKPOINT_STATE_FILE_H_
#define CAPSTAN_TRAINER_CHECKPOINT_STATE_FILE_H_

#include <ATen/core/Tensor.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/files.h"
#include "trainer/checkpoint/manifest.h"

namespace capstan {

// A range, and the elements that it stands for (1-D, contiguous, anywhere).
struct StatePiece {
  ManifestRange range;
  at::Tensor elements;
};

// Writes FOLDER/NAME and says what the manifest needs of it. What lies in host
// memory is written from where it is, what lies on a GPU is fetched a chunk at
// a time.
absl::StatusOr<ManifestFile> WriteStateFile(
    const std::string& folder, const std::string& name,
    const std::vector<StatePiece>& pieces);

// Reads ranges of one file. Takes a chunk of host memory. Errors name file and
// tensor. One thread at a time.
class StateFile {
 public:
  // Checks length and header. `file` must outlive it.
  static absl::StatusOr<std::unique_ptr<StateFile>> Open(
      const std::string& folder, const ManifestFile& file);

  // Whether the header has `range`, one of the file's, as the manifest says.
  absl::Status Check(const ManifestRange& range) const;

  // out (1-D) = the elements from `begin` of the parameter on, which lie in
  // `range`, converted to out's dtype and device. Reads only the chunks that
  // hold them; no chunk is copied before its checksum is found right. `range`
  // has passed Check.
  absl::Status Read(const ManifestRange& range, int64_t begin,
                    const at::Tensor& out);

  // Until the next Read.
  void Close();

 private:
  // Where a tensor lies in the file.
  struct Place {
    c10::ScalarType dtype;
    int64_t numel;
    int64_t offset;  // of its first byte
    int64_t bytes;
  };

  explicit StateFile(std::string path) : path_(std::move(path)) {}
  absl::Status ReadHeader(const ManifestFile& file);
  // Chunk `index` of a range into buffer_; how many bytes it has.
  absl::StatusOr<int64_t> ReadChunk(const ManifestRange& range,
                                    const Place& place, int64_t index);

  const std::string path_;
  std::map<std::string, Place> places_;
  std::unique_ptr<InputFile> file_;
  std::vector<char> buffer_;
};

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_CHECKPOINT_STATE_FILE_H_
