// SPDX-License-Identifier: Apache-2.0
//
// An entry of the cache is a folder NAME with a request's files and a file
// NAME.lock beside it, which holds their bytes and whose time is that of the
// last use. Who reads an entry holds its lock shared; who makes or removes it,
// alone.
#include "host/storage/cache.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <iterator>
#include <map>
#include <memory>
#include <set>
#include <system_error>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/digest.h"
#include "base/error_code.h"
#include "base/files.h"
#include "base/status.h"
#include "host/storage/listing.h"
#include "host/storage/storage.h"

namespace capstan {
namespace {

namespace fs = std::filesystem;

constexpr char kFile[] = "file://";
// In a run's folder.
constexpr absl::string_view kFinal = "final/";
constexpr absl::string_view kCheckpoints = "checkpoints/";
constexpr double kCacheGib = 50;
constexpr double kGib = 1 << 30;
constexpr int kTries = 3;
// Of more objects the times of a listing must do.
constexpr size_t kMostAsked = 64;

// An open file with a lock, until it is closed.
class Lock {
 public:
  // `how`: LOCK_SH or LOCK_EX, with LOCK_NB. Not held if it can't be had.
  Lock(const std::string& path, int how) : path_(path) {
    // Another process may remove the file between opening and locking.
    while (true) {
      fd_ = open(path.c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0666);
      error_ = fd_ < 0 ? errno : 0;
      if (fd_ < 0) return;
      int locked;
      do {
        locked = flock(fd_, how);
      } while (locked != 0 && errno == EINTR);
      error_ = locked == 0 ? 0 : errno;
      struct stat mine, there;
      if (locked == 0 && fstat(fd_, &mine) == 0 &&
          stat(path.c_str(), &there) == 0 && mine.st_ino == there.st_ino) {
        return;
      }
      Close();
      if (locked != 0) return;
    }
  }
  ~Lock() { Close(); }
  Lock(const Lock&) = delete;
  Lock& operator=(const Lock&) = delete;

  bool held() const { return fd_ >= 0; }
  int error() const { return error_; }  // an errno value, if it isn't held
  // Now is the entry's last use.
  void Touch() const { futimens(fd_, nullptr); }
  // The lock is held until this process and its forks end.
  void Keep() { fd_ = -1; }

 private:
  void Close() {
    if (fd_ >= 0) close(fd_);
    fd_ = -1;
  }

  const std::string path_;
  int fd_ = -1;
  int error_ = 0;
};

struct Entry {
  std::string path;  // without ".lock"
  int64_t bytes = 0;
  fs::file_time_type used;
};

std::vector<Entry> EntriesOldestFirst(const std::string& cache) {
  std::vector<Entry> entries;
  std::error_code error;
  for (fs::directory_iterator at(cache, error), end; !error && at != end;
       at.increment(error)) {
    absl::string_view path = at->path().native();
    if (!absl::ConsumeSuffix(&path, ".lock")) continue;
    Entry entry{std::string(path)};
    const auto bytes = ReadWholeFile(at->path().string(), 100);
    if (bytes.ok() && !absl::SimpleAtoi(*bytes, &entry.bytes)) entry.bytes = 0;
    std::error_code none;
    entry.used = at->last_write_time(none);
    if (!none) entries.push_back(std::move(entry));
  }
  std::sort(entries.begin(), entries.end(),
            [](const Entry& a, const Entry& b) { return a.used < b.used; });
  return entries;
}

// Removes what hasn't been used for longest, so that the `bytes` of the new
// entry `made` fit. What is in use stays.
absl::Status MakeRoom(const std::string& cache, const std::string& made,
                      int64_t bytes, absl::string_view what) {
  const auto limit = static_cast<double>(StorageCacheBytes());
  const std::vector<Entry> entries = EntriesOldestFirst(cache);
  double sum = static_cast<double>(bytes);
  for (const Entry& entry : entries) {
    if (entry.path != made) sum += static_cast<double>(entry.bytes);
  }
  for (const Entry& entry : entries) {
    if (sum <= limit) return absl::OkStatus();
    if (entry.path == made) continue;
    const std::string lock_path = entry.path + ".lock";
    const Lock lock(lock_path, LOCK_EX | LOCK_NB);
    if (!lock.held()) continue;
    CAPSTAN_RETURN_IF_ERROR(RemoveTree(entry.path));
    CAPSTAN_RETURN_IF_ERROR(RemoveTree(entry.path + ".part"));
    unlink(lock_path.c_str());
    sum -= static_cast<double>(entry.bytes);
  }
  if (sum <= limit) return absl::OkStatus();
  return WithCode(
      absl::ResourceExhaustedError(absl::StrFormat(
          "%s has %.3g GiB, and the cache of what is read from stores, %s, may "
          "have %.3g GiB, of which live runs use %.3g: set "
          "CAPSTAN_STORAGE_CACHE_GIB to more",
          what, static_cast<double>(bytes) / kGib, cache, limit / kGib,
          (sum - static_cast<double>(bytes)) / kGib)),
      "storage/cache");
}

// What is fetched of an address; `name` is the path in it that is returned.
struct Request : Listing {
  int64_t bytes = 0;
};

absl::StatusOr<Request> Ask(const Address& address,
                            const ChooseObjects& choose) {
  Request request;
  CAPSTAN_ASSIGN_OR_RETURN(static_cast<Listing&>(request),
                           ListAddress(address));
  if (request.kind == Listing::kObject) return request;
  if (request.kind == Listing::kFolder && choose != nullptr) {
    request.objects = choose(std::move(request.objects));
  }
  // A listing's times are of whole seconds.
  if (request.objects.size() > kMostAsked) return request;
  std::vector<StoredObject> there;
  for (const StoredObject& listed : request.objects) {
    absl::StatusOr<StoredObject> object = request.storage->Stat(listed.path);
    // Gone since it was listed.
    if (absl::IsNotFound(object.status()) && request.objects.size() > 1) {
      continue;
    }
    CAPSTAN_RETURN_IF_ERROR(object.status());
    object->modified = listed.modified;
    there.push_back(*std::move(object));
  }
  request.objects = std::move(there);
  return request;
}

// The entry of a request: other versions of its objects have another.
std::string EntryOf(const std::string& cache, const Request& request) {
  std::string text = LocalName(request.folder);
  for (const StoredObject& object : request.objects) {
    absl::StrAppend(&text, "\n", object.path, "\n", object.size, "\n",
                    object.version);
  }
  return absl::StrCat(cache, "/", request.folder.scheme, "-",
                      request.folder.bucket, "-",
                      Sha256Text(text).substr(0, 24));
}

// The lock under which an entry is made; null once it is there. A reader may
// keep its lock for days, so that this never waits for one.
std::unique_ptr<Lock> LockToMake(const std::string& entry) {
  while (true) {
    {
      auto reading =  // waits for its maker
          std::make_unique<Lock>(entry + ".lock", LOCK_SH);
      if (!reading->held()) return reading;  // the error is told
      if (IsFolder(entry)) return nullptr;
    }
    auto making = std::make_unique<Lock>(entry + ".lock", LOCK_EX | LOCK_NB);
    if (IsFolder(entry)) return nullptr;
    if (making->held() || making->error() != EWOULDBLOCK) return making;
    absl::SleepFor(absl::Milliseconds(50));
  }
}

// Downloads a request into `part`. Its bytes count from the beginning, for
// those that download at the same time, and while a killed process's part is
// there.
absl::Status Fetch(const std::string& cache, const std::string& entry,
                   const Request& request, absl::string_view what) {
  const std::string part = entry + ".part";
  CAPSTAN_RETURN_IF_ERROR(RemoveTree(part));  // of a killed process
  // Into the locked file itself.
  CAPSTAN_RETURN_IF_ERROR(
      WriteWholeFile(entry + ".lock", absl::StrCat(request.bytes)));
  CAPSTAN_RETURN_IF_ERROR(MakeRoom(cache, entry, request.bytes, what));
  CAPSTAN_RETURN_IF_ERROR(MakeFolder(part));
  CAPSTAN_ASSIGN_OR_RETURN(const auto storage, Storage::Open(request.folder));
  storage->set_note([](const std::string& note) { std::cerr << note << "\n"; });
  CAPSTAN_RETURN_IF_ERROR(storage->Download(request.objects, part));
  // By these a run's age is told.
  for (const StoredObject& object : request.objects) {
    if (object.modified <= 0.0) continue;
    const timespec when =
        absl::ToTimespec(absl::UnixEpoch() + absl::Seconds(object.modified));
    const timespec times[] = {when, when};
    utimensat(AT_FDCWD, absl::StrCat(part, "/", object.path).c_str(), times, 0);
  }
  return absl::OkStatus();
}

// After Fetch: nothing of what it has written stays.
absl::Status Forget(const std::string& entry) {
  absl::Status status = RemoveTree(entry + ".part");
  status.Update(WriteWholeFile(entry + ".lock", "0"));
  return status;
}

// In the process that talks to the store: the entry's path and, behind a zero
// byte, the path in it.
absl::StatusOr<std::string> Get(const std::string& cache,
                                const Address& address,
                                const ChooseObjects& choose,
                                bool of_one_moment) {
  for (int i = 0;; ++i) {
    CAPSTAN_ASSIGN_OR_RETURN(Request request, Ask(address, choose));
    if (request.objects.empty()) {
      return absl::NotFoundError(
          absl::StrCat(address.text(), ": there is no such object or folder"));
    }
    for (const StoredObject& object : request.objects) {
      request.bytes += object.size;
    }
    const std::string entry = EntryOf(cache, request);
    const std::string result =
        absl::StrCat(entry, std::string(1, '\0'), request.name);
    const std::unique_ptr<Lock> lock = LockToMake(entry);
    if (lock == nullptr) return result;
    if (!lock->held()) return WriteError(entry + ".lock", lock->error());
    const double began = MonotonicSeconds();
    const auto now = [&]() -> absl::StatusOr<Request> {
      CAPSTAN_RETURN_IF_ERROR(Fetch(cache, entry, request, address.text()));
      if (!of_one_moment) return std::move(request);
      return Ask(address, choose);
    }();
    // It is of one version only if that is still there.
    if (!now.ok() || EntryOf(cache, *now) != entry) {
      const absl::Status forgotten = Forget(entry);
      // What is gone since it was listed, isn't listed any more.
      if (!absl::IsNotFound(now.status())) {
        CAPSTAN_RETURN_IF_ERROR(now.status());
      }
      CAPSTAN_RETURN_IF_ERROR(forgotten);
    } else {
      CAPSTAN_RETURN_IF_ERROR(ReplaceFolder(entry + ".part", entry));
      std::cerr << absl::StrFormat(
          "%s: fetched %.1f MiB in %.1f s into %s\n", address.text(),
          static_cast<double>(request.bytes) / (1 << 20),
          MonotonicSeconds() - began, entry);
      return result;
    }
    if (i + 1 == kTries) {
      return absl::UnavailableError(absl::StrCat(
          address.text(), " changes while it is read: wait for its writer"));
    }
  }
}

std::vector<StoredObject> Only(
    std::vector<StoredObject> objects,
    const std::function<bool(absl::string_view path)>& chosen) {
  objects.erase(std::remove_if(objects.begin(), objects.end(),
                               [&chosen](const StoredObject& object) {
                                 return !chosen(object.path);
                               }),
                objects.end());
  return objects;
}

}  // namespace

int64_t StorageCacheBytes() {
  const char* const set = std::getenv("CAPSTAN_STORAGE_CACHE_GIB");
  double gib = 0;
  const bool is_set = set != nullptr && absl::SimpleAtod(set, &gib) && gib > 0;
  return static_cast<int64_t>((is_set ? gib : kCacheGib) * kGib);
}

bool IsOfRun(absl::string_view path) {
  const absl::string_view first = path.substr(0, path.find('/'));
  if (absl::StartsWith(first, ".") || absl::StrContains(path, "/.")) {
    return false;
  }
  if (first.size() == path.size()) return true;
  for (const absl::string_view folder :
       {"checkpoints", "final", "tensorboard", "ranks", "digests"}) {
    if (first == folder) return true;
  }
  return false;
}

std::vector<StoredObject> ModelOfRun(std::vector<StoredObject> objects) {
  bool has_final = false;
  std::string newest;  // "checkpoints/step-00000010/"
  for (const StoredObject& object : objects) {
    has_final |= absl::StartsWith(object.path, kFinal);
    absl::string_view folder = object.path;
    // Their names ascend by step.
    if (absl::StartsWith(folder, kCheckpoints) &&
        absl::ConsumeSuffix(&folder, "manifest.json")) {
      newest = std::max(newest, std::string(folder));
    }
  }
  if (!has_final && newest.empty()) return objects;
  const absl::string_view folder = has_final ? kFinal : newest;
  return Only(std::move(objects), [folder](absl::string_view path) {
    return absl::StartsWith(path, folder) || path == "config.pbtxt";
  });
}

std::vector<StoredObject> RecordsOfRun(std::vector<StoredObject> objects) {
  return Only(std::move(objects), [](absl::string_view path) {
    return path == kOwnerFile ||  // it is going on
           (IsOfRun(path) && !absl::StartsWith(path, kFinal) &&
            !absl::StartsWith(path, kCheckpoints));
  });
}

std::vector<StoredObject> CheckpointsOfRun(std::vector<StoredObject> objects) {
  return Only(std::move(objects), [](absl::string_view path) {
    return IsOfRun(path) && !absl::StartsWith(path, kFinal);
  });
}

std::vector<StoredObject> ManifestsOfRun(std::vector<StoredObject> objects) {
  return Only(CheckpointsOfRun(std::move(objects)), [](absl::string_view path) {
    return !absl::StartsWith(path, kCheckpoints) ||
           absl::EndsWith(path, "/manifest.json");
  });
}

std::vector<StoredObject> RecordsOfRuns(std::vector<StoredObject> objects) {
  std::set<std::string> runs;  // "", "first/"
  for (const StoredObject& object : objects) {
    absl::string_view run = object.path;
    if (absl::ConsumeSuffix(&run, "config.pbtxt") &&
        (run.empty() || run.back() == '/')) {
      runs.emplace(run);
    }
  }
  // What a run has made may look like one.
  for (auto run = runs.begin(); run != runs.end();) {
    const bool made =
        std::any_of(runs.begin(), runs.end(), [&](const std::string& of) {
          absl::string_view rest = *run;
          return absl::ConsumePrefix(&rest, of) &&
                 (absl::StartsWith(rest, kFinal) ||
                  absl::StartsWith(rest, kCheckpoints));
        });
    run = made ? runs.erase(run) : std::next(run);
  }
  // A run's records lie in its folder, or in one of that.
  std::map<std::string, std::vector<StoredObject>> of_runs;
  for (StoredObject& object : objects) {
    const std::string path = object.path;
    for (size_t end = path.rfind('/');; end = path.rfind('/', end - 1)) {
      const std::string run = end == path.npos ? "" : path.substr(0, end + 1);
      if (runs.count(run) > 0) {
        object.path.erase(0, run.size());
        of_runs[run].push_back(std::move(object));
        break;
      }
      if (end == path.npos || end == 0) break;
    }
  }
  std::vector<StoredObject> chosen;
  for (auto& [run, below] : of_runs) {
    for (StoredObject& object : RecordsOfRun(std::move(below))) {
      object.path.insert(0, run);
      chosen.push_back(std::move(object));
    }
  }
  return chosen;
}

absl::StatusOr<std::string> LocalCopy(absl::string_view path,
                                      const ChooseObjects& choose,
                                      bool of_one_moment) {
  if (absl::StartsWith(path, kFile)) {
    return std::string(absl::StripPrefix(path, kFile));
  }
  if (!IsAddress(path)) return std::string(path);
  CAPSTAN_ASSIGN_OR_RETURN(const Address address, ParseAddress(path));
  const std::string cache = StorageFolder() + "/cache";
  CAPSTAN_RETURN_IF_ERROR(MakeFolder(cache));
  for (int i = 0; i < kTries; ++i) {
    CAPSTAN_ASSIGN_OR_RETURN(const std::string got, InStorageProcess([&] {
                               return Get(cache, address, choose,
                                          of_one_moment);
                             }));
    const size_t zero = got.find('\0');
    const std::string entry = got.substr(0, zero);
    const std::string name = got.substr(zero + 1);
    Lock lock(entry + ".lock", LOCK_SH);
    if (!lock.held()) return WriteError(entry + ".lock", lock.error());
    // Else another process has made room in between.
    if (!IsFolder(entry)) continue;
    lock.Touch();
    lock.Keep();
    return name.empty() ? entry : absl::StrCat(entry, "/", name);
  }
  return absl::UnavailableError(
      absl::StrCat(path, " is removed from ", cache,
                   " by other processes as soon as it is there: set "
                   "CAPSTAN_STORAGE_CACHE_GIB to more"));
}

}  // namespace capstan
