// SPDX-License-Identifier: Apache-2.0
//
// Rewards of an answer's length and form.
#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/status.h"
#include "plugins/grpo/rewards/each_answer.h"
#include "plugins/grpo/rewards/kinds.h"
#include "plugins/sdk/lib/field_check.h"

namespace capstan::grpo {
namespace {

class LengthReward final : public EachAnswer {
 public:
  explicit LengthReward(const Length& config) : config_(config) {}

 private:
  absl::StatusOr<double> ScoreOne(const Answer& answer) const override {
    const auto tokens = static_cast<double>(answer.tokens);
    if (answer.tokens < config_.min_tokens()) {
      return tokens / static_cast<double>(config_.min_tokens()) - 1.0;
    }
    const int64_t most = config_.max_tokens();
    if (most == 0 || answer.tokens <= most - config_.buffer()) return 0.0;
    if (answer.tokens > most) return -1.0;
    return (static_cast<double>(most - config_.buffer()) - tokens) /
           static_cast<double>(config_.buffer());
  }

  const Length config_;
};

class TagsReward final : public EachAnswer {
 public:
  explicit TagsReward(std::vector<std::string> tags) : tags_(std::move(tags)) {}

 private:
  absl::StatusOr<double> ScoreOne(const Answer& answer) const override {
    absl::string_view rest = answer.text;
    bool opened = absl::EndsWith(
        absl::StripTrailingAsciiWhitespace(answer.prompt), Opening(tags_[0]));
    for (const std::string& tag : tags_) {
      rest = absl::StripLeadingAsciiWhitespace(rest);
      if (!opened && !absl::ConsumePrefix(&rest, Opening(tag))) return 0.0;
      opened = false;
      const size_t end = rest.find(Closing(tag));
      if (end == absl::string_view::npos || HasTag(rest.substr(0, end))) {
        return 0.0;
      }
      rest.remove_prefix(end + Closing(tag).size());
    }
    return absl::StripAsciiWhitespace(rest).empty() ? 1.0 : 0.0;
  }

  static std::string Opening(const std::string& tag) {
    return absl::StrCat("<", tag, ">");
  }
  static std::string Closing(const std::string& tag) {
    return absl::StrCat("</", tag, ">");
  }

  bool HasTag(absl::string_view text) const {
    return std::any_of(tags_.begin(), tags_.end(), [&](const std::string& tag) {
      return absl::StrContains(text, Opening(tag)) ||
             absl::StrContains(text, Closing(tag));
    });
  }

  const std::vector<std::string> tags_;
};

}  // namespace

MadeReward NewLength(const Length& config) {
  CAPSTAN_RETURN_IF_ERROR(CheckField(config.min_tokens() >= 0, "min_tokens",
                                     "at least 0", config.min_tokens()));
  CAPSTAN_RETURN_IF_ERROR(CheckField(config.max_tokens() >= 0, "max_tokens",
                                     "at least 0", config.max_tokens()));
  if (config.max_tokens() == 0 && config.min_tokens() == 0) {
    return FieldError("max_tokens", "must be set, or min_tokens");
  }
  if (config.buffer() < 0 || config.buffer() > config.max_tokens()) {
    return FieldError("buffer",
                      absl::StrCat("must be at least 0 and at most max_tokens, "
                                   "is ",
                                   config.buffer()));
  }
  if (config.max_tokens() > 0 &&
      config.min_tokens() > config.max_tokens() - config.buffer()) {
    return FieldError("min_tokens",
                      absl::StrCat("must be at most max_tokens - buffer, is ",
                                   config.min_tokens()));
  }
  return std::make_unique<LengthReward>(config);
}

MadeReward NewTags(const Tags& config) {
  std::vector<std::string> tags(config.tag().begin(), config.tag().end());
  if (tags.empty()) tags = {"think", "answer"};
  for (size_t i = 0; i < tags.size(); ++i) {
    if (tags[i].empty() || absl::StrContains(tags[i], '<') ||
        absl::StrContains(tags[i], '>')) {
      return FieldError("tag", "must be a name without < and >");
    }
    if (std::count(tags.begin(), tags.end(), tags[i]) > 1) {
      return FieldError("tag", absl::StrCat("has \"", tags[i], "\" twice"));
    }
  }
  return std::make_unique<TagsReward>(std::move(tags));
}

}  // namespace capstan::grpo
