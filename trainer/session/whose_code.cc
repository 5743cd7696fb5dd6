// SPDX-License-Identifier: Apache-2.0
#include "trainer/session/whose_code.h"

#include <mutex>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/status.h"

namespace capstan {
namespace {

std::mutex mutex;

std::string& LeftText() {
  static auto* const text = new std::string;
  return *text;
}

}  // namespace

std::atomic<const WhoseCode*> WhoseCode::current_{nullptr};
std::atomic<bool> WhoseCode::left_{false};

std::string WhoseCode::Text() const {
  const absl::string_view function(function_);
  return absl::StrCat(whose_, function.empty() ? "" : ", ", function,
                      unit_ == nullptr
                          ? ""
                          : absl::StrCat(function.empty() ? ", " : " of ",
                                         "unit '", *unit_, "'"));
}

void WhoseCode::Leave() const {
  const std::lock_guard<std::mutex> lock(mutex);
  // The first that it leaves is the innermost.
  if (left_.exchange(true)) return;
  LeftText() = Text();
}

void WhoseCode::ForgetLeft() {
  const std::lock_guard<std::mutex> lock(mutex);
  left_ = false;
}

absl::Status WhoseCode::Explain(const absl::Status& status) {
  if (!absl::IsInternal(status)) return status;
  const std::lock_guard<std::mutex> lock(mutex);
  return left_.exchange(false) ? Annotate(status, LeftText()) : status;
}

}  // namespace capstan
