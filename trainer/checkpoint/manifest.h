// SPDX-License-Identifier: Apache-2.0
//
// What a checkpoint's manifest.json says: which elements of which parameter
// lie in which file.
#ifndef CAPSTAN_TRAINER_CHECKPOINT_MANIFEST_H_
#define CAPSTAN_TRAINER_CHECKPOINT_MANIFEST_H_

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "trainer/checkpoint/train_state.h"

namespace capstan {

// The kind of the master weights; the other kinds are the optimizer's names.
extern const char kMasterKind[];
extern const char kManifestFile[];

// Bytes that share a checksum: of a stored range, so many at a time from its
// start. A rank that wants a few elements reads the chunks that hold them. Part
// of the format.
constexpr int64_t kChunkBytes = 4 << 20;

// Elements [begin, begin + length) of a parameter, row-major.
struct ManifestRange {
  std::string kind;
  std::string parameter;
  int64_t begin = 0;
  int64_t length = 0;
  std::vector<uint32_t> crc32c;  // one a chunk of its bytes in the file
  // The tensor's name in its file: KIND/PARAMETER/BEGIN.
  std::string Key() const;
};

struct ManifestFile {
  std::string name;  // no folder
  int64_t bytes = 0;
  std::vector<ManifestRange> ranges;
};

struct ManifestParameter {
  std::string name;
  std::vector<int64_t> shape;
  bool trainable = true;  // if not, no file holds any of it
};

struct Manifest {
  TrainState train_state;
  int world_size = 1;
  std::string config_text;
  std::vector<std::string> state_names;
  std::vector<ManifestParameter> parameters;
  std::vector<ManifestFile> files;
};

std::string ManifestToJson(const Manifest& manifest);
// Reads FOLDER/manifest.json, as CheckManifest likes it and with its own
// checksum right. Errors name the file, the field and what to do.
absl::StatusOr<Manifest> ReadManifest(const std::string& folder);

// Whether ranges lie within their parameters, files in the folder, and each
// element of master and state of each trainable parameter in exactly one file.
absl::Status CheckManifest(const Manifest& manifest);

// One file's part of a manifest, which each rank leaves for rank 0.
std::string ManifestFileToJson(const ManifestFile& file);
absl::StatusOr<ManifestFile> ReadManifestFile(const std::string& path);

// DATA_LOSS: "PATH: is damaged: HOW: what to do". `path` lies in the folder of
// a checkpoint.
absl::Status DamagedError(const std::string& path, absl::string_view how);

// Finds the stored ranges that make up any others. Points into the manifest.
class RangeIndex {
 public:
  struct Piece {
    const ManifestFile* file = nullptr;
    const ManifestRange* range = nullptr;
    int64_t begin = 0;  // in the parameter
    int64_t length = 0;
  };

  explicit RangeIndex(const Manifest& manifest);

  // [begin, begin + length) of a parameter, in order; DATA_LOSS if an element
  // is missing.
  absl::StatusOr<std::vector<Piece>> Cover(const std::string& kind,
                                           const std::string& parameter,
                                           int64_t begin, int64_t length) const;

  // DATA_LOSS unless each element in [0, numel) is there exactly once.
  absl::Status CheckWhole(const std::string& kind, const std::string& parameter,
                          int64_t numel) const;

 private:
  // By (kind, parameter); ascending by begin.
  std::map<std::pair<std::string, std::string>, std::vector<Piece>> pieces_;
};

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_CHECKPOINT_MANIFEST_H_
