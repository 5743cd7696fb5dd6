// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_DESK_WATCH_CURVES_H_
#define CAPSTAN_DESK_WATCH_CURVES_H_

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
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

// Series of numbers by step, of any length in bounded memory: when they reach
// beyond `most_buckets` buckets, these become twice as wide. One thread.
class Curves {
 public:
  struct Series {
    std::string name;
    std::vector<CurveBucket> buckets;  // by `at`; only those with values
    double latest = 0.0;               // the value that was added last
  };

  explicit Curves(int64_t most_buckets, int64_t width = 1)
      : most_buckets_(most_buckets), width_(width) {}

  // `step` isn't negative, and `value` is finite.
  void Add(int64_t step, absl::string_view name, double value);
  void Clear();

  int64_t width() const { return width_; }
  const std::vector<Series>& all() const { return series_; }
  // Null if there is none.
  const Series* Find(absl::string_view name) const;

  // The same in up to `points` buckets: {"width": 4, "from": 0, "series":
  // {"loss": {"at": [..], "mean": [..], "low": [..], "high": [..]}}}, of the
  // buckets from the one on that has the step `since`, which "from" says. low
  // and high are left out where each bucket has one value. Numbers have six
  // digits, large ones more.
  nlohmann::json AsJson(int64_t points, int64_t since = 0) const;
  // The width of AsJson's buckets.
  int64_t WidthFor(int64_t points) const;

 private:
  Series& Named(absl::string_view name);
  void Widen();

  int64_t most_buckets_;
  int64_t width_;
  int64_t last_ = 0;  // the greatest step
  std::vector<Series> series_;
  size_t next_ = 0;  // where the next name is likely to be: behind the last
};

}  // namespace capstan

#endif  // CAPSTAN_DESK_WATCH_CURVES_H_
