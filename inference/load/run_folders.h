// SPDX-License-Identifier: Apache-2.0
//
// What loading a model has to know of the folders that a trainer writes. The
// trainer implements it, so that nothing here depends on its checkpoints.
#ifndef CAPSTAN_INFERENCE_LOAD_RUN_FOLDERS_H_
#define CAPSTAN_INFERENCE_LOAD_RUN_FOLDERS_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/optional.h"
#include "host/config/load_config.h"
#include "plugins/sdk/model.h"

namespace capstan {

class RunFolders {
 public:
  virtual ~RunFolders() = default;

  virtual bool IsCheckpoint(const std::string& folder) const = 0;
  // The newest complete checkpoint in a run's folder; "" if there is none.
  virtual std::string NewestCheckpoint(const std::string& run) const = 0;
  // The text of a checkpoint's config, for ParseConfig.
  virtual absl::StatusOr<std::string> CheckpointConfig(
      const std::string& folder) const = 0;
  // A checkpoint's master weights, in the order of `specs`. `initial` writes a
  // frozen parameter's whole value as the run's seed determines it.
  using InitialValues =
      std::function<absl::Status(int index, uint64_t seed, float* out)>;
  virtual absl::StatusOr<std::vector<at::Tensor>> CheckpointWeights(
      const std::string& folder, const std::vector<ParameterSpec>& specs,
      const InitialValues& initial) const = 0;

  // The config of the run that made a folder (OUTPUT/final); nullopt if there
  // was none or one of its plugins is missing. Where it has been moved, paths
  // are only the last components of what they were.
  virtual absl::optional<RunConfig> RunOf(
      const std::string& folder, const ConfigContext& context) const = 0;

  // An error if the adapter in `adapter` says that it was trained on other
  // weights than those in `base`. Returns a note for the user if it doesn't say
  // on which, else "".
  virtual absl::StatusOr<std::string> CheckBaseWeights(
      const std::string& adapter, const std::string& base) const = 0;
  // An error of the same kind for a checkpoint, which has only the weights that
  // were trained.
  virtual absl::Status CheckFrozenWeights(const std::string& checkpoint,
                                          const std::string& base) const = 0;
};

}  // namespace capstan

#endif  // CAPSTAN_INFERENCE_LOAD_RUN_FOLDERS_H_
