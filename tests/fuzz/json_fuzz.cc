// SPDX-License-Identifier: Apache-2.0
//
// JSON from outside (base/json): config.json, adapter_config.json, rows.
#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"
#include "base/json.h"
#include "base/json_document.h"
#include "glog/logging.h"

namespace {

using Json = nlohmann::ordered_json;

// Reads each key as each type, as a folder's reader does.
void ReadKeys(const Json& object) {
  int count = 0;
  for (const auto& item : object.items()) {
    if (++count > 20) return;  // asking for each takes time in their number
    const char* const key = item.key().c_str();
    for (int type = 0; type < 4; ++type) {
      capstan::JsonKeys keys("config.json", object);
      if (type == 0) keys.Int(key, 7);
      if (type == 1) keys.Double(key, 0.5);
      if (type == 2) keys.Bool(key, true);
      if (type == 3) keys.Only(key, "silu", nullptr);
      if (keys.status().ok()) continue;
      CHECK_EQ(keys.status().message().rfind("config.json: ", 0), 0u);
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const absl::string_view text(reinterpret_cast<const char*>(data), size);
  const auto object = capstan::ParseObject("config.json", text);
  if (object.ok()) {
    ReadKeys(*object);
    // What is written is read back, whatever the strings held.
    const std::string dump =
        object->dump(-1, ' ', false, Json::error_handler_t::replace);
    CHECK(capstan::ParseJson<Json>(dump).is_object()) << dump;
  }
  simdjson::dom::parser parser;
  simdjson::dom::element root;
  capstan::ParseJsonDocument(text, text.size(), &parser, &root);
  return 0;
}
