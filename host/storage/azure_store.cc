// SPDX-License-Identifier: Apache-2.0
//
// Azure's Blob Storage, where Arrow's way of writing needs care.
#include <arrow/buffer.h>
#include <arrow/filesystem/azurefs.h>
#include <arrow/io/interfaces.h>

#include <algorithm>
#include <cstdint>

#include "host/storage/arrow_store.h"
#include "host/storage/azure_connection.h"

namespace capstan {
namespace {

namespace fs = arrow::fs;

// A block of Azure's, of which a blob has at most 50,000.
constexpr int64_t kBlockBytes = int64_t{10} << 20;
constexpr int64_t kMostBlocks = 40000;

class AzureStore final : public ArrowStore {
 public:
  using ArrowStore::ArrowStore;

  // Arrow first makes an empty blob in a blob's place. So it is written beside
  // it and copied by the store, and appears whole; but for the large ones of a
  // checkpoint or a model, where another file tells when they are.
  StoreResult Write(const std::string& path, const char* bytes,
                    int64_t size) override {
    return Guarded([&]() -> arrow::Status {
      const bool told = path.find("/checkpoints/") != std::string::npos ||
                        path.find("/final/") != std::string::npos;
      if (told && size > kBlockBytes) return WriteBlocks(path, bytes, size);
      const size_t name = path.rfind('/') + 1;
      const std::string part =
          path.substr(0, name) + "." + path.substr(name) + ".part";
      ARROW_RETURN_NOT_OK(WriteBlocks(part, bytes, size));
      ARROW_RETURN_NOT_OK(files_->CopyFile(part, path));
      return files_->DeleteFile(part);
    });
  }

 private:
  arrow::Status WriteBlocks(const std::string& path, const char* bytes,
                            int64_t size) const {
    ARROW_ASSIGN_OR_RAISE(const auto out, files_->OpenOutputStream(path));
    const int64_t block = std::max(kBlockBytes, size / kMostBlocks);
    arrow::Status written;
    for (int64_t at = 0; at < size && written.ok(); at += block) {
      written = out->Write(std::make_shared<arrow::Buffer>(
          reinterpret_cast<const uint8_t*>(bytes) + at,
          std::min(block, size - at)));
    }
    if (written.ok()) written = out->Close();
    // Else its end would commit what it has. What went wrong is known.
    if (!written.ok()) const arrow::Status left = out->Abort();
    return written;
  }

  // Of a container that isn't there Arrow says the same.
  StoreResult Nothing(const std::string& folder) override {
    return Guarded([&]() -> arrow::Status {
      const std::string container = folder.substr(0, folder.find('/'));
      ARROW_ASSIGN_OR_RAISE(const fs::FileInfo info,
                            files_->GetFileInfo(container));
      return info.type() == fs::FileType::NotFound
                 ? arrow::Status::IOError("ContainerNotFound: ", container)
                 : arrow::Status::OK();
    });
  }
};

// Of a connection in which nothing is wrong.
arrow::Status SetEndpoint(const AzureConnection& connection,
                          fs::AzureOptions* options) {
  const std::string& url = connection.blob_endpoint;
  const size_t colon = url.find("://");
  const std::string rest = url.substr(colon + 3);
  const size_t slash = rest.find('/');
  std::string authority = rest.substr(0, slash);
  const std::string& account = options->account_name;
  if (slash != std::string::npos ? rest.substr(slash + 1) != account
                                 : authority.rfind(account + ".", 0) != 0) {
    return arrow::Status::Invalid(
        "AZURE_STORAGE_CONNECTION_STRING: BlobEndpoint isn't of AccountName, "
        "and other domains aren't known");
  }
  if (slash == std::string::npos) authority.erase(0, account.size());
  options->blob_storage_scheme = options->dfs_storage_scheme =
      url.substr(0, colon);
  options->blob_storage_authority = authority;
  const size_t blob = authority.find(".blob.");
  if (blob != std::string::npos) authority.replace(blob, 6, ".dfs.");
  options->dfs_storage_authority = authority;
  return arrow::Status::OK();
}

}  // namespace

arrow::Result<std::unique_ptr<ObjectStore>> OpenAzure() {
  const AzureConnection connection =
      ReadAzureConnection(Variable("AZURE_STORAGE_CONNECTION_STRING"));
  const std::string wrong = WrongInAzureConnection(connection);
  if (!wrong.empty()) {
    return arrow::Status::Invalid("AZURE_STORAGE_CONNECTION_STRING: ", wrong);
  }
  fs::AzureOptions options;
  // It would copy all that is written, as many blocks at once as there are.
  options.background_writes = false;
  options.account_name = connection.account.empty()
                             ? Variable("AZURE_STORAGE_ACCOUNT")
                             : connection.account;
  if (options.account_name.empty()) {
    return arrow::Status::Invalid(
        "neither AZURE_STORAGE_ACCOUNT nor AZURE_STORAGE_CONNECTION_STRING "
        "names the storage account");
  }
  if (!connection.blob_endpoint.empty()) {
    ARROW_RETURN_NOT_OK(SetEndpoint(connection, &options));
  } else {
    if (!connection.suffix.empty()) {
      options.blob_storage_authority = ".blob." + connection.suffix;
      options.dfs_storage_authority = ".dfs." + connection.suffix;
    }
    if (connection.protocol == "http") {
      options.blob_storage_scheme = options.dfs_storage_scheme = "http";
    }
  }
  const bool own = !connection.key.empty() || !connection.signature.empty();
  const std::string key = own ? connection.key : Variable("AZURE_STORAGE_KEY");
  std::string sas =
      own ? connection.signature : Variable("AZURE_STORAGE_SAS_TOKEN");
  AzureConnection by_variables;
  by_variables.account = options.account_name;
  by_variables.key = key;
  if (!WrongInAzureConnection(by_variables).empty()) {
    return arrow::Status::Invalid(
        "AZURE_STORAGE_ACCOUNT or AZURE_STORAGE_KEY isn't one: an account has "
        "letters and digits alone, and a key is base64");
  }
  if (key.empty() && sas.empty() && options.blob_storage_scheme == "http") {
    return arrow::Status::Invalid(
        "AZURE_STORAGE_CONNECTION_STRING: has neither AccountKey nor "
        "SharedAccessSignature, and http:// takes nothing else");
  }
  // Azure's tools print it without; Arrow appends it to a URL as it is.
  if (!sas.empty() && sas[0] != '?') sas.insert(0, "?");
  ARROW_RETURN_NOT_OK(!key.empty() ? options.ConfigureAccountKeyCredential(key)
                      : !sas.empty() ? options.ConfigureSASCredential(sas)
                                     : options.ConfigureDefaultCredential());
  ARROW_ASSIGN_OR_RAISE(auto files, fs::AzureFileSystem::Make(options));
  return std::make_unique<AzureStore>(std::move(files));
}

}  // namespace capstan
