// SPDX-License-Identifier: Apache-2.0
//
// A config's model with its adapter.
#ifndef CAPSTAN_INFERENCE_LOAD_CREATE_MODEL_H_
#define CAPSTAN_INFERENCE_LOAD_CREATE_MODEL_H_

#include <google/protobuf/any.pb.h>

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "absl/types/optional.h"
#include "host/config/load_config.h"
#include "host/plugins/plugin_host.h"
#include "plugins/sdk/lib/lora.h"
#include "plugins/sdk/model.h"

namespace capstan {

// Creates the config's model with the adapter that the config asks for,
// returned in `lora` if not null. Errors name the config location.
absl::StatusOr<std::unique_ptr<Model>> CreateModel(
    const LoadedConfig& loaded, PluginHost& host,
    absl::optional<AdapterSpec>* lora = nullptr);

// A model's config with the vocab_size `rows`. INVALID_ARGUMENT if it has no
// such field.
absl::StatusOr<google::protobuf::Any> WithVocabulary(
    const google::protobuf::Any& model, int64_t rows);

}  // namespace capstan

#endif  // CAPSTAN_INFERENCE_LOAD_CREATE_MODEL_H_
