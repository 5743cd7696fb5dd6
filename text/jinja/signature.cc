// SPDX-License-Identifier: Apache-2.0
#include "text/jinja/signature.h"

#include <algorithm>
#include <cstddef>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace capstan::jinja {

void CheckArguments(const Signature& signature, absl::string_view function,
                    const Arguments& given) {
  absl::string_view parameters = signature.parameters;
  if (parameters == "*") return;
  const bool unnamed = absl::ConsumeSuffix(&parameters, "/");
  const std::vector<absl::string_view> names =
      absl::StrSplit(parameters, ',', absl::SkipEmpty());
  given.AtMost(names.size(), function);
  std::vector<bool> has(names.size());
  std::fill_n(has.begin(), given.positional.size(), true);
  for (const auto& [name, value] : given.named) {
    const auto found = std::find(names.begin(), names.end(), name);
    if (found == names.end() || unnamed) {
      throw Error(
          absl::StrCat(function, " has no argument of the name `", name, "`"));
    }
    const size_t place = static_cast<size_t>(found - names.begin());
    if (has[place]) {
      throw Error(absl::StrCat(function, " is given `", name, "` twice"));
    }
    has[place] = true;
  }
  for (int i = 0; i < signature.required; ++i) {
    if (has[static_cast<size_t>(i)]) continue;
    throw Error(absl::StrCat(function, " lacks the argument `",
                             names[static_cast<size_t>(i)], "`"));
  }
}

}  // namespace capstan::jinja
