// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_PLUGINS_SDK_STATUS_H_
#define CAPSTAN_PLUGINS_SDK_STATUS_H_

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/optional.h"

namespace capstan {

// An INVALID_ARGUMENT error about one field of a plugin's config, e.g.
// FieldError("bucket_cap_mib", "must be greater than 0, is -3"). The core adds
// the config file, line and column where the field was set.
absl::Status FieldError(absl::string_view field, absl::string_view problem);

// The field that FieldError named, if `status` came from there.
absl::optional<std::string> FieldOf(const absl::Status& status);

// `status` with "context: " before its message; payloads are kept.
absl::Status Annotate(const absl::Status& status, absl::string_view context);

// The exception in flight as a Status: RESOURCE_EXHAUSTED for out-of-memory,
// UNAVAILABLE for a failed collective (CommunicationError), else INTERNAL.
// Only the first line of LibTorch's messages is kept: the rest is a stack
// trace. Call it inside a catch block.
absl::Status CurrentExceptionToStatus();

}  // namespace capstan

#define CAPSTAN_RETURN_IF_ERROR(expr)                \
  do {                                               \
    const absl::Status capstan_status = (expr);      \
    if (!capstan_status.ok()) return capstan_status; \
  } while (false)

#define CAPSTAN_CONCAT_INNER(a, b) a##b
#define CAPSTAN_CONCAT(a, b) CAPSTAN_CONCAT_INNER(a, b)

// CAPSTAN_ASSIGN_OR_RETURN(auto x, StatusOrReturningCall());
#define CAPSTAN_ASSIGN_OR_RETURN(lhs, expr)                                  \
  CAPSTAN_ASSIGN_OR_RETURN_INNER(CAPSTAN_CONCAT(capstan_or_, __LINE__), lhs, \
                                 expr)
#define CAPSTAN_ASSIGN_OR_RETURN_INNER(tmp, lhs, expr) \
  auto tmp = (expr);                                   \
  if (!tmp.ok()) return tmp.status();                  \
  lhs = *std::move(tmp)

#endif  // CAPSTAN_PLUGINS_SDK_STATUS_H_
