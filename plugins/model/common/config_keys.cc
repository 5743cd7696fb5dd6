// SPDX-License-Identifier: Apache-2.0
#include "plugins/model/common/config_keys.h"

#include "absl/strings/str_cat.h"
#include "base/json.h"

namespace capstan {

absl::StatusOr<ConfigJson> ParseObject(const std::string& path,
                                       const std::string& text) {
  ConfigJson json = ParseJson<ConfigJson>(text);
  if (json.is_object()) return json;
  return absl::InvalidArgumentError(absl::StrCat(path, ": not a JSON object"));
}

int64_t ConfigKeys::Int(const char* key, absl::optional<int64_t> otherwise) {
  const ConfigJson* value = Find(key);
  if (value == nullptr) {
    if (!otherwise.has_value()) Fail(key, "is missing");
    return otherwise.value_or(1);
  }
  const absl::optional<int64_t> integer = JsonInteger(*value);
  if (integer.has_value()) return *integer;
  Fail(key, absl::StrCat(value->is_number() ? "must be an integer below 2^63"
                                            : "must be an integer",
                         ", is ", value->dump()));
  return 1;
}

double ConfigKeys::Double(const char* key, double otherwise) {
  const ConfigJson* value = Find(key);
  if (value == nullptr) return otherwise;
  if (value->is_number()) return value->get<double>();
  Fail(key, absl::StrCat("must be a number, is ", value->dump()));
  return otherwise;
}

bool ConfigKeys::Bool(const char* key, bool otherwise) {
  const ConfigJson* value = Find(key);
  if (value == nullptr) return otherwise;
  if (value->is_boolean()) return value->get<bool>();
  Fail(key, absl::StrCat("must be true or false, is ", value->dump()));
  return otherwise;
}

absl::optional<int64_t> ConfigKeys::Token(const char* key) {
  const ConfigJson* value = Find(key);
  if (value == nullptr) return absl::nullopt;
  if (value->is_array() && !value->empty()) value = &value->front();
  const absl::optional<int64_t> id = JsonInteger(*value);
  if (id.has_value()) return id;
  Fail(key, absl::StrCat("must be a token id, is ", value->dump()));
  return absl::nullopt;
}

void ConfigKeys::Only(const char* key, const ConfigJson& value,
                      const ConfigJson& or_value) {
  const ConfigJson* found = Find(key);
  if (found == nullptr || *found == value || *found == or_value) return;
  Fail(key,
       absl::StrCat(found->dump(), " is not implemented, only ", value.dump()));
}

void ConfigKeys::Must(const char* key, const ConfigJson& value) {
  if (Find(key) == nullptr) {
    Fail(key, absl::StrCat("is missing, must be ", value.dump()));
  }
  Only(key, value, value);
}

void ConfigKeys::RejectQuantized() {
  if (Find("quantization_config") == nullptr) return;
  Fail("quantization_config",
       "is not implemented, only weights that aren't quantized");
}

const ConfigJson* ConfigKeys::Find(const char* key) const {
  const auto it = json_.find(key);
  return it == json_.end() || it->is_null() ? nullptr : &*it;
}

void ConfigKeys::Fail(absl::string_view key, absl::string_view problem) {
  if (!status_.ok()) return;
  status_ =
      absl::InvalidArgumentError(absl::StrCat(path_, ": ", key, " ", problem));
}

const char* DtypeName(c10::ScalarType dtype) {
  return dtype == c10::ScalarType::BFloat16 ? "bfloat16"
         : dtype == c10::ScalarType::Half   ? "float16"
                                            : "float32";
}

}  // namespace capstan
