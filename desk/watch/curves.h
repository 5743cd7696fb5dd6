// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_DESK_WATCH_CURVES_H_
#define CAPSTAN_DESK_WATCH_CURVES_H_

#include <cstdint>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <unordered_set>
#include <vector>

#include "absl/strings/string_view.h"

namespace capstan {

// The values of a series at some neighbouring steps.
struct CurveBucket {
  int32_t at = 0;  // the bucket has the steps from at * width on
  int32_t count = 0;
  float low = 0.0f;
  float high = 0.0f;
  double sum = 0.0;

  double mean() const { return sum / static_cast<double>(count); }
  void Merge(const CurveBucket& other);
};

// Series of numbers by step, of any length and number in bounded memory: when
// they reach beyond `most_buckets` buckets, these become twice as wide, and of
// names the first kMostSeries are kept, unless they are very long. One thread.
class Curves {
 public:
  static constexpr size_t kMostSeries = 500;
  static constexpr size_t kLongestName = 300;  // bytes
  // Further ones aren't counted.
  static constexpr size_t kMostLeftOut = size_t{1} << 20;

  struct Series {
    std::string name;
    std::vector<CurveBucket> buckets;  // by `at`; only those with values
    double latest = 0.0;               // the value that was added last
  };

  explicit Curves(int64_t most_buckets, int64_t width = 1)
      : most_buckets_(most_buckets), width_(width) {}

  // `step` isn't negative, and `value` is finite. `times`: of how many values
  // it is the mean, from 1 on.
  void Add(int64_t step, absl::string_view name, double value,
           int32_t times = 1);
  // Takes out the values from that step on, but not those of a bucket that also
  // has steps before it.
  void CutFrom(int64_t step);
  void Clear();

  int64_t width() const { return width_; }
  const std::vector<Series>& all() const { return series_; }
  // Names that came too late.
  size_t left_out() const { return left_out_.size(); }
  // Null if there is none.
  const Series* Find(absl::string_view name) const;

  // The same in up to `points` buckets: {"width": 4, "from": 0, "series":
  // {"loss": {"at": [..], "mean": [..], "low": [..], "high": [..]}},
  // "left_out": 0}, of the buckets from the one on that has the step `since`,
  // which "from" says. low and high are left out where each bucket has one
  // value. Numbers have six digits, large ones more.
  nlohmann::json AsJson(int64_t points, int64_t since = 0) const;
  // The width of AsJson's buckets.
  int64_t WidthFor(int64_t points) const;

 private:
  // Null if it is left out.
  Series* Named(absl::string_view name);
  void Widen();

  int64_t most_buckets_;
  int64_t width_;
  int64_t last_ = 0;  // the greatest step
  std::vector<Series> series_;
  std::map<std::string, size_t, std::less<>> places_;  // in series_, by name
  size_t next_ = 0;  // where the next name is likely to be: behind the last
  std::unordered_set<size_t> left_out_;  // their names' hashes
};

}  // namespace capstan

#endif  // CAPSTAN_DESK_WATCH_CURVES_H_
