// SPDX-License-Identifier: Apache-2.0
//
// What a checkpoint's manifest.json says: which elements of which parameter
// lie in which file.
#ifndef CAPSTAN_TRAINER_CHECKPOINT_MANIFEST_H_
#define CAPSTAN_TRAINER_CHECKPOINT_MANIFEST_H_

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "trainer/checkpoint/checkpoint.h"

namespace capstan {

// The kind of the master weights; the other kinds are the optimizer's names.
extern const char kMasterKind[];
extern const char kManifestFile[];

// Elements [begin, begin + length) of a parameter, row-major.
struct ManifestRange {
  std::string kind;
  std::string parameter;
  int64_t begin = 0;
  int64_t length = 0;
  // The tensor's name in its file: KIND/PARAMETER/BEGIN.
  std::string Key() const;
};

struct ManifestFile {
  std::string name;  // no folder
  int64_t bytes = 0;
  uint32_t crc32c = 0;
  std::vector<ManifestRange> ranges;
};

struct ManifestParameter {
  std::string name;
  std::vector<int64_t> shape;
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
// Reads FOLDER/manifest.json; checks that ranges lie within their parameters
// and that files lie in the folder. Errors name the file and the field.
absl::StatusOr<Manifest> ReadManifest(const std::string& folder);

// One file's part of a manifest, which each rank leaves for rank 0.
std::string ManifestFileToJson(const ManifestFile& file);
absl::StatusOr<ManifestFile> ReadManifestFile(const std::string& path);

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

  // Whether each element in [0, numel) is there exactly once.
  absl::Status CheckWhole(const std::string& kind, const std::string& parameter,
                          int64_t numel) const;

 private:
  // By (kind, parameter); ascending by begin.
  std::map<std::pair<std::string, std::string>, std::vector<Piece>> pieces_;
};

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_CHECKPOINT_MANIFEST_H_
