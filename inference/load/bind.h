// SPDX-License-Identifier: Apache-2.0
//
// Gives a model the weights of a Hugging Face folder or of a checkpoint.
#ifndef CAPSTAN_INFERENCE_LOAD_BIND_H_
#define CAPSTAN_INFERENCE_LOAD_BIND_H_

#include <c10/core/Device.h>

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "inference/load/run_folders.h"
#include "plugins/sdk/model.h"

namespace capstan {

// Binds the weights in `form`, or, of a model that isn't made for that, float32
// tensors; and the bytes of packed parameters. What a folder's files have in
// that form is mapped, not copied.
absl::Status BindOnCpu(const std::string& folder, const RunFolders& runs,
                       WeightForm form, Model& model);

// Generator::BindOn's work; returns the name of the weights' dtype.
absl::StatusOr<std::string> BindOnGpu(const std::string& folder,
                                      const RunFolders& runs, WeightForm form,
                                      at::Device device, Model& model);

}  // namespace capstan

#endif  // CAPSTAN_INFERENCE_LOAD_BIND_H_
