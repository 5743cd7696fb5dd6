// SPDX-License-Identifier: Apache-2.0
#include "host/storage/arrow_store.h"

#include <arrow/buffer.h>
#include <arrow/filesystem/filesystem.h>
#include <arrow/filesystem/gcsfs.h>
#include <arrow/filesystem/s3fs.h>
#include <arrow/io/interfaces.h>
#include <arrow/result.h>
#include <arrow/status.h>
#include <arrow/util/io_util.h>
#include <arrow/util/key_value_metadata.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <exception>
#include <utility>

#include "host/storage/error_kind.h"

namespace capstan {
namespace {

namespace fs = arrow::fs;

// Of one request, by the store's own client; storage.cc tries whole calls
// again.
constexpr int kTriesOfRequest = 4;
constexpr double kConnectSeconds = 5;
constexpr double kSilentSeconds = 15;  // in which nothing comes
constexpr double kGcsRetrySeconds = 20;

// Whether Google's client is told credentials, so that it doesn't ask the
// machine for them, which only Google's know.
bool HasGoogleCredentials() {
  if (!Variable("GOOGLE_APPLICATION_CREDENTIALS").empty()) return true;
  const std::string file = Variable("HOME") +
                           "/.config/gcloud/application_default_credentials"
                           ".json";
  return access(file.c_str(), F_OK) == 0;
}

StoreResult::Kind KindOf(const arrow::Status& status) {
  if (HasPart(status.message(), "access token") &&
      HasPart(status.message(), "resolve hostname") &&
      !HasGoogleCredentials()) {
    return StoreResult::kRefused;
  }
  const StoreResult::Kind kind =
      KindOfError(status.message(), arrow::internal::ErrnoFromStatus(status));
  return kind == StoreResult::kPassing &&
                 (status.IsInvalid() || status.IsNotImplemented())
             ? StoreResult::kRefused
             : kind;
}

StoredObject ObjectOf(const fs::FileInfo& info) {
  StoredObject object;
  object.path = info.path();
  object.size = info.size();
  object.version = std::to_string(info.mtime().time_since_epoch().count());
  if (info.mtime() != fs::kNoTime) {
    object.modified =
        std::chrono::duration<double>(info.mtime().time_since_epoch()).count();
  }
  return object;
}

}  // namespace

std::string Variable(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

StoreResult ResultOf(const arrow::Status& status) {
  if (status.ok()) return {};
  std::string text = status.message();
  // Google's client says all of it there once more.
  text.erase(std::min(text.find(" error_info={"), text.size()));
  std::replace(text.begin(), text.end(), '\n', ' ');
  return {KindOf(status), std::move(text)};
}

StoreResult ArrowStore::List(const std::string& folder,
                             std::vector<StoredObject>* objects) {
  objects->clear();
  StoreResult result = Guarded([&]() -> arrow::Status {
    fs::FileSelector selector;
    selector.base_dir = folder;
    selector.recursive = true;
    ARROW_ASSIGN_OR_RAISE(const auto infos, files_->GetFileInfo(selector));
    for (const fs::FileInfo& info : infos) {
      if (info.IsFile()) objects->push_back(ObjectOf(info));
    }
    std::sort(objects->begin(), objects->end(),
              [](const auto& a, const auto& b) { return a.path < b.path; });
    return arrow::Status::OK();
  });
  return result.kind == StoreResult::kMissing ? Nothing(folder) : result;
}

StoreResult ArrowStore::Stat(const std::string& path, StoredObject* object) {
  return Guarded([&]() -> arrow::Status {
    ARROW_ASSIGN_OR_RAISE(const auto file, files_->OpenInputFile(path));
    object->path = path;
    ARROW_ASSIGN_OR_RAISE(object->size, file->GetSize());
    ARROW_ASSIGN_OR_RAISE(const auto metadata, file->ReadMetadata());
    object->version.clear();
    for (int64_t i = 0; metadata != nullptr && i < metadata->size(); ++i) {
      const std::string& key = metadata->key(i);
      if (key.size() == 4 && HasPart(key, "etag")) {
        object->version = metadata->value(i);
      }
    }
    if (object->version.empty()) {
      ARROW_ASSIGN_OR_RAISE(const fs::FileInfo info, files_->GetFileInfo(path));
      object->version = ObjectOf(info).version;
    }
    return arrow::Status::OK();
  });
}

StoreResult ArrowStore::Read(const StoredObject& object, int64_t offset,
                             int64_t size, char* to) {
  return Guarded([&]() -> arrow::Status {
    // With its size known, opening asks nothing of the store.
    fs::FileInfo info(object.path, fs::FileType::File);
    info.set_size(object.size);
    ARROW_ASSIGN_OR_RAISE(const auto file, files_->OpenInputFile(info));
    ARROW_ASSIGN_OR_RAISE(const int64_t got, file->ReadAt(offset, size, to));
    return got == size ? arrow::Status::OK()
                       : arrow::Status::IOError("it is shorter than it was");
  });
}

StoreResult ArrowStore::Write(const std::string& path, const char* bytes,
                              int64_t size) {
  return Guarded([&]() -> arrow::Status {
    ARROW_ASSIGN_OR_RAISE(const auto out, files_->OpenOutputStream(path));
    // Uploads parts of it, several at a time, without copying them.
    arrow::Status written = out->Write(std::make_shared<arrow::Buffer>(
        reinterpret_cast<const uint8_t*>(bytes), size));
    if (written.ok()) written = out->Close();
    if (!written.ok()) {
      // Once no part is read any more, nothing of it is to stay. What went
      // wrong is known.
      arrow::Status left = out->Flush();
      left = out->Abort();
    }
    return written;
  });
}

StoreResult ArrowStore::DeleteFolder(const std::string& folder) {
  StoreResult result = Guarded([&] { return files_->DeleteDir(folder); });
  if (result.kind == StoreResult::kMissing) result = {};
  return result;
}

StoreResult ArrowStore::Delete(const std::string& path) {
  StoreResult result = Guarded([&] { return files_->DeleteFile(path); });
  // Arrow then makes an empty object in the place of the folder, which some
  // stores don't allow.
  if (result.kind == StoreResult::kMissing ||
      result.text.rfind("When creating key", 0) == 0) {
    result = {};
  }
  return result;
}

StoreResult ArrowStore::Guarded(const std::function<arrow::Status()>& call) {
  try {
    return ResultOf(call());
  } catch (const std::exception& e) {
    return ResultOf(arrow::Status::IOError(e.what()));
  }
}

// Of a bucket that isn't there the store says so in other words.
StoreResult ArrowStore::Nothing(const std::string& /*folder*/) { return {}; }

namespace {

arrow::Result<std::shared_ptr<fs::FileSystem>> OpenS3(
    const std::string& bucket) {
  std::string endpoint = Variable("AWS_ENDPOINT_URL_S3");
  if (endpoint.empty()) endpoint = Variable("AWS_ENDPOINT_URL");
  if (!endpoint.empty()) {
    // Many stores that aren't Amazon's don't know the checksums of newer
    // clients.
    setenv("AWS_REQUEST_CHECKSUM_CALCULATION", "when_required", 0);
  }
  fs::S3GlobalOptions global = fs::S3GlobalOptions::Defaults();
  if (Variable("ARROW_S3_LOG_LEVEL").empty()) {
    global.log_level = fs::S3LogLevel::Off;
  }
  if (!fs::IsS3Initialized()) ARROW_RETURN_NOT_OK(fs::InitializeS3(global));
  fs::S3Options options = fs::S3Options::Defaults();
  options.region = Variable("AWS_REGION");
  if (options.region.empty()) options.region = Variable("AWS_DEFAULT_REGION");
  if (!endpoint.empty()) {
    const size_t colon = endpoint.find("://");
    if (colon != std::string::npos) {
      options.scheme = endpoint.substr(0, colon);
      endpoint.erase(0, colon + 3);
    }
    while (!endpoint.empty() && endpoint.back() == '/') endpoint.pop_back();
    options.endpoint_override = endpoint;
    if (options.region.empty()) options.region = "us-east-1";
  } else if (options.region.empty()) {
    ARROW_ASSIGN_OR_RAISE(options.region, fs::ResolveS3BucketRegion(bucket));
  }
  options.connect_timeout = kConnectSeconds;
  options.request_timeout = kSilentSeconds;
  options.allow_delayed_open = true;  // small objects need one request
  options.retry_strategy =
      fs::S3RetryStrategy::GetAwsStandardRetryStrategy(kTriesOfRequest);
  ARROW_ASSIGN_OR_RAISE(const auto files, fs::S3FileSystem::Make(options));
  return files;
}

arrow::Result<std::shared_ptr<fs::FileSystem>> OpenGcs() {
  // The variable is that of Google's C++ client, which takes the address from
  // there, but would still ask for a token.
  fs::GcsOptions options = Variable("CLOUD_STORAGE_EMULATOR_ENDPOINT").empty()
                               ? fs::GcsOptions::Defaults()
                               : fs::GcsOptions::Anonymous();
  options.retry_limit_seconds = kGcsRetrySeconds;
  ARROW_ASSIGN_OR_RAISE(const auto files, fs::GcsFileSystem::Make(options));
  return files;
}

// Arrow's libraries look for certificates where the system that built them has
// them.
arrow::Status FindCertificates() {
  fs::FileSystemGlobalOptions options;
  for (const std::string& path :
       {Variable("AWS_CA_BUNDLE"), Variable("SSL_CERT_FILE"),
        std::string("/etc/ssl/certs/ca-certificates.crt"),
        std::string("/etc/pki/tls/certs/ca-bundle.crt")}) {
    if (path.empty() || access(path.c_str(), R_OK) != 0) continue;
    options.tls_ca_file_path = path;
    break;
  }
  return fs::Initialize(options);
}

arrow::Result<std::unique_ptr<ObjectStore>> OpenStoreOf(
    const std::string& scheme, const std::string& bucket) {
  ARROW_RETURN_NOT_OK(FindCertificates());
  if (scheme == "az") return OpenAzure();
  ARROW_ASSIGN_OR_RAISE(auto files,
                        scheme == "s3" ? OpenS3(bucket) : OpenGcs());
  return std::make_unique<ArrowStore>(std::move(files));
}

StoreResult Open(const std::string& scheme, const std::string& bucket,
                 std::unique_ptr<ObjectStore>* store) {
  auto opened = OpenStoreOf(scheme, bucket);
  if (!opened.ok()) return ResultOf(opened.status());
  *store = *std::move(opened);
  return {};
}

}  // namespace
}  // namespace capstan

extern "C" __attribute__((visibility("default"))) capstan::StoreResult
capstan_open_store(const std::string& scheme, const std::string& bucket,
                   std::unique_ptr<capstan::ObjectStore>* store) {
  try {
    return capstan::Open(scheme, bucket, store);
  } catch (const std::exception& e) {
    return {capstan::StoreResult::kPassing, e.what()};
  }
}
