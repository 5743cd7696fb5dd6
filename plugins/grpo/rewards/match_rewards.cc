// SPDX-License-Identifier: Apache-2.0
//
// Rewards of answers that are what a row's field says.
#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/types/optional.h"
#include "base/status.h"
#include "plugins/grpo/rewards/each_answer.h"
#include "plugins/grpo/rewards/kinds.h"
#include "plugins/grpo/rewards/math_answer.h"
#include "plugins/grpo/rewards/row_field.h"
#include "plugins/sdk/lib/field_check.h"
#include "text/pattern/pattern.h"

namespace capstan::grpo {
namespace {

constexpr double kDefaultTolerance = 1e-6;

using PatternPtr = std::shared_ptr<const Pattern>;

// Null for "".
absl::StatusOr<PatternPtr> Compiled(const char* field,
                                    const std::string& pattern) {
  if (pattern.empty()) return PatternPtr();
  absl::StatusOr<std::unique_ptr<Pattern>> compiled = Pattern::Compile(pattern);
  if (!compiled.ok()) return FieldError(field, compiled.status().message());
  return PatternPtr(*std::move(compiled));
}

// The last match, without white space around it; unset without one.
absl::optional<std::string> LastMatch(const Pattern& pattern,
                                      absl::string_view text) {
  const auto found = pattern.FindAll(text);
  if (!found.ok() || found->empty()) return absl::nullopt;
  return std::string(absl::StripAsciiWhitespace(found->back()));
}

// What a row's field says is right, by what is common to these configs.
class Reference {
 public:
  template <typename Config>
  static absl::StatusOr<Reference> Create(const Config& config) {
    Reference reference;
    reference.field_ = config.has_field() ? config.field() : "answer";
    if (reference.field_.empty()) {
      return FieldError("field", "must name a field of the rows");
    }
    CAPSTAN_ASSIGN_OR_RETURN(reference.pattern_,
                             Compiled("field_pattern", config.field_pattern()));
    return reference;
  }

  // Unset if the field is null.
  absl::StatusOr<absl::optional<std::string>> Of(absl::string_view row) const {
    CAPSTAN_ASSIGN_OR_RETURN(const nlohmann::ordered_json value,
                             RowField(row, field_));
    if (value.is_null()) return absl::optional<std::string>();
    const std::string text = TextOf(value);
    if (pattern_ == nullptr) {
      return absl::make_optional<std::string>(absl::StripAsciiWhitespace(text));
    }
    absl::optional<std::string> found = LastMatch(*pattern_, text);
    if (found.has_value()) return found;
    return absl::InvalidArgumentError(
        absl::StrCat("the row's field \"", field_, "\", ", Quoted(text),
                     ", has no match of field_pattern"));
  }

 private:
  std::string field_;
  PatternPtr pattern_;
};

// One of two kinds, which differ in how they compare.
class MatchReward : public EachAnswer {
 public:
  MatchReward(Reference reference, PatternPtr pattern)
      : reference_(std::move(reference)), pattern_(std::move(pattern)) {}

  absl::Status CheckRow(absl::string_view row) const override {
    return reference_.Of(row).status();
  }

 private:
  absl::StatusOr<double> ScoreOne(const Answer& answer) const override {
    CAPSTAN_ASSIGN_OR_RETURN(const absl::optional<std::string> reference,
                             reference_.Of(answer.row));
    if (!reference.has_value()) return std::nan("");
    if (pattern_ == nullptr) {
      return Same(Whole(answer.text), *reference) ? 1.0 : 0.0;
    }
    const absl::optional<std::string> found = LastMatch(*pattern_, answer.text);
    return found.has_value() && Same(*found, *reference) ? 1.0 : 0.0;
  }

  // What counts of a text without a pattern.
  virtual std::string Whole(absl::string_view text) const = 0;
  virtual bool Same(const std::string& answer,
                    const std::string& reference) const = 0;

  const Reference reference_;
  const PatternPtr pattern_;
};

class ExactMatchReward final : public MatchReward {
 public:
  ExactMatchReward(Reference reference, PatternPtr pattern, bool ignore_case)
      : MatchReward(std::move(reference), std::move(pattern)),
        ignore_case_(ignore_case) {}

 private:
  std::string Whole(absl::string_view text) const override {
    return std::string(absl::StripAsciiWhitespace(text));
  }
  bool Same(const std::string& answer,
            const std::string& reference) const override {
    return ignore_case_ ? absl::AsciiStrToLower(answer) ==
                              absl::AsciiStrToLower(reference)
                        : answer == reference;
  }

  const bool ignore_case_;
};

class MathAnswerReward final : public MatchReward {
 public:
  MathAnswerReward(Reference reference, PatternPtr pattern, double tolerance)
      : MatchReward(std::move(reference), std::move(pattern)),
        tolerance_(tolerance) {}

 private:
  std::string Whole(absl::string_view text) const override {
    return FinalAnswer(text);
  }
  bool Same(const std::string& answer,
            const std::string& reference) const override {
    // A row may have the whole solution.
    return SameAnswer(answer, MarkedAnswer(reference).value_or(reference),
                      tolerance_);
  }

  const double tolerance_;
};

class RegexReward final : public EachAnswer {
 public:
  explicit RegexReward(PatternPtr pattern) : pattern_(std::move(pattern)) {}

 private:
  absl::StatusOr<double> ScoreOne(const Answer& answer) const override {
    return LastMatch(*pattern_, answer.text).has_value() ? 1.0 : 0.0;
  }

  const PatternPtr pattern_;
};

}  // namespace

MadeReward NewExactMatch(const ExactMatch& config) {
  CAPSTAN_ASSIGN_OR_RETURN(Reference reference, Reference::Create(config));
  CAPSTAN_ASSIGN_OR_RETURN(PatternPtr pattern,
                           Compiled("pattern", config.pattern()));
  return std::make_unique<ExactMatchReward>(
      std::move(reference), std::move(pattern), config.ignore_case());
}

MadeReward NewMathAnswer(const MathAnswer& config) {
  CAPSTAN_ASSIGN_OR_RETURN(Reference reference, Reference::Create(config));
  CAPSTAN_ASSIGN_OR_RETURN(PatternPtr pattern,
                           Compiled("pattern", config.pattern()));
  const double tolerance =
      config.has_tolerance() ? config.tolerance() : kDefaultTolerance;
  CAPSTAN_RETURN_IF_ERROR(CheckField(tolerance >= 0.0 && tolerance < 1.0,
                                     "tolerance", "at least 0 and less than 1",
                                     tolerance));
  return std::make_unique<MathAnswerReward>(std::move(reference),
                                            std::move(pattern), tolerance);
}

MadeReward NewRegex(const Regex& config) {
  if (config.pattern().empty()) return FieldError("pattern", "must be set");
  CAPSTAN_ASSIGN_OR_RETURN(PatternPtr pattern,
                           Compiled("pattern", config.pattern()));
  return std::make_unique<RegexReward>(std::move(pattern));
}

}  // namespace capstan::grpo
