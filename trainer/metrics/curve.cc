// SPDX-License-Identifier: Apache-2.0
#include "trainer/metrics/curve.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "base/json.h"

namespace capstan {
namespace {

constexpr size_t kMostPoints = 2000;
constexpr int kWidth = 640;
constexpr int kHeight = 320;
constexpr int kLeft = 56;
constexpr int kRight = 16;
constexpr int kTop = 28;
constexpr int kBottom = 36;
constexpr char kTrainColour[] = "#3b82c4";
constexpr char kEvalColour[] = "#d9730d";
constexpr char kPastColour[] = "#888888";

std::vector<CurvePoint> Thinned(const std::vector<CurvePoint>& points) {
  const size_t every = (points.size() + kMostPoints - 1) / kMostPoints;
  if (every <= 1) return points;
  std::vector<CurvePoint> thinned;
  for (size_t i = 0; i < points.size(); i += every) {
    thinned.push_back(points[i]);
  }
  return thinned;
}

// The plot's coordinate system.
struct Frame {
  double first = 0.0, last = 1.0;  // steps
  double low = 0.0, high = 1.0;    // losses

  double X(double step) const {
    return kLeft + (kWidth - kLeft - kRight) * (step - first) / (last - first);
  }
  double Y(double loss) const {
    return kTop + (kHeight - kTop - kBottom) * (high - loss) / (high - low);
  }
};

Frame FrameOf(const std::vector<const std::vector<CurvePoint>*>& curves) {
  Frame frame;
  bool any = false;
  for (const std::vector<CurvePoint>* points : curves) {
    for (const CurvePoint& point : *points) {
      const double step = static_cast<double>(point.step);
      frame.first = any ? std::min(frame.first, step) : step;
      frame.last = any ? std::max(frame.last, step) : step;
      frame.low = any ? std::min(frame.low, point.loss) : point.loss;
      frame.high = any ? std::max(frame.high, point.loss) : point.loss;
      any = true;
    }
  }
  if (frame.last <= frame.first) frame.last = frame.first + 1.0;
  const double room = std::max(0.05 * (frame.high - frame.low),
                               1e-3 * std::max(1.0, std::fabs(frame.high)));
  frame.low -= room;
  frame.high += room;
  return frame;
}

// Tick distance for about five ticks per axis: 1, 2 or 5 times a power of ten.
double MarkDistance(double length) {
  const double rough = length / 5.0;
  const double power = std::pow(10.0, std::floor(std::log10(rough)));
  for (const double times : {1.0, 2.0, 5.0}) {
    if (times * power >= rough) return times * power;
  }
  return 10.0 * power;
}

std::string Text(double x, double y, const char* anchor,
                 const std::string& text) {
  return absl::StrFormat(
      "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\">%s</text>\n", x, y,
      anchor, text);
}

std::string Axes(const Frame& frame) {
  std::string svg;
  const double losses = MarkDistance(frame.high - frame.low);
  for (double mark = std::ceil(frame.low / losses) * losses; mark <= frame.high;
       mark += losses) {
    // Accumulated ticks may miss 0 by a rounding error, below it, too.
    if (std::fabs(mark) < 1e-9 * losses) mark = 0.0;
    const double y = frame.Y(mark);
    absl::StrAppendFormat(&svg,
                          "<line x1=\"%d\" x2=\"%d\" y1=\"%.1f\" "
                          "y2=\"%.1f\" stroke=\"#88888855\"/>\n",
                          kLeft, kWidth - kRight, y, y);
    absl::StrAppend(
        &svg, Text(kLeft - 6, y + 4, "end", absl::StrFormat("%.4g", mark)));
  }
  const double steps = std::max(1.0, MarkDistance(frame.last - frame.first));
  for (double mark = std::ceil(frame.first / steps) * steps; mark <= frame.last;
       mark += steps) {
    absl::StrAppend(&svg, Text(frame.X(mark), kHeight - kBottom + 16, "middle",
                               absl::StrFormat("%.0f", mark)));
  }
  return svg;
}

// `title` (may be "") is the tooltip.
std::string Line(const std::vector<CurvePoint>& points, const Frame& frame,
                 const char* colour, double opacity = 1.0,
                 const std::string& title = "") {
  if (points.empty()) return "";
  std::string svg = absl::StrFormat(
      "<polyline fill=\"none\" stroke=\"%s\" stroke-opacity=\"%.2f\" "
      "stroke-width=\"1.6\" points=\"",
      colour, opacity);
  for (const CurvePoint& point : points) {
    absl::StrAppendFormat(&svg, "%.1f,%.1f ",
                          frame.X(static_cast<double>(point.step)),
                          frame.Y(point.loss));
  }
  svg.back() = '"';
  if (title.empty()) return svg + "/>\n";
  return absl::StrCat(svg, "><title>", title, "</title></polyline>\n");
}

// "grey: after steps 250, 500 and 750": all but the last.
std::string PastSteps(
    const std::vector<std::pair<int64_t, MeasuredCurve>>& curves) {
  std::vector<int64_t> steps;
  for (size_t i = 0; i + 1 < curves.size(); ++i) {
    steps.push_back(curves[i].first);
  }
  if (steps.size() == 1) return absl::StrCat("grey: after step ", steps[0]);
  // More would overlap the title.
  constexpr size_t kMostSteps = 5;
  if (steps.size() > kMostSteps) {
    return absl::StrCat("grey: the ", steps.size(), " before, from step ",
                        steps.front(), " on");
  }
  const int64_t last = steps.back();
  steps.pop_back();
  return absl::StrCat("grey: after steps ", absl::StrJoin(steps, ", "), " and ",
                      last);
}

std::string Head() {
  return absl::StrFormat(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" "
      "viewBox=\"0 0 %d %d\" font-family=\"sans-serif\" font-size=\"12\" "
      "fill=\"#888\">\n",
      kWidth, kHeight, kWidth, kHeight);
}

// `text` in `colour`, above the picture at x.
std::string Title(double x, const char* colour, const std::string& text,
                  const char* anchor = "start") {
  return absl::StrCat("<g fill=\"", colour, "\">", Text(x, 16, anchor, text),
                      "</g>\n");
}

}  // namespace

absl::StatusOr<LossCurves> ReadLossCurves(const std::string& path) {
  LossCurves curves;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    const auto json = ParseJson<nlohmann::json>(line);
    if (!json.is_object() || !json.contains("step")) continue;
    for (const auto& [key, points] :
         {std::pair<const char*, std::vector<CurvePoint>*>{"loss",
                                                           &curves.train},
          {"eval_loss", &curves.eval}}) {
      const auto loss = json.find(key);
      if (loss == json.end() || !loss->is_number()) continue;
      points->push_back({json["step"].get<int64_t>(), loss->get<double>()});
    }
    for (const auto& [key, value] : json.items()) {
      if (!absl::StartsWith(key, "eval_") || key == "eval_loss" ||
          !value.is_number()) {
        continue;
      }
      curves.measured[key] = value.get<double>();
    }
  }
  if (file.bad()) {
    return absl::DataLossError(absl::StrCat(path, " can't be read"));
  }
  curves.train = Thinned(curves.train);
  curves.eval = Thinned(curves.eval);
  return curves;
}

std::string LossCurveSvg(const LossCurves& curves) {
  if (curves.train.empty() && curves.eval.empty()) return "";
  const Frame frame = FrameOf({&curves.train, &curves.eval});
  std::string svg = Head();
  absl::StrAppend(&svg, Axes(frame), Line(curves.train, frame, kTrainColour),
                  Line(curves.eval, frame, kEvalColour));
  absl::StrAppend(&svg, Text(kWidth - kRight, kHeight - 4, "end", "step"));
  absl::StrAppend(&svg, Title(kLeft, kTrainColour, "training loss"));
  if (!curves.eval.empty()) {
    absl::StrAppend(&svg, Title(kLeft + 120, kEvalColour, "evaluation loss"));
    // A few evaluations are drawn as points.
    for (const CurvePoint& point : curves.eval) {
      absl::StrAppendFormat(
          &svg, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"2.5\" fill=\"%s\"/>\n",
          frame.X(static_cast<double>(point.step)), frame.Y(point.loss),
          kEvalColour);
    }
  }
  return absl::StrCat(svg, "</svg>\n");
}

std::string MeasuredCurvesSvg(
    const std::vector<std::pair<int64_t, MeasuredCurve>>& curves) {
  std::vector<std::vector<CurvePoint>> points(curves.size());
  std::vector<const std::vector<CurvePoint>*> all;
  for (size_t i = 0; i < curves.size(); ++i) {
    const std::vector<double>& values = curves[i].second.values;
    for (size_t k = 0; k < values.size(); ++k) {
      if (!std::isfinite(values[k])) continue;
      points[i].push_back({static_cast<int64_t>(k) + 1, values[k]});
    }
    points[i] = Thinned(points[i]);
    if (!points[i].empty()) all.push_back(&points[i]);
  }
  if (all.empty()) return "";
  const Frame frame = FrameOf(all);
  std::string svg = absl::StrCat(Head(), Axes(frame));
  for (size_t i = 0; i < points.size(); ++i) {
    const bool last = i + 1 == points.size();
    // From light to dark.
    const double age = static_cast<double>(i + 1) / points.size();
    absl::StrAppend(&svg,
                    Line(points[i], frame, last ? kTrainColour : kPastColour,
                         last ? 1.0 : 0.2 + 0.5 * age,
                         absl::StrCat("after step ", curves[i].first)));
  }
  const auto& [step, curve] = curves.back();
  absl::StrAppend(&svg,
                  Text(kWidth - kRight, kHeight - 4, "end", curve.x_label),
                  Title(kLeft, kTrainColour,
                        absl::StrCat(curve.y_label, " after step ", step)));
  if (curves.size() > 1) {
    absl::StrAppend(
        &svg, Title(kWidth - kRight, kPastColour, PastSteps(curves), "end"));
  }
  return absl::StrCat(svg, "</svg>\n");
}

}  // namespace capstan
