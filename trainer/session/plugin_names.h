// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TRAINER_SESSION_PLUGIN_NAMES_H_
#define CAPSTAN_TRAINER_SESSION_PLUGIN_NAMES_H_

#include <string>

namespace capstan {

// A run's plugins for errors, each with its slot in the config: "model
// capstan.llama".
struct PluginNames {
  std::string model = "model";
  std::string objective = "objective";
  std::string strategy = "strategy";
  std::string optimizer = "optimizer";
  std::string train_data = "train_data";
};

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_SESSION_PLUGIN_NAMES_H_
