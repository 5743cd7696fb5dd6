// SPDX-License-Identifier: Apache-2.0
#include "plugins/llada/windows/llada_windows.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <array>
#include <utility>

#include "absl/strings/str_cat.h"
#include "plugins/sdk/model_tokenizer.h"
#include "plugins/sdk/plugin.h"

namespace capstan::llada_windows {
namespace {

absl::StatusOr<WindowEnds> EndsOf(const Config& config) {
  switch (config.ends()) {
    case AROUND:
      return WindowEnds::kAround;
    case NONE:
      return WindowEnds::kNone;
    case CUT:
      return WindowEnds::kCut;
    default:
      return FieldError("ends", absl::StrCat("there is no ", config.ends()));
  }
}

absl::StatusOr<WindowData> OpenText(const Config& config) {
  TextWindowsSpec spec;
  spec.path = config.path();
  if (!config.tokenizer().has_characters()) {
    CAPSTAN_ASSIGN_OR_RETURN(
        const ModelTokenizer tokenizer,
        TokenizerToRead(config.tokenizer().folder(), "tokenizer.folder"));
    spec.tokenizer = tokenizer.tokenizer;
    spec.tokenizer_name =
        tokenizer.folder.empty() ? "train_data" : tokenizer.folder;
  }
  if (config.sequence_length() != 0) {
    spec.sequence_length = config.sequence_length();
  }
  spec.stride = config.stride();
  spec.validation_fraction = config.validation_fraction();
  CAPSTAN_ASSIGN_OR_RETURN(spec.ends, EndsOf(config));
  return OpenTextWindows(spec);
}

absl::StatusOr<WindowData> OpenFolder(const Config& config) {
  for (const auto& [field, set] :
       {std::pair<const char*, bool>{"sequence_length",
                                     config.sequence_length() != 0},
        {"stride", config.stride() != 0},
        {"tokenizer", config.has_tokenizer()},
        {"validation_fraction", config.validation_fraction() != 0},
        {"ends", config.ends() != AROUND}}) {
    if (!set) continue;
    return FieldError(field,
                      "is for a text: the windows of a folder are cut already");
  }
  absl::StatusOr<WindowData> data = OpenNpyFolder(config.folder());
  if (!data.ok()) return FieldError("folder", data.status().message());
  return data;
}

}  // namespace

LladaWindows::LladaWindows(std::string source, bool shuffle, WindowData data,
                           std::shared_ptr<const Windows> windows)
    : source_(std::move(source)),
      shuffle_(shuffle),
      data_(std::move(data)),
      windows_(std::move(windows)) {}

absl::StatusOr<std::unique_ptr<LladaWindows>> LladaWindows::Create(
    const Config& config) {
  if (config.path().empty() && config.folder().empty()) {
    return FieldError(
        "path", "is not set: name a text file, or a folder of .npy files");
  }
  const bool folder = config.has_folder();
  CAPSTAN_ASSIGN_OR_RETURN(WindowData data,
                           folder ? OpenFolder(config) : OpenText(config));
  const std::shared_ptr<const Windows> train = data.train;
  return std::unique_ptr<LladaWindows>(
      new LladaWindows(folder ? config.folder() : config.path(),
                       config.shuffle(), std::move(data), train));
}

absl::Status LladaWindows::Read(absl::Span<const int64_t> indices,
                                Batch* batch) const {
  const std::array<int64_t, 2> shape = {static_cast<int64_t>(indices.size()),
                                        data_.sequence_length};
  at::Tensor& ids = (*batch)[kInputIds];
  if (!ids.defined() || ids.sizes() != at::IntArrayRef(shape)) {
    ids = at::empty(shape, at::kLong);
  }
  int64_t* out = ids.mutable_data_ptr<int64_t>();
  for (int64_t index : indices) {
    if (index < 0 || index >= size()) {
      return absl::OutOfRangeError(absl::StrCat(
          source_, ": there is no window ", index, ", only 0 to ", size() - 1));
    }
    windows_->Read(index, out);
    // All were in it when the file was opened.
    for (int64_t i = 0; i < data_.sequence_length; ++i) {
      if (out[i] >= 0 && out[i] < data_.vocab_size) continue;
      return absl::DataLossError(
          absl::StrCat(source_, " has changed since the run began: window ",
                       index, " has a token now that isn't in its vocabulary"));
    }
    out += data_.sequence_length;
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<DatasetReader>> LladaWindows::Validation()
    const {
  if (data_.validation == nullptr) return nullptr;
  WindowData data = data_;
  data.notes.clear();  // those of the same folder
  const std::shared_ptr<const Windows> validation = data.validation;
  return std::unique_ptr<DatasetReader>(new LladaWindows(
      source_, /*shuffle=*/false, std::move(data), validation));
}

CAPSTAN_PLUGIN(DatasetReader, LladaWindows, capstan::llada_windows::Config,
               "overlapping windows of a text, or of LLaDA's .npy files");

}  // namespace capstan::llada_windows
