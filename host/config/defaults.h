// SPDX-License-Identifier: Apache-2.0
//
// What a run takes where its config says nothing: the option run_defaults of
// RunConfig and of its plugins' configs (plugins/sdk/options.proto).
#ifndef CAPSTAN_HOST_CONFIG_DEFAULTS_H_
#define CAPSTAN_HOST_CONFIG_DEFAULTS_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "host/config/load_config.h"

namespace capstan {

// A text that is read before a run's own files.
struct DefaultText {
  std::string origin;  // for errors and notes: "defaults of capstan.chat"
  std::string text;

  bool operator==(const DefaultText& other) const {
    return origin == other.origin && text == other.text;
  }
};

// Returns the texts for a run of `config`, to which `overrides` were applied,
// in the order of reading. None without train_data, which makes a config a
// run's, or if it says that it is complete.
std::vector<DefaultText> DefaultsOf(const RunConfig& config,
                                    const std::vector<std::string>& overrides);

// Has each of eval_sets with the plugin of train_data read its data in the same
// way, except for what it says itself.
void InheritTrainData(LoadedConfig* loaded);

// Returns a line for each of `defaults` of which something is taken: "defaults
// of capstan.chat: objective capstan.causal_lm, train (max_epochs 3)".
std::vector<std::string> DefaultNotes(const std::vector<DefaultText>& defaults,
                                      const LoadedConfig& loaded);

// INVALID_ARGUMENT if the config lacks what every run needs: says all of it at
// once, with lines to paste.
absl::Status CheckWhole(const RunConfig& config);

}  // namespace capstan

#endif  // CAPSTAN_HOST_CONFIG_DEFAULTS_H_
