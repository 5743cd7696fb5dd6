// SPDX-License-Identifier: Apache-2.0
#include "desk/runs/conditions.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace capstan {
namespace {

bool MeetsOne(const std::string& value, const Condition& condition) {
  const std::string& wanted = condition.value;
  if (condition.op == "~") return absl::StrContains(value, wanted);
  double a, b;
  const bool numbers =
      absl::SimpleAtod(value, &a) && absl::SimpleAtod(wanted, &b);
  if (condition.op == "=") return numbers ? a == b : value == wanted;
  if (!numbers) return false;
  return condition.op == "<"    ? a < b
         : condition.op == "<=" ? a <= b
         : condition.op == ">"  ? a > b
                                : a >= b;
}

}  // namespace

absl::StatusOr<Condition> ParseCondition(absl::string_view text) {
  const size_t at = text.find_first_of("<>=!~");
  Condition condition;
  if (at != text.npos) {
    const bool two = at + 1 < text.size() && text[at + 1] == '=';
    condition.op = std::string(text.substr(at, two ? 2 : 1));
    condition.name =
        std::string(absl::StripAsciiWhitespace(text.substr(0, at)));
    condition.value = std::string(
        absl::StripAsciiWhitespace(text.substr(at + condition.op.size())));
    if (condition.op == "==") condition.op = "=";
  }
  const bool compares =
      absl::StrContains("<=>=", condition.op) && condition.op != "=";
  double number;
  if (condition.name.empty() || condition.value.empty() ||
      condition.op == "!" || condition.op == "~=" ||
      (compares &&
       (!absl::SimpleAtod(condition.value, &number) || std::isnan(number)))) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--where: \"", text,
        "\" isn't NAME<NUMBER (or <=, >, >=), NAME=VALUE (or !=) or NAME~TEXT, "
        "as in 'optimizer.learning_rate<1e-4'"));
  }
  return condition;
}

std::vector<std::string> ValuesOf(const ListedRun& run,
                                  const std::string& name) {
  if (name == "name") return {run.name};
  if (name == "status") return {StatusName(run.status)};
  if (name == "steps") return {absl::StrCat(run.steps)};
  if (name == "seconds") return {absl::StrFormat("%.17g", run.seconds)};
  if (name == "bytes") return {absl::StrCat(run.bytes)};
  if (name == "tag") return run.tags;
  const absl::optional<double> metric = run.Metric(name);
  if (metric.has_value()) return {absl::StrFormat("%.17g", *metric)};
  const auto field = run.fields.find(name);
  return field == run.fields.end() ? std::vector<std::string>() : field->second;
}

bool Meets(const ListedRun& run, const Condition& condition) {
  const std::vector<std::string> values = ValuesOf(run, condition.name);
  Condition one = condition;
  if (condition.op == "!=") one.op = "=";
  const bool any =
      std::any_of(values.begin(), values.end(),
                  [&](const std::string& v) { return MeetsOne(v, one); });
  return condition.op == "!=" ? !any : any;
}

}  // namespace capstan
