// SPDX-License-Identifier: Apache-2.0
#include "plugins/model/common/config_check.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace capstan {

void ConfigCheck::Size(const char* key, int64_t value, int64_t most) {
  if (value >= 1 && value <= most) return;
  Fail(key, absl::StrCat("must be from 1 to ", most, ", is ", value));
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

void ConfigCheck::Fail(const char* key, std::string text) {
  if (ok()) problem_ = ConfigProblem{key, std::move(text)};
}

absl::Status ConfigCheck::status() const {
  return ok() ? absl::OkStatus() : FieldError(problem_->key, problem_->text);
}

}  // namespace capstan
