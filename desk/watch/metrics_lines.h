// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_DESK_WATCH_METRICS_LINES_H_
#define CAPSTAN_DESK_WATCH_METRICS_LINES_H_

#include <cmath>
#include <cstdint>
#include <string>
#include <utility>

#include "absl/strings/string_view.h"
#include "absl/types/optional.h"
#include "base/json_document.h"
#include "desk/run_folder/line_follower.h"

namespace capstan {

// A larger number is none of a run's.
constexpr double kMostSteps = 1e15;

// The numbers of a line of metrics.jsonl.
struct MetricsLine {
  int64_t step = 0;
  int64_t offset = 0;  // of the line in its file
  simdjson::dom::object object;

  // Calls `use` with each key and value, "step" first.
  template <typename Use>
  void ForEach(const Use& use) const {
    use("step", static_cast<double>(step));
    for (const auto& [key, value] : object) {
      double number = 0.0;
      bool flag = false;
      if (value.is_null()) {
        number = std::nan("");  // it wasn't finite
      } else if (value.get(number) != simdjson::SUCCESS) {
        if (value.get(flag) != simdjson::SUCCESS || !flag) continue;
        number = 1.0;  // "skipped": true
      }
      if (key == "step") continue;
      use(absl::string_view(key.data(), key.size()), number);
    }
  }
};

// Reads a run's lines in order. One thread.
class MetricsLines {
 public:
  // `before`: the step that the first line goes on from.
  explicit MetricsLines(int64_t before = 0) : last_(before) {}

  // Calls `use` with the MetricsLine. A line that isn't an object with a step
  // is left out. So is one whose step is more than twice the step of the line
  // before it and 1000 more, unless the next line goes on from it: a damaged
  // number would stretch all charts. `use` gets both lines then. `line` as
  // LineFollower hands it out.
  template <typename Use>
  void Add(absl::string_view line, int64_t offset, const Use& use) {
    MetricsLine read;
    read.offset = offset;
    if (!Parse(line, &read)) {
      ++unreadable_;
      return;
    }
    if (held_.has_value()) {
      const Held held = *std::exchange(held_, absl::nullopt);
      if (read.step >= held.step && GoesOn(held.step, read.step)) {
        MetricsLine before;
        before.offset = held.offset;
        Parse(absl::string_view(held.text.data(), held.bytes), &before);
        last_ = held.step;
        use(before);
        Parse(line, &read);  // the parser has one document at a time
      } else {
        ++unreadable_;
      }
    }
    if (GoesOn(last_, read.step)) {
      last_ = read.step;
      use(read);
      return;
    }
    held_ = Held{std::string(line), line.size(), offset, read.step};
    held_->text.resize(line.size() + LineFollower::kReadableBehind);
  }
  // The file has begun anew.
  void Clear() {
    last_ = 0;
    held_.reset();
    unreadable_ = 0;
  }
  // Lines that were left out so far.
  int64_t unreadable() const { return unreadable_ + (held_ ? 1 : 0); }

 private:
  struct Held {
    std::string text;  // and bytes that the parser may read behind it
    size_t bytes = 0;
    int64_t offset = 0;
    int64_t step = 0;
  };

  static bool GoesOn(int64_t before, int64_t step) {
    return step <= 2 * before + 1000;
  }
  bool Parse(absl::string_view line, MetricsLine* read) {
    simdjson::dom::element root;
    double step = 0.0;
    if (ParseJsonDocument(line, line.size() + LineFollower::kReadableBehind,
                          &parser_, &root) != simdjson::SUCCESS ||
        root.get(read->object) != simdjson::SUCCESS ||
        read->object["step"].get(step) != simdjson::SUCCESS ||
        !(step >= 0.0 && step < kMostSteps)) {
      return false;
    }
    read->step = static_cast<int64_t>(step);
    return true;
  }

  simdjson::dom::parser parser_;
  int64_t last_;  // step
  absl::optional<Held> held_;
  int64_t unreadable_ = 0;
};

}  // namespace capstan

#endif  // CAPSTAN_DESK_WATCH_METRICS_LINES_H_
