// SPDX-License-Identifier: Apache-2.0
#include "desk/convert/write_weights.h"

#include <fcntl.h>
#include <stdlib.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <limits>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/error_code.h"
#include "base/files.h"
#include "base/status.h"
#include "plugins/sdk/lib/safetensors.h"
#include "trainer/checkpoint/model_files.h"
#include "trainer/checkpoint/weight_files.h"

namespace capstan {
namespace {

namespace fs = std::filesystem;

constexpr char kEnding[] = ".safetensors";
constexpr char kAdapterConfig[] = "/adapter_config.json";

// Writes FOLDER/NAME.safetensors or its shards.
absl::Status WriteFiles(const WeightSource& source, const std::string& folder,
                        const std::string& name, int64_t max_shard_bytes) {
  std::vector<WeightFileTensor> tensors;
  for (const NamedTensor& weight : source.weights) {
    tensors.push_back({weight.name, weight.tensor.dtype, weight.tensor.shape});
  }
  WeightFiles files(folder, name, max_shard_bytes, std::move(tensors));
  for (size_t i = 0; i < source.weights.size(); ++i) {
    const TensorView& tensor = source.weights[i].tensor;
    std::string copy;
    const char* data = tensor.contiguous();
    if (data == nullptr) {
      copy.resize(tensor.bytes());
      tensor.CopyTo(&copy[0]);
      data = copy.data();
    }
    CAPSTAN_RETURN_IF_ERROR(files.Add(static_cast<int>(i), data));
    tensor.Forget();
  }
  CAPSTAN_RETURN_IF_ERROR(MappedFile::CheckAll());
  return files.Finish();
}

// An adapter's files have names of their own (PEFT).
bool IsAdapter(const WeightSource& source) {
  return PathExists(source.folder + kAdapterConfig) &&
         absl::StrContains(source.weights[0].name, "lora_");
}

absl::StatusOr<std::string> WriteFolder(const WeightSource& source,
                                        const std::string& folder,
                                        const std::string& output) {
  if (IsAdapter(source)) {
    CAPSTAN_ASSIGN_OR_RETURN(const std::string config,
                             ReadWholeFile(source.folder + kAdapterConfig));
    CAPSTAN_RETURN_IF_ERROR(WriteWholeFile(folder + kAdapterConfig, config));
    CAPSTAN_RETURN_IF_ERROR(WriteFiles(source, folder, "adapter_model",
                                       std::numeric_limits<int64_t>::max()));
    return std::string();
  }
  CAPSTAN_RETURN_IF_ERROR(WriteFiles(source, folder, "model", kMaxShardBytes));
  if (!PathExists(source.folder + "/config.json")) {
    return absl::StrCat(
        source.folder.empty() ? "." : source.folder,
        " has no config.json: put the model's, and its tokenizer, into ",
        output, " before it is named as model.pretrained");
  }
  CAPSTAN_ASSIGN_OR_RETURN(
      const ModelFiles copied,
      CopyModelFiles(source.folder, folder, /*own_tokenizer=*/false));
  return ModelFilesNote(source.folder, output, copied);
}

// Renames what was written to `output`. A rename replaces no folder but an
// empty one; of a file it would be what has appeared there meanwhile.
absl::Status Publish(const std::string& written, const std::string& output) {
  const unsigned int flags = IsFolder(written) ? 0 : RENAME_NOREPLACE;
  int failed =
      renameat2(AT_FDCWD, written.c_str(), AT_FDCWD, output.c_str(), flags);
  // Not all file systems know the flag.
  if (failed != 0 && errno == EINVAL) {
    failed = std::rename(written.c_str(), output.c_str());
  }
  return failed == 0 ? absl::OkStatus() : WriteError(output, errno);
}

// Writes within `temporary`, and then renames.
absl::StatusOr<std::string> Write(const WeightSource& source,
                                  const std::string& temporary,
                                  const std::string& output) {
  std::string written = temporary + "/model.safetensors";
  std::string note;
  if (absl::EndsWith(output, kEnding)) {
    CAPSTAN_RETURN_IF_ERROR(WriteFiles(source, temporary, "model",
                                       std::numeric_limits<int64_t>::max()));
  } else {
    written = temporary + "/folder";
    CAPSTAN_RETURN_IF_ERROR(MakeFolder(written));
    CAPSTAN_ASSIGN_OR_RETURN(note, WriteFolder(source, written, output));
    CAPSTAN_RETURN_IF_ERROR(SyncFolderAndFiles(written));
  }
  CAPSTAN_RETURN_IF_ERROR(Publish(written, output));
  return note;
}

}  // namespace

absl::Status CheckOutput(const std::string& output) {
  // A link is there, be it to nothing.
  std::error_code error;
  const fs::file_status status = fs::symlink_status(output, error);
  if (!fs::exists(status) ||
      (fs::is_directory(status) && fs::is_empty(output, error))) {
    return absl::OkStatus();
  }
  return WithCode(absl::AlreadyExistsError(absl::StrCat(
                      output, " is there already; name another --output")),
                  "path/exists");
}

absl::StatusOr<std::string> WriteWeights(const WeightSource& source,
                                         const std::string& output) {
  CAPSTAN_RETURN_IF_ERROR(CheckOutput(output));
  std::string parent = fs::path(output).parent_path().string();
  if (parent.empty()) parent = ".";
  CAPSTAN_RETURN_IF_ERROR(MakeFolder(parent));
  // A name of its own: others may write to `output` at the same time.
  std::string temporary = HiddenSibling(output, "XXXXXX");
  if (mkdtemp(&temporary[0]) == nullptr) return WriteError(output, errno);
  absl::StatusOr<std::string> note = Write(source, temporary, output);
  const absl::Status removed = RemoveTree(temporary);
  if (!note.ok()) return note;
  CAPSTAN_RETURN_IF_ERROR(removed);
  CAPSTAN_RETURN_IF_ERROR(SyncPath(parent));
  return note;
}

}  // namespace capstan
