// SPDX-License-Identifier: Apache-2.0
//
// Storage as readers know it (base/remote).
#include "base/remote/remote_store.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <iostream>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/confined_child.h"
#include "base/error_code.h"
#include "base/files.h"
#include "base/status.h"
#include "host/storage/cache.h"
#include "host/storage/listing.h"
#include "host/storage/storage.h"

namespace capstan {
namespace {

constexpr uint64_t kMostListing = uint64_t{256} << 20;
constexpr uint64_t kMostMessage = 1 << 20;
constexpr int64_t kPiece = int64_t{8} << 20;
constexpr size_t kThreads = 16;
constexpr char kField = '\x1f';
constexpr char kRecord = '\x1e';

// In the process that talks to the store.
absl::StatusOr<std::string> ListingText(const Address& address) {
  CAPSTAN_ASSIGN_OR_RETURN(const Listing listing, ListAddress(address));
  std::string text = listing.folder.text();
  for (const StoredObject& object : listing.objects) {
    absl::StrAppend(&text, std::string(1, kRecord), object.path,
                    std::string(1, kField), object.size, std::string(1, kField),
                    object.version);
  }
  return text;
}

// A request to the process that reads: a number of bytes, and parts as text.
std::string TextOf(const std::vector<RemotePart>& parts) {
  std::string text;
  for (const RemotePart& part : parts) {
    // What a machine can take at once.
    for (int64_t at = 0; at < part.bytes; at += kPiece) {
      absl::StrAppend(&text, part.name, std::string(1, kField),
                      part.object_bytes, std::string(1, kField),
                      part.offset + at, std::string(1, kField),
                      std::min(kPiece, part.bytes - at), std::string(1, kField),
                      part.file, std::string(1, kRecord));
    }
  }
  return text;
}

std::vector<RemotePart> PartsOf(absl::string_view text) {
  std::vector<RemotePart> parts;
  for (const absl::string_view record :
       absl::StrSplit(text, kRecord, absl::SkipEmpty())) {
    const std::vector<std::string> fields = absl::StrSplit(record, kField);
    RemotePart part;
    if (fields.size() != 5 ||
        !absl::SimpleAtoi(fields[1], &part.object_bytes) ||
        !absl::SimpleAtoi(fields[2], &part.offset) ||
        !absl::SimpleAtoi(fields[3], &part.bytes)) {
      continue;
    }
    part.name = fields[0];
    part.file = fields[4];
    parts.push_back(std::move(part));
  }
  return parts;
}

// What the store calls the version of the object lies beside the copy, so that
// all parts of a copy are of one: an error if it is another now.
absl::Status CheckVersion(const Storage& storage, const RemotePart& part) {
  CAPSTAN_ASSIGN_OR_RETURN(const StoredObject object, storage.Stat(part.name));
  const std::string path = part.file + ".version";
  const absl::StatusOr<std::string> known = ReadWholeFile(path);
  const bool is_known = known.ok() && !known->empty();
  if (object.size != part.object_bytes ||
      (is_known && *known != object.version)) {
    return WithCode(absl::DataLossError(absl::StrCat(
                        storage.address().text(), "/", part.name,
                        " has changed since the run began: put the old one "
                        "back and resume, or begin a new run")),
                    "data/damaged");
  }
  if (!is_known) {
    // Not flushed: it is as good as the copy.
    std::ofstream(path, std::ios::binary) << object.version;
  }
  return absl::OkStatus();
}

absl::Status FetchPart(const Storage& storage, const RemotePart& part) {
  StoredObject object;
  object.path = part.name;
  object.size = part.object_bytes;
  std::string bytes(static_cast<size_t>(part.bytes), '\0');
  CAPSTAN_RETURN_IF_ERROR(
      storage.Read(object, part.offset, part.bytes, &bytes[0]));
  CAPSTAN_RETURN_IF_ERROR(CheckVersion(storage, part));
  const int fd = open(part.file.c_str(), O_WRONLY | O_CLOEXEC);
  if (fd < 0) return WriteError(part.file, errno);
  absl::Status status;
  for (size_t done = 0; done < bytes.size() && status.ok();) {
    const ssize_t wrote = pwrite(fd, bytes.data() + done, bytes.size() - done,
                                 part.offset + static_cast<int64_t>(done));
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote < 0) {
      status = WriteError(part.file, errno);
    } else {
      done += static_cast<size_t>(wrote);
    }
  }
  close(fd);
  return status;
}

void Serve(const Address& folder, const ConfinedChild::Parent& parent) {
  const auto storage = Storage::Open(folder);
  if (storage.ok()) {
    (*storage)->set_note(
        [](const std::string& note) { std::cerr << note << "\n"; });
  }
  int64_t size = 0;
  while (parent.Receive(&size, sizeof(size))) {
    std::string text(static_cast<size_t>(size), '\0');
    if (!parent.Receive(&text[0], text.size())) return;
    absl::Status status = storage.status();
    if (status.ok()) {
      const std::vector<RemotePart> parts = PartsOf(text);
      status = InParallel(parts.size(), kThreads, [&](size_t i) {
        return FetchPart(**storage, parts[i]);
      });
    }
    const bool sent = status.ok() ? parent.Send(absl::string_view("ok"))
                                  : parent.Send(status);
    if (!sent) return;
  }
}

class Reader final : public RemoteReader {
 public:
  explicit Reader(std::unique_ptr<ConfinedChild> child)
      : child_(std::move(child)) {}

  absl::Status Fetch(const std::vector<RemotePart>& parts) override {
    const std::string text = TextOf(parts);
    const auto size = static_cast<int64_t>(text.size());
    CAPSTAN_RETURN_IF_ERROR(
        child_->Send({reinterpret_cast<const char*>(&size), sizeof(size)}));
    CAPSTAN_RETURN_IF_ERROR(child_->Send(text));
    const absl::StatusOr<std::string> answer = child_->Receive(kMostMessage);
    if (!child_->ended()) return answer.status();
    return absl::UnavailableError(absl::StrCat(
        "the process that reads the store ", answer.status().message()));
  }

 private:
  const std::unique_ptr<ConfinedChild> child_;
};

class Store final : public RemoteStore {
 public:
  bool IsAddress(absl::string_view text) const override {
    return capstan::IsAddress(text);
  }

  absl::StatusOr<RemoteFolder> List(const std::string& text) const override {
    CAPSTAN_ASSIGN_OR_RETURN(const Address address, ParseAddress(text));
    CAPSTAN_ASSIGN_OR_RETURN(
        const auto child,
        StartStorageProcess([&](const ConfinedChild::Parent& parent) {
          const absl::StatusOr<std::string> listed = ListingText(address);
          if (listed.ok()) {
            parent.Send(absl::string_view(*listed));
          } else {
            parent.Send(listed.status());
          }
        }));
    const absl::StatusOr<std::string> answer = child->Receive(kMostListing);
    CAPSTAN_RETURN_IF_ERROR(answer.status());
    RemoteFolder folder;
    bool first = true;
    for (const absl::string_view record : absl::StrSplit(*answer, kRecord)) {
      if (first) folder.address = std::string(record);
      const std::vector<std::string> fields = absl::StrSplit(record, kField);
      RemoteObject object;
      if (!first && fields.size() == 3 &&
          absl::SimpleAtoi(fields[1], &object.bytes)) {
        object.name = fields[0];
        object.version = fields[2];
        folder.objects.push_back(std::move(object));
      }
      first = false;
    }
    return folder;
  }

  absl::StatusOr<std::unique_ptr<RemoteReader>> Open(
      const std::string& folder) const override {
    CAPSTAN_ASSIGN_OR_RETURN(const Address address, ParseAddress(folder));
    CAPSTAN_ASSIGN_OR_RETURN(
        auto child,
        StartStorageProcess([address](const ConfinedChild::Parent& parent) {
          Serve(address, parent);
        }));
    return std::unique_ptr<RemoteReader>(
        std::make_unique<Reader>(std::move(child)));
  }

  std::string LocalFolder() const override { return StorageFolder(); }

  int64_t LocalBytes() const override { return StorageCacheBytes(); }
};

[[maybe_unused]] const bool registered = [] {
  static const Store store;
  SetRemoteStore(&store);
  return true;
}();

}  // namespace
}  // namespace capstan
