// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_HOST_STORAGE_ARROW_STORE_H_
#define CAPSTAN_HOST_STORAGE_ARROW_STORE_H_

#include <arrow/filesystem/filesystem.h>
#include <arrow/result.h>
#include <arrow/status.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "host/storage/store.h"

namespace capstan {

// The variable's value, or "".
std::string Variable(const char* name);

StoreResult ResultOf(const arrow::Status& status);

// A store by one of Arrow's filesystems.
class ArrowStore : public ObjectStore {
 public:
  explicit ArrowStore(std::shared_ptr<arrow::fs::FileSystem> files)
      : files_(std::move(files)) {}

  StoreResult List(const std::string& folder,
                   std::vector<StoredObject>* objects) override;
  StoreResult Stat(const std::string& path, StoredObject* object) override;
  StoreResult Read(const StoredObject& object, int64_t offset, int64_t size,
                   char* to) override;
  StoreResult Write(const std::string& path, const char* bytes,
                    int64_t size) override;
  StoreResult DeleteFolder(const std::string& folder) override;
  StoreResult Delete(const std::string& path) override;

 protected:
  // Arrow and what it builds on may throw.
  static StoreResult Guarded(const std::function<arrow::Status()>& call);

  // What it means that nothing lies below `folder`: OK by default.
  virtual StoreResult Nothing(const std::string& folder);

  const std::shared_ptr<arrow::fs::FileSystem> files_;
};

// By the variables of Azure's command line.
arrow::Result<std::unique_ptr<ObjectStore>> OpenAzure();

}  // namespace capstan

#endif  // CAPSTAN_HOST_STORAGE_ARROW_STORE_H_
