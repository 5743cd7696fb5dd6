// SPDX-License-Identifier: Apache-2.0
#include "host/storage/storage.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <random>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/confined_child.h"
#include "base/digest.h"
#include "base/error_code.h"
#include "base/files.h"
#include "base/own_library.h"
#include "base/status.h"
#include "host/storage/azure_connection.h"
#include "host/storage/listing.h"

namespace capstan {
namespace {

constexpr absl::string_view kSchemes[] = {"s3", "gs", "az"};
// Variables whose values never get into a message.
constexpr const char* kSecrets[] = {
    "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY",   "AWS_SESSION_TOKEN",
    "AZURE_STORAGE_KEY", "AZURE_STORAGE_SAS_TOKEN", "AZURE_CLIENT_SECRET"};
constexpr double kPatienceSeconds = 120;
constexpr double kFirstPauseSeconds = 0.2;
constexpr double kLongestPauseSeconds = 10;
constexpr int64_t kPartBytes = int64_t{8} << 20;
constexpr size_t kThreads = 8;  // as many as Arrow's
constexpr uint64_t kMostAnswer = 1 << 20;

std::string Variable(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

// Which store of a scheme it is. Buckets of Amazon and Google have names that
// are theirs alone.
std::string StoreOf(const std::string& scheme) {
  if (scheme == "az") {
    const AzureConnection connection =
        ReadAzureConnection(Variable("AZURE_STORAGE_CONNECTION_STRING"));
    return connection.account.empty()
               ? Variable("AZURE_STORAGE_ACCOUNT")
               : absl::StrCat(connection.account, connection.blob_endpoint,
                              connection.suffix);
  }
  if (scheme != "s3") return Variable("CLOUD_STORAGE_EMULATOR_ENDPOINT");
  const std::string endpoint = Variable("AWS_ENDPOINT_URL_S3");
  return endpoint.empty() ? Variable("AWS_ENDPOINT_URL") : endpoint;
}

double PatienceSeconds() {
  double seconds = 0;
  return absl::SimpleAtod(Variable("CAPSTAN_STORAGE_SECONDS"), &seconds) &&
                 seconds > 0
             ? seconds
             : kPatienceSeconds;
}

std::string FindLibrary() {
  const std::string set = Variable("CAPSTAN_STORAGE_LIBRARY");
  return set.empty() ? FindOwnLibrary(kStorageLibrary, "host/storage") : set;
}

absl::StatusOr<OpenStore> OpenLibrary() {
  const std::string path = FindLibrary();
  // Others reserve more address space than they use.
  setenv("ARROW_DEFAULT_MEMORY_POOL", "system", 1);
  if (path.empty()) {
    return absl::UnimplementedError(absl::StrCat(
        kStorageLibrary,
        " can't be opened (there is none): it comes with the trainer, unless "
        "that was built where Arrow can't be fetched"));
  }
  const absl::StatusOr<void*> open = LibrarySymbol(
      path, kStorageLibrary, kStorageSymbol, RTLD_NOW | RTLD_LOCAL);
  if (!open.ok()) return absl::UnimplementedError(open.status().message());
  return reinterpret_cast<OpenStore>(*open);
}

std::string HowToMend(const Address& address) {
  if (address.scheme == "s3") {
    return "check the bucket's name, the credentials (AWS_ACCESS_KEY_ID and "
           "AWS_SECRET_ACCESS_KEY, or AWS_PROFILE), AWS_REGION, and "
           "AWS_ENDPOINT_URL of a store that isn't Amazon's";
  }
  return address.scheme == "gs"
             ? "check the bucket's name and the credentials "
               "(GOOGLE_APPLICATION_CREDENTIALS, or gcloud auth "
               "application-default login)"
             : "check the container's name, AZURE_STORAGE_ACCOUNT and the "
               "credentials (AZURE_STORAGE_KEY, AZURE_STORAGE_SAS_TOKEN, or "
               "az login), or AZURE_STORAGE_CONNECTION_STRING";
}

absl::Status ErrorOf(absl::string_view what, const Address& address,
                     const std::string& object, const StoreResult& result,
                     absl::string_view tried) {
  const std::string text =
      WithoutSecrets(absl::StrCat(object, " can't be ", what, ": ",
                                  absl::StripSuffix(result.text, "."), tried));
  switch (result.kind) {
    case StoreResult::kMissing:
      return absl::NotFoundError(text);
    case StoreResult::kRefused:
      return absl::PermissionDeniedError(
          absl::StrCat(text, "; ", HowToMend(address)));
    default:
      return absl::UnavailableError(
          absl::StrCat(text, "; is the store up and reachable from here?"));
  }
}

// A process sends no codes.
const char* CodeFor(const absl::StatusOr<std::string>& answer) {
  switch (answer.status().code()) {
    case absl::StatusCode::kNotFound:
      return "storage/missing";
    case absl::StatusCode::kPermissionDenied:
      return "storage/refused";
    case absl::StatusCode::kUnavailable:
      return "storage/unavailable";
    case absl::StatusCode::kUnimplemented:
      return "storage/library";
    default:
      return "";
  }
}

// Between 0.5 and 1.5, so that many who failed at once don't come back at once.
double Jitter() {
  thread_local std::minstd_rand random{std::random_device()()};
  return std::uniform_real_distribution<double>(0.5, 1.5)(random);
}

// Calls `call` for `object` until it is well, or what is wrong won't pass, or
// `patience` seconds have.
absl::Status Retry(const Address& address, absl::string_view what,
                   const std::string& object, double patience,
                   const std::function<void(const std::string&)>& note,
                   const std::function<StoreResult()>& call) {
  double failed = -1;  // when it first did
  double pause = kFirstPauseSeconds;
  for (int tries = 1;; ++tries) {
    const StoreResult result = call();
    if (result.kind == StoreResult::kOk) return absl::OkStatus();
    const double now = MonotonicSeconds();
    if (failed < 0) failed = now;
    if (result.kind != StoreResult::kPassing || now - failed >= patience) {
      return ErrorOf(what, address, object, result,
                     tries == 1 ? ""
                                : absl::StrFormat(" (tried %d times, %.0f s)",
                                                  tries, now - failed));
    }
    if (note != nullptr && tries == 2) {
      note(WithoutSecrets(
          absl::StrCat(object, " can't be ", what,
                       " yet, it is tried again: ", result.text)));
    }
    const double left = patience - (now - failed);
    absl::SleepFor(absl::Seconds(std::min(pause * Jitter(), left)));
    pause = std::min(2 * pause, kLongestPauseSeconds);
  }
}

// A part of an object on its way to a file.
struct Part {
  const StoredObject* object = nullptr;
  int fd = -1;
  int64_t offset = 0;
  int64_t bytes = 0;
};

absl::Status WriteAt(int fd, const std::string& bytes, int64_t offset,
                     const std::string& path) {
  for (size_t done = 0; done < bytes.size();) {
    const ssize_t wrote =
        pwrite(fd, bytes.data() + done, bytes.size() - done,
               static_cast<off_t>(offset + static_cast<int64_t>(done)));
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote < 0) return WriteError(path, errno);
    done += static_cast<size_t>(wrote);
  }
  return absl::OkStatus();
}

// Closes what it has opened.
class Files {
 public:
  ~Files() {
    for (const int fd : open_) close(fd);
  }
  absl::StatusOr<int> Make(const std::string& path) {
    CAPSTAN_RETURN_IF_ERROR(MakeFolder(path.substr(0, path.rfind('/'))));
    const int fd =
        open(path.c_str(), O_CREAT | O_TRUNC | O_WRONLY | O_CLOEXEC, 0666);
    if (fd < 0) return WriteError(path, errno);
    open_.push_back(fd);
    return fd;
  }
  absl::Status Sync() const {
    for (const int fd : open_) {
      if (fsync(fd) != 0) return WriteError("a downloaded file", errno);
    }
    return absl::OkStatus();
  }

 private:
  std::vector<int> open_;
};

// Whether a key names a file below a folder, and none beside it.
bool IsInside(absl::string_view key) {
  for (const absl::string_view part : absl::StrSplit(key, '/')) {
    if (part.empty() || part == "." || part == "..") return false;
  }
  return true;
}

}  // namespace

bool IsAddress(absl::string_view text) {
  return absl::c_any_of(kSchemes, [text](absl::string_view scheme) {
    return absl::StartsWith(text, absl::StrCat(scheme, "://"));
  });
}

absl::StatusOr<Address> ParseAddress(absl::string_view text) {
  Address address;
  const size_t colon = text.find("://");
  const auto wrong = [](absl::string_view why) {
    return WithCode(absl::InvalidArgumentError(absl::StrCat(
                        why,
                        ": write s3://BUCKET/KEY, gs://BUCKET/KEY or "
                        "az://CONTAINER/BLOB")),
                    "storage/address");
  };
  if (!IsAddress(text)) return wrong("it isn't an address of a store");
  address.scheme = std::string(text.substr(0, colon));
  absl::string_view rest = text.substr(colon + 3);
  while (absl::ConsumeSuffix(&rest, "/")) {
  }
  const size_t slash = std::min(rest.find('/'), rest.size());
  address.bucket = std::string(rest.substr(0, slash));
  address.key = std::string(absl::StripPrefix(rest.substr(slash), "/"));
  if (absl::StrContains(address.bucket, "@") ||
      absl::StrContains(address.bucket, ":")) {
    return wrong(
        "an address has no credentials or port in it (docs/storage.md says "
        "where they go)");
  }
  const bool plain = absl::c_all_of(address.bucket, [](char c) {
    return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '-' ||
           c == '.' || c == '_';
  });
  if (address.bucket.empty() || !plain) {
    return wrong("its bucket can't be a bucket's name");
  }
  if (!address.key.empty() && !IsInside(address.key)) {
    return wrong("its key has an empty part, \".\" or \"..\"");
  }
  return address;
}

std::string StorageFolder() {
  const std::string set = Variable("CAPSTAN_STORAGE_FOLDER");
  if (!set.empty()) return set;
  const std::string cache = Variable("XDG_CACHE_HOME");
  return (cache.empty() ? Variable("HOME") + "/.cache" : cache) +
         "/capstan/storage";
}

std::string LocalName(const Address& address) {
  constexpr size_t kReadable = 80;  // a file's name has at most 255
  std::string name =
      absl::StrCat(address.scheme, "-", address.path()).substr(0, kReadable);
  for (char& c : name) {
    if (!absl::ascii_isalnum(static_cast<unsigned char>(c)) && c != '.') {
      c = '-';
    }
  }
  const std::string whole =
      absl::StrCat(address.text(), "\n", StoreOf(address.scheme));
  return absl::StrCat(name, "-", Sha256Text(whole).substr(0, 12));
}

std::string WorkingFolder(const Address& output_dir) {
  return absl::StrCat(StorageFolder(), "/runs/", LocalName(output_dir));
}

std::string WithoutSecrets(std::string text) {
  std::vector<std::string> secrets;
  for (const char* name : kSecrets) secrets.push_back(Variable(name));
  const AzureConnection azure =
      ReadAzureConnection(Variable("AZURE_STORAGE_CONNECTION_STRING"));
  secrets.push_back(azure.key);
  secrets.push_back(azure.signature);
  for (const std::string& secret : secrets) {
    if (!secret.empty()) text = absl::StrReplaceAll(text, {{secret, "***"}});
  }
  // Of a URL.
  for (size_t at = 0; (at = text.find("http", at)) != text.npos; ++at) {
    constexpr char kEnds[] = " \t\n'\"<>";
    const size_t end = std::min(text.find_first_of(kEnds, at), text.size());
    const size_t query = text.find('?', at);
    if (query < end) text.replace(query, end - query, "?***");
  }
  for (size_t at = 0; (at = text.find("sig=", at)) != text.npos; at += 4) {
    const size_t end =
        std::min(text.find_first_of(" \t\n'\"&", at), text.size());
    text.replace(at + 4, end - at - 4, "***");
  }
  return text;
}

absl::StatusOr<std::unique_ptr<Storage>> Storage::Open(const Address& address) {
  CAPSTAN_ASSIGN_OR_RETURN(const OpenStore open, OpenLibrary());
  std::unique_ptr<ObjectStore> store;
  CAPSTAN_RETURN_IF_ERROR(
      Retry(address, "opened", address.text(), PatienceSeconds(), nullptr,
            [&] { return open(address.scheme, address.bucket, &store); }));
  return std::make_unique<Storage>(address, std::move(store),
                                   PatienceSeconds());
}

std::string Storage::PathOf(const std::string& key) const {
  return key.empty() ? address_.path()
                     : absl::StrCat(address_.path(), "/", key);
}

absl::Status Storage::Call(absl::string_view what, const std::string& key,
                           const std::function<StoreResult()>& call) const {
  return Retry(address_, what,
               absl::StrCat(address_.scheme, "://", PathOf(key)),
               patience_seconds_, note_, call);
}

absl::StatusOr<std::vector<StoredObject>> Storage::List(
    const std::string& folder) const {
  std::vector<StoredObject> objects;
  CAPSTAN_RETURN_IF_ERROR(Call("listed", folder, [&] {
    return store_->List(PathOf(folder), &objects);
  }));
  const std::string prefix = address_.path() + "/";
  for (StoredObject& object : objects) {
    object.path = std::string(absl::StripPrefix(object.path, prefix));
    if (!IsInside(object.path)) {
      return WithCode(absl::InvalidArgumentError(absl::StrCat(
                          address_.text(), "/", object.path,
                          " can't be a file below a folder: rename it")),
                      "storage/address");
    }
  }
  return objects;
}

absl::StatusOr<StoredObject> Storage::Stat(const std::string& key) const {
  StoredObject object;
  CAPSTAN_RETURN_IF_ERROR(
      Call("read", key, [&] { return store_->Stat(PathOf(key), &object); }));
  object.path = key;
  return object;
}

absl::Status Storage::Read(const StoredObject& object, int64_t offset,
                           int64_t size, char* to) const {
  StoredObject whole = object;
  whole.path = PathOf(object.path);
  return Call("read", object.path,
              [&] { return store_->Read(whole, offset, size, to); });
}

absl::Status Storage::Download(const std::vector<StoredObject>& objects,
                               const std::string& folder) const {
  // A window of files at a time: each is open while it is written.
  constexpr size_t kFilesAtOnce = 256;
  for (size_t first = 0; first < objects.size(); first += kFilesAtOnce) {
    const size_t end = std::min(first + kFilesAtOnce, objects.size());
    Files files;
    std::vector<Part> parts;
    for (size_t i = first; i < end; ++i) {
      const StoredObject& object = objects[i];
      CAPSTAN_ASSIGN_OR_RETURN(
          const int fd, files.Make(absl::StrCat(folder, "/", object.path)));
      for (int64_t at = 0; at < object.size; at += kPartBytes) {
        parts.push_back(
            {&object, fd, at, std::min(kPartBytes, object.size - at)});
      }
    }
    CAPSTAN_RETURN_IF_ERROR(
        InParallel(parts.size(), kThreads, [&](size_t i) -> absl::Status {
          const Part& part = parts[i];
          std::string bytes(static_cast<size_t>(part.bytes), '\0');
          CAPSTAN_RETURN_IF_ERROR(
              Read(*part.object, part.offset, part.bytes, &bytes[0]));
          return WriteAt(part.fd, bytes, part.offset, folder);
        }));
    CAPSTAN_RETURN_IF_ERROR(files.Sync());
  }
  return absl::OkStatus();
}

absl::Status Storage::Write(const std::string& key,
                            absl::string_view bytes) const {
  return Call("written", key, [&] {
    return store_->Write(PathOf(key), bytes.data(),
                         static_cast<int64_t>(bytes.size()));
  });
}

absl::Status Storage::Upload(const std::string& file,
                             const std::string& key) const {
  MapOptions options;
  options.in_order = true;
  options.may_be_empty = true;
  CAPSTAN_ASSIGN_OR_RETURN(const std::shared_ptr<const MappedFile> mapped,
                           MappedFile::Open(file, options));
  CAPSTAN_RETURN_IF_ERROR(Write(key, mapped->bytes()));
  return mapped->Check();
}

absl::Status Storage::Delete(const std::string& key) const {
  return Call("deleted", key, [&] { return store_->Delete(PathOf(key)); });
}

absl::Status Storage::DeleteFolder(const std::string& folder) const {
  return Call("deleted", folder,
              [&] { return store_->DeleteFolder(PathOf(folder)); });
}

absl::StatusOr<std::unique_ptr<ConfinedChild>> StartStorageProcess(
    const std::function<void(const ConfinedChild::Parent&)>& serve) {
  // A build, if there has to be one, isn't the child's.
  CAPSTAN_RETURN_IF_ERROR(OwnLibrary(kStorageLibrary, "host/storage",
                                     "what reads and writes object storage")
                              .status());
  ChildLimits limits;  // it reads nothing that is hostile
  limits.bytes = int64_t{1} << 60;
  limits.cpu_seconds = int64_t{1} << 40;
  // MappedFile's, which is installed once, and which a child resets.
  struct sigaction bus_error = {};
  sigaction(SIGBUS, nullptr, &bus_error);
  return ConfinedChild::Start(limits, [&](const ConfinedChild::Parent& parent) {
    sigaction(SIGBUS, &bus_error, nullptr);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    // Which a cluster may send to all processes of a job.
    for (const int signal : {SIGUSR1, SIGUSR2}) ::signal(signal, SIG_IGN);
    serve(parent);
    _exit(0);  // its threads may still run
  });
}

absl::StatusOr<std::string> InStorageProcess(
    const std::function<absl::StatusOr<std::string>()>& job) {
  CAPSTAN_ASSIGN_OR_RETURN(
      const std::unique_ptr<ConfinedChild> child,
      StartStorageProcess([&job](const ConfinedChild::Parent& parent) {
        const absl::StatusOr<std::string> done = job();
        if (done.ok()) {
          parent.Send(absl::string_view(*done));
        } else {
          parent.Send(done.status());
        }
      }));
  absl::StatusOr<std::string> answer = child->Receive(kMostAnswer);
  if (child->ended()) {
    return absl::InternalError(absl::StrCat(
        "the process that talks to the store ", answer.status().message()));
  }
  return answer.ok() ? answer : WithCode(answer.status(), CodeFor(answer));
}

}  // namespace capstan
