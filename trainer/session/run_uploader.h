// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TRAINER_SESSION_RUN_UPLOADER_H_
#define CAPSTAN_TRAINER_SESSION_RUN_UPLOADER_H_

#include <cstdint>
#include <map>
#include <set>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "host/storage/storage.h"

namespace capstan {

// Uploads what is new in a run's folder, in a process of StoredRun's.
class RunUploader {
 public:
  // `keep`: as in train.keep_checkpoints, never 0.
  RunUploader(const Storage& storage, std::string folder, int keep);

  // Uploads whole checkpoints, the newest first: before its manifest the run's
  // files, and the manifest only once all of its files are there with their
  // sizes; then final/. Removes from the store the checkpoints that
  // `keep` doesn't keep and the folder no longer has, and what killed runs have
  // left. Errors name what isn't there; the next pass goes on with it.
  absl::Status Pass();

 private:
  // A file as it was when it was uploaded.
  struct Seen {
    int64_t bytes = 0;
    int64_t modified = 0;  // nanoseconds
    bool operator==(const Seen& other) const {
      return bytes == other.bytes && modified == other.modified;
    }
  };
  using Sizes = std::map<std::string, int64_t>;  // by name

  static absl::StatusOr<Seen> Look(const std::string& path);
  absl::Status UploadFiles();
  // `local`, a folder in which the file `marker` says that all is there, and
  // differs where any other does, as the folder `name` of the store.
  absl::Status UploadWhole(const std::string& local, const std::string& name,
                           const std::string& marker);
  absl::Status UploadMarked(const std::string& local, const std::string& name,
                            const std::string& marker,
                            const std::string& marker_bytes);
  absl::Status Prune(const std::set<std::string>& local);
  absl::Status RemoveFolder(const std::string& name, const Sizes& there,
                            const std::string& marker);
  absl::StatusOr<Sizes> There(const std::string& name) const;

  const Storage& storage_;
  const std::string folder_;
  const int keep_;
  std::map<std::string, Seen> seen_;          // by path in the folder
  std::map<std::string, std::string> whole_;  // markers by folder
  bool pruned_ = false;
};

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_SESSION_RUN_UPLOADER_H_
