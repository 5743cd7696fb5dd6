// SPDX-License-Identifier: Apache-2.0
#include "base/error_code.h"

#include <string>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "absl/types/optional.h"

namespace capstan {
namespace {

constexpr char kCodePayload[] = "capstan/code";

}  // namespace

absl::Status WithCode(absl::Status status, absl::string_view code) {
  if (!status.ok() && !code.empty() && CodeOf(status).empty()) {
    status.SetPayload(kCodePayload, absl::Cord(code));
  }
  return status;
}

std::string CodeOf(const absl::Status& status) {
  const absl::optional<absl::Cord> code = status.GetPayload(kCodePayload);
  return code.has_value() ? std::string(*code) : "";
}

std::string TextWithCode(const absl::Status& status) {
  const std::string code = CodeOf(status);
  return code.empty() ? std::string(status.message())
                      : absl::StrCat(status.message(), " [", code, "]");
}

}  // namespace capstan
