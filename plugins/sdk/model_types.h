// SPDX-License-Identifier: Apache-2.0
//
// How a model plugin tells the trainer which folders it opens, before any of
// its code runs: generate, chat, merge and eval take the plugin that reads the
// model_type of a folder's config.json.
#ifndef CAPSTAN_PLUGINS_SDK_MODEL_TYPES_H_
#define CAPSTAN_PLUGINS_SDK_MODEL_TYPES_H_

// Defines the constant `name`, a model_type that the plugin's `pretrained`
// reads, and stores it in the ELF section "capstan_types". At namespace scope,
// in any file of the plugin, once for each model_type; use the constant, so
// that the linker keeps it:
//   CAPSTAN_READS_MODEL_TYPE(kModelType, "qwen3");
#define CAPSTAN_READS_MODEL_TYPE(name, model_type)                           \
  static const char name[] __attribute__((section("capstan_types"), used)) = \
      model_type

#endif  // CAPSTAN_PLUGINS_SDK_MODEL_TYPES_H_
