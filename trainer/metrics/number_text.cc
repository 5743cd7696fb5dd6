// SPDX-License-Identifier: Apache-2.0
#include "trainer/metrics/number_text.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace capstan {
namespace {

// Three significant digits of value / base^n, with the n-th unit.
std::string Scaled(double value, double base,
                   const std::vector<const char*>& units) {
  size_t unit = 0;
  // What would round to 1000 goes to the next unit.
  while (std::abs(value) >= 999.5 && unit + 1 < units.size()) {
    value /= base;
    ++unit;
  }
  const double size = std::abs(value);
  const int decimals = unit == 0 || size >= 99.95 ? 0 : (size >= 9.995 ? 1 : 2);
  return absl::StrFormat("%.*f%s", decimals, value, units[unit]);
}

}  // namespace

std::string WithCommas(int64_t value) {
  std::string digits = absl::StrCat(value);
  const int first = value < 0 ? 1 : 0;
  for (int i = static_cast<int>(digits.size()) - 3; i > first; i -= 3) {
    digits.insert(i, ",");
  }
  return digits;
}

std::string ShortCount(double value) {
  return Scaled(value, 1000.0, {"", " k", " M", " B", " T"});
}

std::string ShortBytes(int64_t bytes) {
  return Scaled(static_cast<double>(bytes), 1024.0,
                {" B", " KiB", " MiB", " GiB", " TiB"});
}

std::string ShortDuration(double seconds) {
  if (seconds < 0.9995) return absl::StrFormat("%.3g ms", seconds * 1e3);
  if (seconds < 59.995) return absl::StrFormat("%.2f s", seconds);
  return ClockTime(seconds);
}

std::string ClockTime(double seconds) {
  if (!(seconds >= 0.0) || seconds > 1e12) return "?";
  const int64_t whole = std::llround(seconds);
  const int64_t hours = whole / 3600;
  const int64_t minutes = whole / 60 % 60;
  if (hours >= 24) return absl::StrCat(hours / 24, " d ", hours % 24, " h");
  if (hours > 0) {
    return absl::StrFormat("%d:%02d:%02d", hours, minutes, whole % 60);
  }
  return absl::StrFormat("%d:%02d", minutes, whole % 60);
}

std::string TableText(
    const std::vector<std::pair<std::string, std::string>>& rows) {
  size_t width = 0;
  for (const auto& row : rows) width = std::max(width, row.first.size());
  std::string text;
  for (const auto& row : rows) {
    absl::StrAppend(&text, "  ", row.first,
                    std::string(width + 2 - row.first.size(), ' '), row.second,
                    "\n");
  }
  return text;
}

}  // namespace capstan
