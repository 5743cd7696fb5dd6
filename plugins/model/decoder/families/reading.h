// SPDX-License-Identifier: Apache-2.0
//
// What the families' config.json have in common.
#ifndef CAPSTAN_PLUGINS_MODEL_DECODER_FAMILIES_READING_H_
#define CAPSTAN_PLUGINS_MODEL_DECODER_FAMILIES_READING_H_

#include <cstdint>
#include <string>
#include <vector>

#include "plugins/model/common/config.h"
#include "plugins/model/decoder/decoder_config.h"

namespace capstan::decoder {

// Reads the sizes and ids that all have. What `c` holds before is the default
// of transformers' config class; a 0: there is none, or none that would fit
// another model. Fails for what no family implements: dropout, quantised
// weights.
void ReadSizes(ConfigKeys& keys, DecoderConfig* c);

struct RopeReading {
  double theta = 10000.0;  // if nothing gives one
  // Whether a part of a head's channels may rotate.
  bool partial = false;
  // original_max_position_embeddings, if the file has none; 0: it may be
  // inside the rope's object.
  int64_t trained_positions = 0;
  bool yarn_is_longrope = false;  // as early files of Phi-3 call it
  // Where transformers 4 has the base and how it is stretched.
  const char* theta_key = "rope_theta";
  const char* scaling_key = "rope_scaling";
  // The key, inside rope_parameters, of this kind of layer's rope; null: there
  // is one for all.
  const char* layers = nullptr;
};
// From rope_parameters of transformers 5, or from rope_theta and rope_scaling
// of transformers 4, which goes first as there. After ReadSizes.
Rope ReadRope(ConfigKeys& keys, const DecoderConfig& c,
              const RopeReading& reading = {});

// sliding_window, of the layers with `sliding[i]`. `otherwise`, if the key is
// absent; null and 0: none.
void ReadWindow(ConfigKeys& keys, int64_t otherwise,
                const std::vector<bool>& sliding, DecoderConfig* c);

// The same for Qwen: only with use_sliding_window, and by default in the layers
// from max_window_layers on.
void ReadUpperWindows(ConfigKeys& keys, DecoderConfig* c);

// layer_types: whether each layer is "sliding_attention" (else
// "full_attention"); `otherwise`, one a layer, if the key is absent.
std::vector<bool> ReadSliding(ConfigKeys& keys, const DecoderConfig& c,
                              std::vector<bool> otherwise);

// Fails unless the activation is one that the model has.
void ReadActivation(ConfigKeys& keys, const char* key, const char* otherwise,
                    DecoderConfig* c);

}  // namespace capstan::decoder

#endif  // CAPSTAN_PLUGINS_MODEL_DECODER_FAMILIES_READING_H_
