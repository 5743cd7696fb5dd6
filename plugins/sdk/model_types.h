// SPDX-License-Identifier: Apache-2.0
//
// How a model plugin says, before its code runs, which folders it opens in
// generate, chat, merge and eval: those with a model_type in config.json.
#ifndef CAPSTAN_PLUGINS_SDK_MODEL_TYPES_H_
#define CAPSTAN_PLUGINS_SDK_MODEL_TYPES_H_

// Defines the constant `name`, a model_type that `pretrained` reads, in the ELF
// section "capstan_types". Use the constant, so that the linker keeps it. At
// namespace scope, once for each model_type:
//   CAPSTAN_READS_MODEL_TYPE(kModelType, "qwen3");
#define CAPSTAN_READS_MODEL_TYPE(name, model_type)                           \
  static const char name[] __attribute__((section("capstan_types"), used)) = \
      model_type

#endif  // CAPSTAN_PLUGINS_SDK_MODEL_TYPES_H_
