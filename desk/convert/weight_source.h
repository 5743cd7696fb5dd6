// SPDX-License-Identifier: Apache-2.0
//
// The weights that files of PyTorch, DeepSpeed or torch.distributed.checkpoint
// have, by name, and what else is in them.
#ifndef CAPSTAN_DESK_CONVERT_WEIGHT_SOURCE_H_
#define CAPSTAN_DESK_CONVERT_WEIGHT_SOURCE_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/optional.h"
#include "base/files.h"
#include "desk/convert/tensor_view.h"
#include "desk/convert/torch_file.h"

namespace capstan {

struct NamedTensor {
  std::string name;
  TensorView tensor;
};

struct WeightSource {
  std::string format;  // "a DeepSpeed ZeRO-3 checkpoint of 4 ranks"
  // The folder that may have the model's config and tokenizer.
  std::string folder;
  std::vector<NamedTensor> weights;  // in the files' order
  // An optimizer's state by its kind ("exp_avg") and the weight's name.
  std::map<std::string, std::map<std::string, TensorView>> moments;
  absl::optional<int64_t> updates;  // that the optimizer has done
  // What isn't converted, and why.
  std::vector<std::pair<std::string, std::string>> left_out;
  std::vector<std::string> notes;  // for the user, a line each
  // Tensors are views of these.
  std::vector<std::shared_ptr<const MappedFile>> files;
};

// Opens `input`: a file of torch.save's, an index of such (pytorch_model.bin.
// index.json), or a folder with one of these, of DeepSpeed's or of
// torch.distributed.checkpoint's. `key` names the dict of weights within, by
// keys with dots between ("": the one that has tensors). Names are without the
// prefixes of wrappers (DistributedDataParallel, torch.compile). Files are
// mapped, not read. Errors name the file.
absl::StatusOr<WeightSource> OpenWeightSource(const std::string& input,
                                              const std::string& key);

// Of the formats, each in a file of its own.

// Maps a file and reads it as one of torch.save's. The file is kept by
// `source`, and must outlive the result.
absl::StatusOr<std::unique_ptr<const TorchFile>> OpenTorchFile(
    const std::string& path, WeightSource* source);

// Whether `folder` is a DeepSpeed checkpoint's (global_step10/).
bool IsZeroFolder(const std::string& folder);
// Its weights as its zero_to_fp32.py puts them together, and its moments.
absl::Status ReadZeroFolder(const std::string& folder, WeightSource* source);

// Whether `folder` is of torch.distributed.checkpoint.
bool IsDistributedFolder(const std::string& folder);
absl::Status ReadDistributedFolder(const std::string& folder,
                                   const std::string& key,
                                   WeightSource* source);

}  // namespace capstan

#endif  // CAPSTAN_DESK_CONVERT_WEIGHT_SOURCE_H_
