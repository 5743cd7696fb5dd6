// SPDX-License-Identifier: Apache-2.0
//
// Protobuf's errors about a config's text, in terms of the config.
#ifndef CAPSTAN_HOST_CONFIG_TEXT_ERRORS_H_
#define CAPSTAN_HOST_CONFIG_TEXT_ERRORS_H_

#include <google/protobuf/message.h>

#include <string>

#include "host/plugins/plugin_host.h"

namespace capstan {

struct TextError {
  // From 0: of the word that is wrong, which may be before protobuf's.
  int line;
  int column;
  std::string text;
  std::string code;        // base/error_code.h
  std::string after = {};  // the line as it should be; "": not known
};

// For protobuf's `message` about `line` and `column`, from 0, of `text`.
// `parsed` is what has been read of it.
TextError InOurTerms(const std::string& message, int line, int column,
                     const std::string& text,
                     const google::protobuf::Message& parsed,
                     const PluginHost& host);

}  // namespace capstan

#endif  // CAPSTAN_HOST_CONFIG_TEXT_ERRORS_H_
