// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_PLUGINS_MODEL_DECODER_DECODER_H_
#define CAPSTAN_PLUGINS_MODEL_DECODER_DECODER_H_

#include <memory>
#include <utility>

#include "absl/status/statusor.h"
#include "plugins/model/decoder/decoder.pb.h"
#include "plugins/model/decoder/decoder_model.h"

namespace capstan::decoder {

// A decoder of the family that a config.json names.
class Decoder final : public DecoderModel {
 public:
  // Opens and validates the files that the config names.
  static absl::StatusOr<std::unique_ptr<Decoder>> Create(const Config& config);

 private:
  explicit Decoder(DecoderCheckpoint checkpoint)
      : DecoderModel(std::move(checkpoint)) {}
};

}  // namespace capstan::decoder

#endif  // CAPSTAN_PLUGINS_MODEL_DECODER_DECODER_H_
