// SPDX-License-Identifier: Apache-2.0
//
// One rank's checkpoint file: safetensors with per-chunk checksums in the
// manifest, so that any part can be read and verified by itself.
#ifndef CAPSTAN_TRAINER_CHECKPOINT_STATE_FILE_H_
#define CAPSTAN_TRAINER_CHECKPOINT_STATE_FILE_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/files.h"
#include "trainer/checkpoint/manifest.h"

namespace capstan {

// A range with its elements (1-D, contiguous, on any device).
struct StatePiece {
  ManifestRange range;
  at::Tensor elements;
};

// Writes FOLDER/NAME and returns its manifest entry. Host tensors are written
// in place; GPU tensors are copied to the host a chunk at a time.
absl::StatusOr<ManifestFile> WriteStateFile(
    const std::string& folder, const std::string& name,
    const std::vector<StatePiece>& pieces);

// Reads ranges of one file. Uses a chunk of host memory. Errors name file and
// tensor. Not thread-safe.
class StateFile {
 public:
  // A tensor's position in the file.
  struct Place {
    c10::ScalarType dtype;
    int64_t numel;
    int64_t offset;  // of its first byte
    int64_t bytes;
  };

  // Checks length and header. `file` must outlive it.
  static absl::StatusOr<std::unique_ptr<StateFile>> Open(
      const std::string& folder, const ManifestFile& file);

  // Returns a file without header and checksums, a mirror's image (mirror.h),
  // which `read` reads and which holds the elements of `places`, by
  // ManifestRange::Key. `name` is for errors.
  static std::unique_ptr<StateFile> WithoutHeader(
      std::string name,
      std::function<absl::Status(int64_t offset, int64_t bytes, char* out)>
          read,
      std::map<std::string, Place> places);

  // Checks that the header agrees with the manifest on `range`, one of the
  // file's.
  absl::Status Check(const ManifestRange& range) const;

  // Reads all of `range`, which must have passed Check, for its checksums.
  absl::Status Verify(const ManifestRange& range);

  // Fills out (1-D) with elements of the parameter from offset `begin`,
  // contained in `range`, converted to out's dtype and device. Reads only the
  // chunks involved, those that lie in `out` as they are in the file straight
  // into it, and verifies each checksum. After an error `out` may hold
  // anything. `range` must have passed Check.
  absl::Status Read(const ManifestRange& range, int64_t begin,
                    const at::Tensor& out);

  // Closes the file until the next Read.
  void Close();

 private:
  explicit StateFile(std::string path) : path_(std::move(path)) {}
  absl::Status ReadHeader(const ManifestFile& file);
  // The length of chunk `index` of a place in bytes.
  static int64_t ChunkBytes(const Place& place, int64_t index);
  // Reads chunk `index` of a range to `out` and verifies its checksum.
  absl::Status ReadChunk(const ManifestRange& range, const Place& place,
                         int64_t index, char* out);
  // Returns buffer_ with room for so many bytes.
  char* Buffer(int64_t bytes);

  const std::string path_;
  // Set by WithoutHeader.
  std::function<absl::Status(int64_t, int64_t, char*)> read_;
  std::map<std::string, Place> places_;
  std::unique_ptr<InputFile> file_;
  std::vector<char> buffer_;
};

// Checks that the files of the checkpoint in `folder` are there, as long as the
// manifest says and with the headers that it says; with `checksums` reads every
// byte, and compares those, too. DATA_LOSS, naming file and tensor, if one is
// damaged.
absl::Status CheckFiles(const std::string& folder, const Manifest& manifest,
                        bool checksums);

// Reads the manifest of the checkpoint in `folder`, and checks its files with
// checksums. Needs no plugins.
absl::Status VerifyCheckpoint(const std::string& folder);

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_CHECKPOINT_STATE_FILE_H_
