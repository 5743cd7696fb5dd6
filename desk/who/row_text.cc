// SPDX-License-Identifier: Apache-2.0
#include "desk/who/row_text.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "desk/generate/text_view.h"
#include "plugins/sdk/dataset.h"

namespace capstan {
namespace {

// Losses from these on have the background beside them, of the terminal's 256
// colours (black text reads well on all of them). 1 nat: a probability of 37 %;
// 8: one of 3,000.
struct Shade {
  double from;
  int colour;
};
constexpr Shade kShades[] = {{0.0, 194}, {1.0, 229}, {2.0, 222},
                             {4.0, 215}, {6.0, 209}, {8.0, 203}};
constexpr char kPlain[] = "\x1b[0m", kDim[] = "\x1b[2m";

std::string StyleOf(const absl::optional<double>& loss) {
  if (!loss.has_value()) return kDim;
  int colour = kShades[0].colour;
  for (const Shade& shade : kShades) {
    // A loss that isn't a number is worse than any.
    if (!(*loss < shade.from)) colour = shade.colour;
  }
  return absl::StrCat("\x1b[30;48;5;", colour, "m");
}

}  // namespace

std::string MeasuredText::Text() const {
  std::string text;
  for (const RowToken& token : tokens) absl::StrAppend(&text, token.bytes);
  return text;
}

std::vector<MeasuredText> TextsOf(const MeasuredRow& row,
                                  const Tokenizer* tokenizer, bool causal) {
  std::vector<MeasuredText> texts;
  const auto ids = row.batch.find(kInputIds);
  if (ids == row.batch.end() || tokenizer == nullptr) return texts;
  const auto counts = row.batch.find(kTokenCounts);
  const at::Tensor& losses = row.token_losses;
  const int64_t rows = ids->second.size(0);
  for (int64_t r = 0; r < rows; ++r) {
    MeasuredText text;
    if (row.batch.count(kPairKeys) > 0)
      text.name = r == 0 ? "chosen" : "rejected";
    const int64_t length = counts == row.batch.end()
                               ? ids->second.size(1)
                               : counts->second[r].item<int64_t>();
    const at::Tensor here = ids->second[r].contiguous();
    for (int64_t t = 0; t < length; ++t) {
      RowToken token;
      token.id = here.const_data_ptr<int64_t>()[t];
      token.bytes = tokenizer->Decode({token.id});
      const int64_t at = causal ? t - 1 : t;
      if (losses.defined() && r < losses.size(0) && at >= 0 &&
          at < losses.size(1)) {
        const float loss = losses[r].const_data_ptr<float>()[at];
        if (loss != -std::numeric_limits<float>::infinity()) token.loss = loss;
      }
      text.tokens.push_back(std::move(token));
    }
    texts.push_back(std::move(text));
  }
  return texts;
}

std::vector<std::string> TensorLines(const Batch& batch) {
  constexpr int64_t kShown = 8;
  std::vector<std::string> lines;
  for (const auto& [name, tensor] : batch) {
    const at::Tensor values = tensor.to(at::kDouble).flatten();
    std::vector<double> first;
    for (int64_t i = 0; i < std::min(kShown, values.numel()); ++i) {
      first.push_back(values[i].item<double>());
    }
    lines.push_back(absl::StrCat(name, " [",
                                 absl::StrJoin(tensor.sizes(), ", "),
                                 "]: ", absl::StrJoin(first, " "),
                                 values.numel() > kShown ? " .." : ""));
  }
  return lines;
}

std::string ColouredText(const MeasuredText& text) {
  std::string coloured;
  std::string style;
  TextStream stream;
  const auto show = [&](const std::string& piece, const std::string& with) {
    if (piece.empty()) return;
    if (with != style) absl::StrAppend(&coloured, kPlain, with);
    style = with;
    absl::StrAppend(&coloured, piece);
  };
  for (const RowToken& token : text.tokens) {
    show(stream.Add(token.bytes), StyleOf(token.loss));
  }
  show(stream.Finish(), style);
  return absl::StrCat(coloured, kPlain);
}

std::string ColourLegend() {
  std::string legend = "loss of a token:";
  for (const Shade& shade : kShades) {
    absl::StrAppend(&legend, " ", StyleOf(shade.from), " ", shade.from, "+ ",
                    kPlain);
  }
  return absl::StrCat(legend, "  ", kDim, "not trained on", kPlain);
}

}  // namespace capstan
