// SPDX-License-Identifier: Apache-2.0
#include "plugins/objective/common/beam_search.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/log_softmax.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "plugins/objective/common/decode_loop.h"

namespace capstan {

std::vector<BeamSearch::Candidate> BeamSearch::BestOf(
    const at::Tensor& logits) const {
  const int64_t ends = static_cast<int64_t>(ends_.size());
  const size_t wanted =
      static_cast<size_t>(settings_.beams * std::max<int64_t>(2, 1 + ends));
  // A heap with the least of the best on top.
  const auto better = [](const Candidate& a, const Candidate& b) {
    return a.score > b.score;
  };
  std::vector<Candidate> best;
  const at::Tensor rows = at::log_softmax(logits, -1);
  for (size_t row = 0; row < texts_.size(); ++row) {
    const at::Tensor of_row = rows.select(0, row);
    const absl::Span<float> scores(of_row.mutable_data_ptr<float>(),
                                   static_cast<size_t>(of_row.numel()));
    ApplyRules(rules_, texts_[row], prompt_, ends_, scores);
    const float so_far = scores_[row];
    for (size_t token = 0; token < scores.size(); ++token) {
      const float score = so_far + scores[token];
      if (!std::isfinite(score)) continue;
      if (best.size() == wanted) {
        if (score <= best.front().score) continue;
        std::pop_heap(best.begin(), best.end(), better);
        best.pop_back();
      }
      best.push_back({row, static_cast<int64_t>(token), score});
      std::push_heap(best.begin(), best.end(), better);
    }
  }
  std::sort(best.begin(), best.end(), better);
  return best;
}

bool BeamSearch::Ends(const Candidate& candidate,
                      absl::Span<const int64_t> text, bool last) const {
  return last ||
         std::find(ends_.begin(), ends_.end(), candidate.token) !=
             ends_.end() ||
         (options_.ended && options_.ended(text));
}

float BeamSearch::Scored(float log_probability, int64_t length) const {
  return log_probability /
         static_cast<float>(
             std::pow(static_cast<double>(length), settings_.length_penalty));
}

void BeamSearch::Finish(std::vector<int64_t> text, float score) {
  if (settings_.end == BeamsEnd::kOnceFull && Full()) return;
  const auto place = std::upper_bound(
      finished_.begin(), finished_.end(), score,
      [](float mine, const Beam& other) { return mine > other.score; });
  finished_.insert(place, {std::move(text), score});
  if (static_cast<int64_t>(finished_.size()) > settings_.beams) {
    finished_.pop_back();
  }
}

bool BeamSearch::MayImprove(int64_t length, int64_t wanted) const {
  if (!Full()) return true;
  if (settings_.end == BeamsEnd::kOnceFull || texts_.empty()) return false;
  const bool at_end = settings_.end == BeamsEnd::kCannotImprove &&
                      settings_.length_penalty > 0.0;
  return Scored(scores_[0], at_end ? wanted : length) > finished_.back().score;
}

absl::Status BeamSearch::Extend(const at::Tensor& logits, int64_t wanted,
                                std::vector<int64_t>* rows) {
  const int64_t length = static_cast<int64_t>(texts_[0].size()) + 1 - prompt_;
  const std::vector<Candidate> best = BestOf(logits);
  if (best.empty()) {
    return absl::InvalidArgumentError(
        "the model's logits are not finite: no text can be looked for");
  }
  Texts next;
  std::vector<float> scores;
  for (size_t i = 0; i < best.size(); ++i) {
    std::vector<int64_t> text = texts_[best[i].row];
    text.push_back(best[i].token);
    if (!Ends(best[i], text, length == wanted)) {
      if (static_cast<int64_t>(next.size()) == settings_.beams) continue;
      next.push_back(std::move(text));
      scores.push_back(best[i].score);
      rows->push_back(static_cast<int64_t>(best[i].row));
    } else if (static_cast<int64_t>(i) < settings_.beams) {
      Finish(std::move(text), Scored(best[i].score, length));
    }
  }
  texts_ = std::move(next);
  scores_ = std::move(scores);
  if (!MayImprove(length, wanted)) {
    texts_.clear();
    rows->clear();
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<Beam>> BeamSearch::Run(
    const std::vector<int64_t>& prompt, int64_t wanted, UnitRunner& runner) {
  prompt_ = static_cast<int64_t>(prompt.size());
  if (prompt_ + wanted > model_->max_positions()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a prompt of ", prompt_, " tokens and ", wanted,
        " new ones don't fit the model's ", model_->max_positions(),
        " positions, which beams can't leave: set max_new_tokens"));
  }
  texts_ = {prompt};
  scores_ = {0.0f};
  CAPSTAN_ASSIGN_OR_RETURN(const std::unique_ptr<Continuation> texts,
                           ContinueTogether(model_, texts_, wanted, runner));
  CAPSTAN_RETURN_IF_ERROR(
      DecodeLoop(texts.get(), wanted, options_.stop, runner, &texts_,
                 [&](const at::Tensor& logits, std::vector<int64_t>* rows) {
                   return Extend(logits, wanted, rows);
                 }));
  return std::move(finished_);
}

}  // namespace capstan
