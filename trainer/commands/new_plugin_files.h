// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TRAINER_COMMANDS_NEW_PLUGIN_FILES_H_
#define CAPSTAN_TRAINER_COMMANDS_NEW_PLUGIN_FILES_H_

namespace capstan {

// A file of trainer/commands/new_plugin, by its path there.
struct NewPluginFile {
  const char* path;
  const char* text;
};

// Made by the build; the last has a null path.
extern const NewPluginFile kNewPluginFiles[];

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_COMMANDS_NEW_PLUGIN_FILES_H_
