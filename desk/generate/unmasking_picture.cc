// SPDX-License-Identifier: Apache-2.0
#include "desk/generate/unmasking_picture.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/string_view.h"
#include "desk/generate/text_view.h"
#include "trainer/metrics/console.h"

namespace capstan {
namespace {

constexpr int kColumns = 80;
constexpr double kLeft = 10.0, kTop = 34.0;
constexpr double kCell = 8.75, kLine = 22.0;  // of a character

// From the first step's blue over green to the last one's yellow.
std::string ColourOf(int step, int steps) {
  static constexpr double kStops[3][3] = {
      {59, 82, 190}, {46, 160, 134}, {248, 214, 62}};
  const double at =
      steps > 1 ? 2.0 * (step - 1) / static_cast<double>(steps - 1) : 0.0;
  const int from = at < 1.0 ? 0 : 1;
  int mixed[3];
  for (int i = 0; i < 3; ++i) {
    const double a = kStops[from][i], b = kStops[from + 1][i];
    mixed[i] = static_cast<int>(std::lround(a + (b - a) * (at - from)));
  }
  return absl::StrFormat("#%02x%02x%02x", mixed[0], mixed[1], mixed[2]);
}

std::string Escaped(absl::string_view text) {
  return absl::StrReplaceAll(text,
                             {{"&", "&amp;"}, {"<", "&lt;"}, {">", "&gt;"}});
}

// Where the next characters go.
struct Place {
  int column = 0, line = 0;
  void NextLine() {
    column = 0;
    ++line;
  }
};

// A piece of a token, on one line.
std::string Piece(const std::string& text, int width, int step, int steps,
                  Place* place) {
  if (place->column + width > kColumns && place->column > 0) place->NextLine();
  const double x = kLeft + kCell * place->column,
               y = kTop + kLine * place->line;
  place->column += width;
  std::string svg;
  if (step > 0) {
    absl::StrAppendFormat(
        &svg,
        "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" rx=\"3\" "
        "fill=\"%s\"><title>step %d of %d</title></rect>\n",
        x, y, kCell * width - 1, kLine - 4, ColourOf(step, steps), step, steps);
  }
  absl::StrAppendFormat(
      &svg,
      "<text x=\"%.1f\" y=\"%.1f\" textLength=\"%.1f\" "
      "lengthAdjust=\"spacingAndGlyphs\" xml:space=\"preserve\" fill=\"%s\">",
      x, y + 13.5, kCell * width - 1,
      step == 0               ? "#888888"
      : 2 * step <= steps + 1 ? "#ffffff"
                              : "#222222");
  return absl::StrCat(svg, Escaped(text), "</text>\n");
}

}  // namespace

void UnmaskingPicture::Note(absl::Span<const int64_t> text) {
  ++steps_;
  step_of_.resize(text.size(), 0);
  for (size_t i = given_; i < text.size(); ++i) {
    if (step_of_[i] == 0 && text[i] != mask_token_) step_of_[i] = steps_;
  }
}

std::string UnmaskingPicture::Svg(absl::Span<const int64_t> text,
                                  const Tokenizer& tokenizer) const {
  std::string body;
  Place place;
  for (size_t i = 0; i < text.size(); ++i) {
    const int step = i < step_of_.size() ? step_of_[i] : 0;
    const std::string piece =
        PrintableText(tokenizer.Decode(text.subspan(i, 1)));
    // A line's end is drawn, since it is a choice, too.
    const std::string shown =
        absl::StrReplaceAll(piece, {{"\n", "\xe2\x8f\x8e"}, {"\t", "  "}});
    if (!shown.empty()) {
      absl::StrAppend(&body,
                      Piece(shown, CellsOf(shown), step, steps_, &place));
    }
    if (piece.find('\n') != std::string::npos) place.NextLine();
  }
  const double height = kTop + kLine * (place.line + 1) + 8;
  std::string legend;
  constexpr int kShades = 24;
  for (int i = 1; i <= kShades; ++i) {
    absl::StrAppendFormat(
        &legend,
        "<rect x=\"%d\" y=\"10\" width=\"5\" height=\"12\" fill=\"%s\"/>\n",
        62 + 5 * i, ColourOf(i, kShades));
  }
  return absl::StrCat(
      absl::StrFormat("<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 "
                      "720 %.0f\" width=\"720\" height=\"%.0f\" "
                      "font-family=\"monospace\" font-size=\"14\">\n",
                      height, height),
      "<g font-family=\"sans-serif\" font-size=\"12\" fill=\"#888888\">\n"
      "<text x=\"10\" y=\"20\">step 1</text>\n<text x=\"194\" y=\"20\">",
      steps_, "</text>\n</g>\n", legend, body, "</svg>\n");
}

}  // namespace capstan
