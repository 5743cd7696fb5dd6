// SPDX-License-Identifier: Apache-2.0
//
// A checkpoint's manifest.json: maps elements of parameters to files.
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
#include "trainer/checkpoint/checkpoint.h"

namespace capstan {

// The kind of the master weights; other kinds have the optimizer's names.
inline constexpr char kMasterKind[] = "master";
inline constexpr char kManifestFile[] = "manifest.json";

// Kinds that aren't of parameters: the states of the objective (with the prefix
// of a rank, state_kinds.h) and of the model, as bytes in one range, whose
// "parameter" is the plugin's package. Files have only those that aren't empty.
inline constexpr char kObjectiveKind[] = "plugin.objective";
inline constexpr char kModelKind[] = "plugin.model";
bool IsPluginKind(const std::string& kind);

// Bytes per checksum, counted from the start of a stored range. A rank that
// needs a few elements reads the chunks that contain them. Part of the format.
constexpr int64_t kChunkBytes = 4 << 20;

// Elements [begin, begin + length) of a parameter, row-major, or of its state
// of that kind.
struct ManifestRange {
  std::string kind;
  std::string parameter;
  int64_t begin = 0;
  int64_t length = 0;
  std::vector<uint32_t> crc32c;  // one per chunk of its bytes in the file
  std::string dtype;             // of its elements in the file, "F32"
  // The tensor's name in its file: KIND/PARAMETER/BEGIN.
  std::string Key() const;
};

struct ManifestFile {
  std::string name;  // without folder
  int64_t bytes = 0;
  std::vector<ManifestRange> ranges;
};

struct ManifestParameter {
  std::string name;
  std::vector<int64_t> shape;
  bool trainable = true;  // if false, no file holds any of it
};

// A kind of optimizer state, or of the strategy's ("strategy.NAME"), as in
// OptimizerStateSpec.
struct ManifestState {
  std::string name;
  std::string dtype;  // "": as the masters
  int64_t block = 1;
  int64_t per_parameter = 0;
  // Lengths of the state of parameters, by name, for which it isn't as above;
  // 0: there is none.
  std::map<std::string, int64_t> numels;
  int64_t Numel(int64_t parameter_numel) const;
  int64_t NumelOf(const std::string& parameter, int64_t parameter_numel) const;
  bool operator==(const ManifestState& other) const;
};

struct Manifest {
  TrainState train_state;
  int world_size = 1;
  std::string config_text;
  RunIdentity identity;
  std::vector<ManifestState> state;
  std::vector<ManifestParameter> parameters;
  std::vector<ManifestFile> files;
  // The other files, which are the tokenizer's: CRC-32C in hex by name.
  std::map<std::string, std::string> texts;
};

// Converts a TrainState to JSON, and back; returns DATA_LOSS naming `path` if
// the text isn't one.
std::string TrainStateText(const TrainState& state);
absl::StatusOr<TrainState> TrainStateFromText(absl::string_view text,
                                              const std::string& path);

std::string ManifestToJson(const Manifest& manifest);
// Does the inverse, without CheckManifest. Errors name `path`, where `text` is
// from.
absl::StatusOr<Manifest> ManifestFromJson(absl::string_view text,
                                          const std::string& path);
// Reads FOLDER/manifest.json, verifies its checksum and those of its texts, and
// runs CheckManifest; if FOLDER is named step-NNNNNNNN, its step must be that.
// Errors name the file, the field and what to do.
absl::StatusOr<Manifest> ReadManifest(const std::string& folder);

// Checks that the run's numbers are possible, that ranges lie within their
// parameters, files within the folder, and that each element of each trainable
// parameter's master and state is in exactly one file.
absl::Status CheckManifest(const Manifest& manifest);

// Returns a text's checksum for Manifest::texts.
std::string TextChecksum(absl::string_view text);

// Converts one file's part of a manifest, which each rank writes for rank 0, to
// JSON, and back; returns DATA_LOSS naming `path` if the text isn't one.
std::string ManifestFileToJson(const ManifestFile& file);
absl::StatusOr<ManifestFile> ManifestFileFromJson(absl::string_view text,
                                                  const std::string& path);
absl::StatusOr<ManifestFile> ReadManifestFile(const std::string& path);

// Returns DATA_LOSS: "PATH: is damaged: HOW; put an intact copy ..". `path` is
// in a checkpoint's folder.
inline constexpr char kWhatToDo[] = "; put an intact copy in its place";
absl::Status DamagedError(const std::string& path, absl::string_view how);

// Finds the stored ranges that cover a given range. Points into the manifest.
class RangeIndex {
 public:
  struct Piece {
    const ManifestFile* file = nullptr;
    const ManifestRange* range = nullptr;
    int64_t begin = 0;  // offset in the parameter
    int64_t length = 0;
  };

  explicit RangeIndex(const Manifest& manifest);

  // Returns the pieces that cover [begin, begin + length) of a parameter, in
  // order; DATA_LOSS if an element is missing.
  absl::StatusOr<std::vector<Piece>> Cover(const std::string& kind,
                                           const std::string& parameter,
                                           int64_t begin, int64_t length) const;

  // Returns DATA_LOSS unless each element in [0, numel) is stored exactly once.
  absl::Status CheckWhole(const std::string& kind, const std::string& parameter,
                          int64_t numel) const;

 private:
  // The pieces of each (kind, parameter), ascending by begin.
  std::map<std::pair<std::string, std::string>, std::vector<Piece>> pieces_;
};

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_CHECKPOINT_MANIFEST_H_
