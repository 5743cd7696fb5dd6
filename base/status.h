// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_BASE_STATUS_H_
#define CAPSTAN_BASE_STATUS_H_

#include <stdexcept>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/optional.h"

namespace capstan {

// An INVALID_ARGUMENT error about a field of a plugin's config, e.g.
// FieldError("bucket_cap_mib", "must be greater than 0, is -3"). The core adds
// the config file, line and column where the field was set.
absl::Status FieldError(absl::string_view field, absl::string_view problem);

// The field named by FieldError, if `status` came from it.
absl::optional<std::string> FieldOf(const absl::Status& status);

// `status` with another message; keeps payloads.
absl::Status WithMessage(const absl::Status& status, absl::string_view message);

// Prefixes the message with "context: "; keeps payloads.
absl::Status Annotate(const absl::Status& status, absl::string_view context);

// A collective failed: a peer is gone or the network broke. Never the root
// cause, so the launcher prints it after the errors that are.
class CommunicationError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
  ~CommunicationError() override;
};

// The exception in flight as a Status: RESOURCE_EXHAUSTED for out-of-memory,
// UNAVAILABLE for CommunicationError, else INTERNAL. Keeps only the first line
// of LibTorch's messages, as the rest is a stack trace. Call inside a catch
// block.
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

#endif  // CAPSTAN_BASE_STATUS_H_
