// SPDX-License-Identifier: Apache-2.0
#include "trainer/session/run_uploader.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <memory>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/files.h"
#include "base/status.h"
#include "trainer/checkpoint/checkpoint_folders.h"
#include "trainer/checkpoint/manifest.h"

namespace capstan {
namespace {

namespace fs = std::filesystem;

constexpr char kCheckpoints[] = "checkpoints";
constexpr char kFinal[] = "final";
// The model card, which is of this run's end.
constexpr char kFinalMarker[] = "README.md";

// Files of `folder`, without hidden ones and what is below `without`; paths
// relative to it.
absl::StatusOr<std::vector<std::string>> FilesIn(
    const std::string& folder, const std::set<std::string>& without = {}) {
  std::vector<std::string> files;
  std::error_code error;
  for (fs::recursive_directory_iterator at(folder, error), end;
       !error && at != end; at.increment(error)) {
    const std::string name = at->path().filename().string();
    std::error_code none;
    if (absl::StartsWith(name, ".") ||
        (at.depth() == 0 && without.count(name) != 0)) {
      at.disable_recursion_pending();
    } else if (fs::is_regular_file(at->path(), none)) {
      files.push_back(at->path().lexically_relative(folder).string());
    }
  }
  if (error) {
    return absl::ErrnoToStatus(error.value(),
                               absl::StrCat(folder, " can't be listed"));
  }
  return files;
}

// What a folder with that marker consists of, without the marker: what its
// manifest lists, else what is in it. -1: of any size.
absl::StatusOr<std::map<std::string, int64_t>> ContentOf(
    const std::string& folder, const std::string& marker,
    const std::string& marker_bytes) {
  std::map<std::string, int64_t> files;
  if (marker == kManifestFile) {
    CAPSTAN_ASSIGN_OR_RETURN(
        const Manifest manifest,
        ManifestFromJson(marker_bytes, absl::StrCat(folder, "/", marker)));
    for (const auto& [name, checksum] : manifest.texts) files[name] = -1;
    for (const ManifestFile& file : manifest.files) {
      files[file.name] = file.bytes;
    }
    return files;
  }
  CAPSTAN_ASSIGN_OR_RETURN(const std::vector<std::string> names,
                           FilesIn(folder));
  for (const std::string& name : names) files[name] = -1;
  files.erase(marker);
  return files;
}

absl::StatusOr<std::shared_ptr<const MappedFile>> Map(const std::string& path) {
  MapOptions options;
  options.in_order = true;
  options.may_be_empty = true;
  return MappedFile::Open(path, options);
}

// Of a file of lines that is being written the whole ones.
absl::string_view WholeLines(const std::string& path, absl::string_view bytes) {
  return absl::EndsWith(path, ".jsonl") ? bytes.substr(0, bytes.rfind('\n') + 1)
                                        : bytes;
}

using Mapped = std::map<std::string, std::shared_ptr<const MappedFile>>;

absl::Status OpenAll(const std::string& folder, const std::string& marker,
                     const std::string& marker_bytes, Mapped* files) {
  CAPSTAN_ASSIGN_OR_RETURN(const auto content,
                           ContentOf(folder, marker, marker_bytes));
  for (const auto& [name, bytes] : content) {
    const std::string path = absl::StrCat(folder, "/", name);
    auto mapped = Map(path);
    if (absl::IsNotFound(mapped.status())) {
      return DamagedError(path, "it isn't there");
    }
    CAPSTAN_ASSIGN_OR_RETURN(const std::shared_ptr<const MappedFile> file,
                             std::move(mapped));
    const auto size = static_cast<int64_t>(file->bytes().size());
    if (bytes >= 0 && size != bytes) {
      return DamagedError(
          path, absl::StrCat("it has ", size, " bytes, and its manifest says ",
                             bytes));
    }
    files->emplace(name, file);
  }
  return absl::OkStatus();
}

std::string NameOf(const StoredCheckpoint& checkpoint) {
  return absl::StrCat(kCheckpoints, "/",
                      fs::path(checkpoint.path).filename().string());
}

}  // namespace

RunUploader::RunUploader(const Storage& storage, std::string folder,
                         Options options)
    : storage_(storage),
      folder_(std::move(folder)),
      options_(std::move(options)) {}

absl::StatusOr<RunUploader::Seen> RunUploader::Look(const std::string& path) {
  struct stat info;
  if (stat(path.c_str(), &info) != 0) {
    return absl::ErrnoToStatus(errno, path);
  }
  return Seen{info.st_size,
              int64_t{info.st_mtim.tv_sec} * 1000000000 + info.st_mtim.tv_nsec};
}

absl::Status RunUploader::CheckOwner() {
  if (!options_.owns) {
    CAPSTAN_RETURN_IF_ERROR(storage_.Write(kOwnerFile, options_.owner));
    options_.owns = true;
    return absl::OkStatus();
  }
  const absl::StatusOr<StoredObject> object = storage_.Stat(kOwnerFile);
  if (!object.ok() && !absl::IsNotFound(object.status())) {
    return object.status();
  }
  std::string owner;
  if (object.ok()) {
    owner.resize(static_cast<size_t>(object->size));
    CAPSTAN_RETURN_IF_ERROR(storage_.Read(*object, 0, object->size, &owner[0]));
  }
  if (owner == options_.owner) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "another run", owner.empty() ? "" : absl::StrCat(" (", owner, ")"),
      " has taken ", storage_.address().text(),
      ", so that this one uploads nothing more: give each an address of its "
      "own"));
}

absl::Status RunUploader::Release() {
  CAPSTAN_RETURN_IF_ERROR(CheckOwner());
  return storage_.Delete(kOwnerFile);
}

bool RunUploader::Hurry(const std::string& local) const {
  if (options_.ended == nullptr || !options_.ended()) return false;
  const std::vector<StoredCheckpoint> all = WholeCheckpoints(folder_);
  return !all.empty() && all.front().path != local &&
         whole_.count(NameOf(all.front())) == 0;
}

absl::Status RunUploader::Pass() {
  CAPSTAN_RETURN_IF_ERROR(CheckOwner());
  std::set<std::string> local;
  absl::Status damaged;  // which keeps nothing else from going up
  for (const StoredCheckpoint& checkpoint : WholeCheckpoints(folder_)) {
    local.insert(NameOf(checkpoint));
    const absl::Status status =
        UploadWhole(checkpoint.path, NameOf(checkpoint), kManifestFile);
    if (!status.ok() && !absl::IsDataLoss(status)) return status;
    damaged.Update(status);
    if (Hurry(checkpoint.path)) return damaged;  // the next pass goes on
  }
  CAPSTAN_RETURN_IF_ERROR(UploadFiles());
  CAPSTAN_RETURN_IF_ERROR(
      UploadWhole(absl::StrCat(folder_, "/", kFinal), kFinal, kFinalMarker));
  if (pruned_ != local) CAPSTAN_RETURN_IF_ERROR(Prune(local));
  return damaged;
}

absl::Status RunUploader::UploadFiles() {
  CAPSTAN_RETURN_IF_ERROR(CheckOwner());
  CAPSTAN_ASSIGN_OR_RETURN(const std::vector<std::string> paths,
                           FilesIn(folder_, {kCheckpoints, kFinal}));
  for (const std::string& path : paths) {
    const std::string local = absl::StrCat(folder_, "/", path);
    const absl::StatusOr<Seen> now = Look(local);
    const auto before = seen_.find(path);
    if (!now.ok() || (before != seen_.end() && before->second == *now)) {
      continue;
    }
    const auto file = Map(local);
    if (!file.ok()) continue;  // it has been removed, or is seen again
    CAPSTAN_RETURN_IF_ERROR(
        storage_.Write(path, WholeLines(path, (*file)->bytes())));
    if ((*file)->Check().ok()) seen_[path] = *now;
  }
  return absl::OkStatus();
}

absl::StatusOr<RunUploader::Sizes> RunUploader::There(
    const std::string& name) const {
  CAPSTAN_ASSIGN_OR_RETURN(const std::vector<StoredObject> objects,
                           storage_.List(name));
  Sizes sizes;
  for (const StoredObject& object : objects) {
    sizes[object.path.substr(name.size() + 1)] = object.size;
  }
  return sizes;
}

absl::Status RunUploader::UploadWhole(const std::string& local,
                                      const std::string& name,
                                      const std::string& marker) {
  const absl::StatusOr<std::string> bytes =
      ReadWholeFile(absl::StrCat(local, "/", marker));
  if (!bytes.ok()) return absl::OkStatus();  // not there, or removed since
  const auto known = whole_.find(name);
  if (known != whole_.end() && known->second == *bytes) return absl::OkStatus();
  CAPSTAN_ASSIGN_OR_RETURN(const Sizes there, There(name));
  const auto theirs = there.find(marker);
  if (theirs != there.end() &&
      theirs->second == static_cast<int64_t>(bytes->size())) {
    std::string stored(bytes->size(), '\0');
    CAPSTAN_RETURN_IF_ERROR(
        storage_.Read({absl::StrCat(name, "/", marker), theirs->second, ""}, 0,
                      theirs->second, &stored[0]));
    if (stored == *bytes) {
      whole_[name] = stored;
      return absl::OkStatus();
    }
  }
  // Until the new one is whole there is none: the two would mix.
  if (theirs != there.end()) {
    CAPSTAN_RETURN_IF_ERROR(CheckOwner());
    CAPSTAN_RETURN_IF_ERROR(storage_.Delete(absl::StrCat(name, "/", marker)));
  }
  return UploadMarked(local, name, marker, *bytes);
}

absl::Status RunUploader::UploadMarked(const std::string& local,
                                       const std::string& name,
                                       const std::string& marker,
                                       const std::string& marker_bytes) {
  // All are opened first: the run may remove them before they are uploaded.
  Mapped files;
  const absl::Status opened = OpenAll(local, marker, marker_bytes, &files);
  // Replaced or removed in between, it is seen anew, or no more.
  const absl::StatusOr<std::string> now =
      ReadWholeFile(absl::StrCat(local, "/", marker));
  if (!now.ok() || *now != marker_bytes) return absl::OkStatus();
  CAPSTAN_RETURN_IF_ERROR(opened);
  const std::string begun = absl::StrCat(name, "\n", marker_bytes);
  if (std::exchange(begun_, begun) != begun) sent_.clear();
  for (const auto& [path, file] : files) {
    if (sent_.count(path) != 0) continue;
    if (Hurry(local)) return absl::OkStatus();
    // Uploads take long, and another run's files of this step have these names.
    CAPSTAN_RETURN_IF_ERROR(CheckOwner());
    CAPSTAN_RETURN_IF_ERROR(
        storage_.Write(absl::StrCat(name, "/", path), file->bytes()));
    CAPSTAN_RETURN_IF_ERROR(file->Check());
    sent_.insert(path);
  }
  CAPSTAN_RETURN_IF_ERROR(UploadFiles());
  CAPSTAN_ASSIGN_OR_RETURN(const Sizes there, There(name));
  for (const auto& [path, file] : files) {
    const auto found = there.find(path);
    if (found == there.end() ||
        found->second != static_cast<int64_t>(file->bytes().size())) {
      sent_.erase(path);
      return absl::UnavailableError(absl::StrCat(
          storage_.address().text(), "/", name, "/", path,
          " isn't there as it was written: does another run write to the "
          "same address?"));
    }
  }
  CAPSTAN_RETURN_IF_ERROR(CheckOwner());
  CAPSTAN_RETURN_IF_ERROR(
      storage_.Write(absl::StrCat(name, "/", marker), marker_bytes));
  for (const auto& [path, size] : there) {
    if (path == marker || files.count(path) != 0) continue;
    CAPSTAN_RETURN_IF_ERROR(storage_.Delete(absl::StrCat(name, "/", path)));
  }
  whole_[name] = marker_bytes;
  pruned_.reset();
  return absl::OkStatus();
}

absl::Status RunUploader::RemoveFolder(const std::string& name,
                                       const Sizes& there,
                                       const std::string& marker) {
  // First, so that what is left isn't taken for a whole one.
  if (there.count(marker) != 0) {
    CAPSTAN_RETURN_IF_ERROR(storage_.Delete(absl::StrCat(name, "/", marker)));
  }
  for (const auto& [path, size] : there) {
    if (path == marker) continue;
    CAPSTAN_RETURN_IF_ERROR(storage_.Delete(absl::StrCat(name, "/", path)));
  }
  whole_.erase(name);
  return storage_.DeleteFolder(name);
}

absl::Status RunUploader::Prune(const std::set<std::string>& local) {
  CAPSTAN_RETURN_IF_ERROR(CheckOwner());
  CAPSTAN_ASSIGN_OR_RETURN(const Sizes all, There(kCheckpoints));
  std::map<std::string, Sizes> folders;  // ascending by step
  for (const auto& [path, size] : all) {
    const size_t slash = path.find('/');
    if (slash == std::string::npos) continue;
    folders[absl::StrCat(kCheckpoints, "/", path.substr(0, slash))]
           [path.substr(slash + 1)] = size;
  }
  std::vector<std::string> others;  // whole, and no longer here
  size_t whole = 0;
  for (const auto& [name, there] : folders) {
    if (there.count(kManifestFile) != 0) {
      ++whole;
      if (local.count(name) == 0) others.push_back(name);
    } else if (local.count(name) == 0) {
      CAPSTAN_RETURN_IF_ERROR(RemoveFolder(name, there, kManifestFile));
    }
  }
  const size_t most = std::max<size_t>(local.size(), options_.keep);
  for (const std::string& name : others) {
    if (whole-- <= most) break;
    CAPSTAN_RETURN_IF_ERROR(
        RemoveFolder(name, folders.at(name), kManifestFile));
  }
  pruned_ = local;
  return absl::OkStatus();
}

}  // namespace capstan
