// SPDX-License-Identifier: Apache-2.0
#include "desk/watch/curves.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <string_view>
#include <utility>

#include "absl/strings/str_format.h"

namespace capstan {
namespace {

using nlohmann::json;

// With six significant digits, which print in few characters; large numbers,
// as times and counts are, to a thousandth.
double Rounded(double value) {
  if (value == std::floor(value) && std::fabs(value) < 1e15) return value;
  if (std::fabs(value) >= 1e5) return std::round(value * 1e3) / 1e3;
  char text[32];
  absl::SNPrintF(text, sizeof(text), "%.6g", value);
  return std::strtod(text, nullptr);
}

// `buckets`, `times` of them in one.
std::vector<CurveBucket> Merged(const std::vector<CurveBucket>& buckets,
                                int64_t times) {
  std::vector<CurveBucket> merged;
  for (CurveBucket bucket : buckets) {
    bucket.at = static_cast<int32_t>(bucket.at / times);
    if (!merged.empty() && merged.back().at == bucket.at) {
      merged.back().Merge(bucket);
    } else {
      merged.push_back(bucket);
    }
  }
  return merged;
}

json SeriesJson(const std::vector<CurveBucket>& buckets, int64_t from) {
  json at = json::array(), mean = json::array(), low = json::array(),
       high = json::array();
  bool single = true;
  for (const CurveBucket& bucket : buckets) {
    if (bucket.at < from) continue;
    at.push_back(bucket.at);
    mean.push_back(Rounded(bucket.mean()));
    low.push_back(Rounded(bucket.low));
    high.push_back(Rounded(bucket.high));
    single = single && bucket.count == 1;
  }
  json made = {{"at", std::move(at)}, {"mean", std::move(mean)}};
  if (!single) {
    made["low"] = std::move(low);
    made["high"] = std::move(high);
  }
  return made;
}

}  // namespace

void CurveBucket::Merge(const CurveBucket& other) {
  count += other.count;
  low = std::min(low, other.low);
  high = std::max(high, other.high);
  sum += other.sum;
}

Curves::Series* Curves::Named(absl::string_view name) {
  if (next_ >= series_.size() || series_[next_].name != name) {
    const auto place = places_.find(name);
    if (place != places_.end()) {
      next_ = place->second;
    } else if (series_.size() < kMostSeries && name.size() <= kLongestName) {
      next_ = series_.size();
      series_.push_back({std::string(name), {}, 0.0});
      places_.emplace(name, next_);
    } else {
      if (left_out_.size() < kMostLeftOut) {
        left_out_.insert(
            std::hash<std::string_view>()({name.data(), name.size()}));
      }
      return nullptr;
    }
  }
  return &series_[next_++];
}

const Curves::Series* Curves::Find(absl::string_view name) const {
  const auto place = places_.find(name);
  return place == places_.end() ? nullptr : &series_[place->second];
}

void Curves::Add(int64_t step, absl::string_view name, double value,
                 int32_t times) {
  Series* const series = Named(name);
  if (series == nullptr) return;
  series->latest = value;
  if (!std::isfinite(value)) return;
  while (step / width_ >= most_buckets_) Widen();
  last_ = std::max(last_, step);
  constexpr double kMost = std::numeric_limits<float>::max();
  value = std::clamp(value, -kMost, kMost);
  const auto single = static_cast<float>(value);
  const CurveBucket added = {static_cast<int32_t>(step / width_), times, single,
                             single, value * times};
  std::vector<CurveBucket>& buckets = series->buckets;
  if (buckets.empty() || buckets.back().at < added.at) {
    buckets.push_back(added);
    return;
  }
  const auto place = std::lower_bound(
      buckets.begin(), buckets.end(), added.at,
      [](const CurveBucket& bucket, int32_t at) { return bucket.at < at; });
  if (place->at == added.at) {
    place->Merge(added);
  } else {
    buckets.insert(place, added);
  }
}

void Curves::Widen() {
  width_ *= 2;
  for (Series& series : series_) series.buckets = Merged(series.buckets, 2);
}

void Curves::CutFrom(int64_t step) {
  for (Series& series : series_) {
    std::vector<CurveBucket>& buckets = series.buckets;
    while (!buckets.empty() && buckets.back().at * width_ >= step) {
      buckets.pop_back();
    }
  }
}

void Curves::Clear() {
  series_.clear();
  places_.clear();
  left_out_.clear();
  next_ = 0;
  last_ = 0;
  width_ = 1;
}

int64_t Curves::WidthFor(int64_t points) const {
  int64_t width = width_;
  while (last_ / width >= std::max<int64_t>(points, 1)) width *= 2;
  return width;
}

json Curves::AsJson(int64_t points, int64_t since) const {
  const int64_t width = WidthFor(points);
  const int64_t from = since / width;
  json named = json::object();
  for (const Series& series : series_) {
    named[series.name] =
        SeriesJson(width == width_ ? series.buckets
                                   : Merged(series.buckets, width / width_),
                   from);
  }
  return {{"width", width},
          {"from", from},
          {"series", std::move(named)},
          {"left_out", left_out()}};
}

}  // namespace capstan
