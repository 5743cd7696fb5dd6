// SPDX-License-Identifier: Apache-2.0
//
// The families of decoders: what each model_type's config.json means. A file of
// families/ describes one and registers it; nothing else names it.
#ifndef CAPSTAN_PLUGINS_MODEL_DECODER_FAMILY_H_
#define CAPSTAN_PLUGINS_MODEL_DECODER_FAMILY_H_

#include <c10/core/ScalarType.h>

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "plugins/model/common/config.h"
#include "plugins/model/decoder/decoder_config.h"
#include "plugins/sdk/model_types.h"

namespace capstan::decoder {

using Json = ConfigJson;

struct Family {
  const char* model_type;
  const char* architecture;  // transformers' class, "..ForCausalLM"
  // Reads config.json into a description, with the defaults of transformers'
  // config class. What the model doesn't implement is a Fail of `keys`.
  void (*read)(ConfigKeys& keys, DecoderConfig* config);
  // The part of config.json to read and save in place of all of it, for a
  // decoder that is a part of its model; null: all.
  Json (*text_part)(const Json& json) = nullptr;
};

// Registers a family at load time. model_type must be a constant that
// CAPSTAN_READS_MODEL_TYPE has defined, which tells the trainer, too.
class RegisterFamily {
 public:
  explicit RegisterFamily(const Family& family);
};

// By model_type.
std::vector<const Family*> Families();

// Reads the sizes in a folder's config.json: as its model_type says, or with
// `read`. Then applies FinishSizes and keeps the texts. An error names the file
// and the key; for an unknown model_type it lists those known.
absl::StatusOr<DecoderConfig> ReadFolder(const std::string& folder);
using ReadKeys = void (*)(ConfigKeys& keys, DecoderConfig* config);
absl::StatusOr<DecoderConfig> ReadFolder(const std::string& folder,
                                         ReadKeys read);
// The same for a config.json without a folder of weights around it; a
// generation_config.json beside it counts.
absl::StatusOr<DecoderConfig> ReadConfigFile(const std::string& path);

// The class of config.family's that has this head.
std::string Architecture(const DecoderConfig& config);

// The source config's keys, or none.
Json SourceKeys(const DecoderConfig& config);

// Adds to a model's config.json, which has these ropes, the spelling of
// transformers 4 (rope_theta, rope_scaling, Gemma 3's rope_local_base_freq) or
// 5 (rope_parameters) that it lacks. Of two, the second is that of layers with
// a window.
void AddRopeSpellings(const std::vector<Rope>& ropes, Json* json);

// Adds the dtype of the weights and the token ids to `json`, and writes it to
// config.json, and the ids also to generation_config.json.
absl::Status WriteConfigFiles(const DecoderConfig& config, Json json,
                              const std::string& folder, c10::ScalarType dtype);

}  // namespace capstan::decoder

#endif  // CAPSTAN_PLUGINS_MODEL_DECODER_FAMILY_H_
