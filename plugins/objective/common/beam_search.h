// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_PLUGINS_OBJECTIVE_COMMON_BEAM_SEARCH_H_
#define CAPSTAN_PLUGINS_OBJECTIVE_COMMON_BEAM_SEARCH_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "plugins/objective/common/decode_loop.h"
#include "plugins/objective/common/sample_token.h"
#include "plugins/sdk/objective.h"
#include "plugins/sdk/token_model.h"

namespace capstan {

// Looks for the likeliest texts, as transformers' _beam_search
// (generation/utils.py, 5.23) without sampling. One search.
class BeamSearch {
 public:
  // `ends`: the tokens that end a text; may be empty. `options` gives `stop`
  // and `ended`, and must outlive this.
  BeamSearch(TokenModel* model, const LogitRules& rules,
             std::vector<int64_t> ends, const BeamSettings& settings,
             const SampleOptions& options)
      : model_(model),
        rules_(rules),
        ends_(std::move(ends)),
        settings_(settings),
        options_(options) {}

  // The texts of up to `wanted` new tokens, the best first. The prompt and they
  // must fit into the model's positions.
  absl::StatusOr<std::vector<Beam>> Run(const std::vector<int64_t>& prompt,
                                        int64_t wanted, UnitRunner& runner);

 private:
  // A text of the batch, by its row there, with one more token.
  struct Candidate {
    size_t row;
    int64_t token;
    float score;  // the log-probability of the new tokens
  };

  // As ExtendTexts; with at most `wanted` new tokens.
  absl::Status Extend(const at::Tensor& logits, int64_t wanted,
                      std::vector<int64_t>* rows);
  // The best candidates, by logits [rows, V]; enough of them for each beam to
  // go on, even if all ends of text are among them.
  std::vector<Candidate> BestOf(const at::Tensor& logits) const;
  bool Ends(const Candidate& candidate, absl::Span<const int64_t> text,
            bool last) const;
  // A text's score when it has `length` new tokens.
  float Scored(float log_probability, int64_t length) const;
  void Finish(std::vector<int64_t> text, float score);
  // Whether a text that isn't finished may still be among the best.
  bool MayImprove(int64_t length, int64_t wanted) const;
  bool Full() const {
    return static_cast<int64_t>(finished_.size()) == settings_.beams;
  }

  TokenModel* const model_;
  const LogitRules rules_;
  const std::vector<int64_t> ends_;
  const BeamSettings settings_;
  const SampleOptions& options_;
  int64_t prompt_ = 0;  // tokens
  // By descending score: those that go on, with their log-probabilities, and
  // the others.
  Texts texts_;
  std::vector<float> scores_;
  std::vector<Beam> finished_;
};

}  // namespace capstan

#endif  // CAPSTAN_PLUGINS_OBJECTIVE_COMMON_BEAM_SEARCH_H_
