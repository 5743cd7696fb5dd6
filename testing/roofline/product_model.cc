// SPDX-License-Identifier: Apache-2.0
#include "testing/roofline/product_model.h"

#include <algorithm>

namespace capstan {
namespace {

struct Multiprocessors {
  const char* key;
  int count;
};

// NVIDIA's architecture papers, as gpu_specs.cc names them; a B200's is 2 dies
// of 74.
constexpr Multiprocessors kMultiprocessors[] = {
    {"a100-40gb", 108}, {"a100", 108},    {"a100-pcie-40gb", 108},
    {"a100-pcie", 108}, {"h100", 132},    {"h100-pcie", 114},
    {"h100-nvl", 132},  {"gh200", 132},   {"h200", 132},
    {"h200-nvl", 132},  {"b200", 148},    {"gb200", 148},
    {"a10", 72},        {"a10g", 80},     {"a30", 56},
    {"a40", 84},        {"l4", 58},       {"l40", 142},
    {"l40s", 142},      {"t4", 40},       {"rtx3090", 82},
    {"a6000", 84},      {"rtx4090", 128}, {"6000ada", 142},
    {"rtx5090", 170},
};

// A tile, and how fast it is beside the largest: it reads more for as much
// arithmetic. The order is that of the guide's section 2.3; the fractions are
// assumed.
struct Tile {
  int64_t m, n;
  double fraction;
};
constexpr Tile kTiles[] = {
    {256, 128, 1.0}, {128, 256, 1.0}, {128, 128, 0.9},
    {128, 64, 0.7},  {64, 128, 0.7},  {64, 64, 0.5},
};

// Splits of k, whose parts are summed by a further pass.
constexpr int64_t kSplits[] = {1, 2, 4, 8, 16};
constexpr int64_t kLeastPart = 512;
constexpr double kSplitFraction = 0.9;

// What filling the pipeline and writing a tile take, in elements of k: assumed;
// the shapes at which others reached the most have k of 1536 to 2816
// (gpu_model.cc).
constexpr double kRamp = 128;

int64_t Ceil(int64_t a, int64_t b) { return (a + b - 1) / b; }

}  // namespace

int MultiprocessorsOf(absl::string_view gpu_key) {
  for (const Multiprocessors& one : kMultiprocessors) {
    if (gpu_key == one.key) return one.count;
  }
  return 0;
}

double ProductFraction(const ProductShape& shape, int multiprocessors) {
  if (shape.products == 0 || multiprocessors == 0) return 1.0;
  double best = 0;
  for (const Tile& tile : kTiles) {
    for (const int64_t split : kSplits) {
      const int64_t part = Ceil(shape.k, split);
      if (split > 1 && part < kLeastPart) break;
      const int64_t tiles = shape.products * split * Ceil(shape.m, tile.m) *
                            Ceil(shape.n, tile.n);
      const int64_t slots = Ceil(tiles, multiprocessors) * multiprocessors;
      const double used =
          static_cast<double>(shape.products * split * shape.m) *
          static_cast<double>(shape.n) /
          (static_cast<double>(slots) * static_cast<double>(tile.m * tile.n));
      const double k = static_cast<double>(part);
      best = std::max(best, used * tile.fraction * k / (k + kRamp) *
                                (split > 1 ? kSplitFraction : 1.0));
    }
  }
  return best;
}

}  // namespace capstan
