// SPDX-License-Identifier: Apache-2.0
#include "plugins/model/common/config.h"

#include "absl/strings/str_cat.h"
#include "base/json.h"
#include "base/status.h"
#include "plugins/sdk/lib/quantized_folder.h"

namespace capstan {

void ConfigCheck::Size(const char* key, int64_t value, int64_t most) {
  if (value >= 1 && value <= most) return;
  Fail(key, absl::StrCat("must be from 1 to ", most, ", is ", value));
}

void ConfigCheck::Total(const char* key, double parameters) {
  constexpr double kMost = 1e15;
  if (parameters <= kMost) return;
  Fail(key, absl::StrCat("makes, with the other sizes, a model of ", parameters,
                         " parameters; at most ", kMost, " are possible"));
}

void ConfigCheck::Positive(const char* key, double value) {
  if (value > 0.0 && value < std::numeric_limits<double>::infinity()) return;
  Fail(key, absl::StrCat("must be greater than 0, is ", value));
}

void ConfigCheck::Rate(const char* key, double value) {
  if (value >= 0.0 && value < 1.0) return;
  Fail(key, absl::StrCat("must be at least 0 and below 1, is ", value));
}

void ConfigCheck::Token(const char* key, absl::optional<int64_t> id,
                        int64_t vocab_size) {
  if (!id.has_value() || (*id >= 0 && *id < vocab_size)) return;
  Fail(key, absl::StrCat("must be below vocab_size, which is ", vocab_size,
                         ", and not negative, is ", *id));
}

void ConfigCheck::Fail(const char* key, const std::string& problem) {
  if (ok()) status_ = FieldError(key, problem);
}

absl::optional<int64_t> ConfigKeys::Token(const char* key) {
  const ConfigJson* value = Find(key);
  if (value == nullptr) return absl::nullopt;
  if (value->is_array() && !value->empty()) value = &value->front();
  const absl::optional<int64_t> id = JsonInteger(*value);
  if (!id.has_value()) Fail(key, "must be a token id", *value);
  return id;
}

void ConfigKeys::RejectQuantized() {
  const ConfigJson* const value = Find("quantization_config");
  if (value == nullptr) return;
  const absl::Status readable = CheckQuantizationConfig(JsonText(*value));
  if (!readable.ok()) Fail("quantization_config", readable.message());
}

absl::Status ConfigKeys::FailIf(const absl::Status& check) {
  if (!check.ok()) Fail(FieldOf(check).value_or(""), check.message());
  return status();
}

const char* DtypeName(c10::ScalarType dtype) {
  return dtype == c10::ScalarType::BFloat16 ? "bfloat16"
         : dtype == c10::ScalarType::Half   ? "float16"
                                            : "float32";
}

}  // namespace capstan
