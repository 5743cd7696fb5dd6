// SPDX-License-Identifier: Apache-2.0
#include "trainer/checkpoint/save.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/error_code.h"
#include "base/files.h"
#include "base/lost_peer.h"
#include "base/status.h"
#include "cluster/comm/agree.h"
#include "trainer/checkpoint/checkpoint_folders.h"
#include "trainer/checkpoint/model_files.h"
#include "trainer/checkpoint/snapshot.h"

// After LibTorch's headers, which define the same macros.
#include <glog/logging.h>

namespace capstan {
namespace {

// A rank's part of the manifest, for rank 0.
std::string RankNotePath(const std::string& folder, int rank) {
  return absl::StrFormat("%s/rank-%05d.json", folder, rank);
}

// Whether a retry may succeed after this error.
bool IsTransient(const absl::Status& status) {
  switch (ErrnoOf(status)) {
    case EINTR:
    case EAGAIN:
    case EIO:
    case ESTALE:
      return true;
    default:
      return false;
  }
}

// Adds the files of all ranks' notes.
absl::Status MergeNotes(const std::string& folder, Manifest* manifest) {
  for (int rank = 0; rank < manifest->world_size; ++rank) {
    absl::StatusOr<ManifestFile> file =
        ReadManifestFile(RankNotePath(folder, rank));
    if (absl::IsNotFound(file.status())) {
      return absl::NotFoundError(absl::StrCat(
          "rank ", rank, "'s part isn't in ", folder,
          ": output_dir must be on a file system that all ranks share"));
    }
    CAPSTAN_RETURN_IF_ERROR(file.status());
    manifest->files.push_back(*std::move(file));
  }
  // Catches strategies that omit elements.
  const absl::Status status = CheckManifest(*manifest);
  if (status.ok()) return status;
  return absl::InternalError(
      absl::StrCat("the strategy doesn't give each element to one rank to "
                   "save: ",
                   status.message()));
}

// Writes the tokenizer's files, and adds their checksums.
absl::Status WriteTokenizer(const SaveRequest& request, Manifest* manifest) {
  if (request.tokenizer == nullptr) return absl::OkStatus();
  const std::string temporary = request.temporary();
  CAPSTAN_RETURN_IF_ERROR(
      WithRetries([&] { return request.tokenizer->Save(temporary); }));
  std::error_code error;
  for (std::filesystem::directory_iterator it(temporary, error), end;
       !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename().string();
    if (!IsTokenizerFile(name)) continue;
    CAPSTAN_ASSIGN_OR_RETURN(const std::string text,
                             ReadWholeFile(it->path().string()));
    manifest->texts[name] = TextChecksum(text);
    CAPSTAN_RETURN_IF_ERROR(SyncPath(it->path().string()));
  }
  return error ? WriteError(temporary, error.value()) : absl::OkStatus();
}

absl::Status Publish(const SaveRequest& request, const Manifest& manifest) {
  const std::string temporary = request.temporary();
  for (int rank = 0; rank < manifest.world_size; ++rank) {
    CAPSTAN_RETURN_IF_ERROR(RemoveTree(RankNotePath(temporary, rank)));
  }
  // Files' names must be on disk before the manifest that refers to them.
  CAPSTAN_RETURN_IF_ERROR(SyncPath(temporary));
  const std::string text = ManifestToJson(manifest);
  CAPSTAN_RETURN_IF_ERROR(WithRetries([&] {
    return WriteWholeFile(absl::StrCat(temporary, "/", kManifestFile), text);
  }));
  CAPSTAN_RETURN_IF_ERROR(SyncPath(temporary));
  return ReplaceFolder(temporary, request.folder());
}

}  // namespace

std::string SaveRequest::temporary() const {
  return HiddenSibling(
      folder(),
      attempt == 0 ? "tmp" : absl::StrCat("tmp-", absl::Hex(attempt)));
}

std::string RankFileName(int rank, int world_size) {
  return absl::StrFormat("state-%05d-of-%05d.safetensors", rank, world_size);
}

int64_t BytesOf(const std::vector<StatePiece>& pieces) {
  int64_t bytes = 0;
  for (const StatePiece& piece : pieces) bytes += piece.elements.nbytes();
  return bytes;
}

absl::Status CheckRoom(const std::string& folder, int64_t bytes) {
  struct statvfs info;
  if (statvfs(folder.c_str(), &info) != 0 || info.f_blocks == 0) {
    return absl::OkStatus();
  }
  const double free =
      static_cast<double>(info.f_bavail) * static_cast<double>(info.f_frsize);
  if (free >= static_cast<double>(bytes)) return absl::OkStatus();
  constexpr double kMiB = 1 << 20;
  return WithCode(absl::ResourceExhaustedError(absl::StrFormat(
                      "%s has %.1f MiB free, and a checkpoint needs %.1f MiB: "
                      "make room there, "
                      "lower train.keep_checkpoints or name another output_dir",
                      folder, free / kMiB, static_cast<double>(bytes) / kMiB)),
                  "disk/full");
}

absl::Status WithRetries(const std::function<absl::Status()>& attempt) {
  constexpr int kTries = 4;
  absl::Duration pause = absl::Milliseconds(100);
  for (int i = 1;; ++i) {
    const absl::Status status = attempt();
    if (status.ok() || i == kTries || !IsTransient(status)) return status;
    LOG(WARNING) << status.message() << "; trying again";
    absl::SleepFor(pause);
    pause *= 4;
  }
}

absl::Status BeginSave(const SaveRequest& request, int64_t bytes) {
  const std::string temporary = request.temporary();
  return WithRetries([&]() -> absl::Status {
    const std::string root = request.output_dir + "/checkpoints";
    CAPSTAN_RETURN_IF_ERROR(RemoveTree(temporary));  // an earlier try's
    RemoveLeftovers(request.output_dir);
    CAPSTAN_RETURN_IF_ERROR(MakeFolder(temporary));
    // Also if checkpoints/ was there: whoever made it, a try of this save or a
    // run before, may have ended before its name was on disk.
    CAPSTAN_RETURN_IF_ERROR(SyncPath(request.output_dir));
    // Try all the same: the file system may compress or grow.
    const absl::Status room = CheckRoom(root, bytes);
    if (!room.ok()) LOG(WARNING) << room.message() << "; trying all the same";
    return absl::OkStatus();
  });
}

absl::Status WriteRank(const std::string& temporary, int rank, int world_size,
                       const std::vector<StatePiece>& pieces) {
  const absl::Status status = WithRetries([&] {
    return CatchAll([&]() -> absl::Status {
      CAPSTAN_ASSIGN_OR_RETURN(
          const ManifestFile file,
          WriteStateFile(temporary, RankFileName(rank, world_size), pieces));
      // It must appear complete: others look for it (AllHaveWritten).
      const absl::Status note =
          ReplaceFile(RankNotePath(temporary, rank), ManifestFileToJson(file));
      // Another attempt starts without either file.
      if (!note.ok()) {
        RemoveTree(absl::StrCat(temporary, "/", file.name)).IgnoreError();
      }
      return note;
    });
  });
  if (status.ok() || rank == 0 || PathExists(temporary)) return status;
  return LostPeerError(
      absl::StrCat("rank 0 has given up its save: ", status.message()));
}

void GiveUpSave(const SaveRequest& request) {
  // Renamed first: who still writes finds no folder, rather than one from which
  // its files disappear.
  const std::string trash = HiddenSibling(request.folder(), "trash");
  RemoveTree(trash).IgnoreError();
  const std::string temporary = request.temporary();
  const bool renamed = rename(temporary.c_str(), trash.c_str()) == 0;
  RemoveTree(renamed ? trash : temporary).IgnoreError();
}

bool AllHaveWritten(const std::string& temporary, int world_size) {
  for (int rank = 0; rank < world_size; ++rank) {
    if (!PathExists(RankNotePath(temporary, rank))) return false;
  }
  return true;
}

absl::Status CommitSave(const SaveRequest& request, Manifest manifest) {
  // The folder may be renamed at any time and another run start in its place,
  // whose checkpoints mustn't be removed.
  const int fd = open(request.output_dir.c_str(), O_PATH | O_CLOEXEC);
  const absl::Status status = CatchAll([&]() -> absl::Status {
    CAPSTAN_RETURN_IF_ERROR(MergeNotes(request.temporary(), &manifest));
    CAPSTAN_RETURN_IF_ERROR(WriteTokenizer(request, &manifest));
    return Publish(request, manifest);
  });
  if (status.ok() && fd >= 0) {
    RemoveOldCheckpoints(absl::StrCat("/proc/self/fd/", fd), request.keep,
                         request.train_state.step, request.best_step,
                         request.damaged);
  }
  if (fd >= 0) close(fd);
  return status;
}

}  // namespace capstan
