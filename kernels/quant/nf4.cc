// SPDX-License-Identifier: Apache-2.0
//
// Compiled without contraction: a double-quantised scale is rounded twice.
#include "kernels/quant/nf4.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace capstan::kernels {
namespace {

int64_t Up(int64_t n, int64_t multiple) {
  return (n + multiple - 1) / multiple * multiple;
}

struct Dynamic {
  Dynamic() {
    // Exponent e has 2^e numbers, the middles of equal parts of [0.1, 1] times
    // 10^(e - 6), and their negatives; then 0 and 1.
    int place = 128;
    for (int e = 0; e < 7; ++e) {
      const int parts = 1 << e;
      const float step = (1.0f - 0.1f) / static_cast<float>(parts);
      // As torch.linspace: from both ends, each rounded once.
      const auto border = [&](int i) {
        return i < (parts + 1) / 2
                   ? std::fma(step, static_cast<float>(i), 0.1f)
                   : std::fma(-step, static_cast<float>(parts - i), 1.0f);
      };
      const auto power = static_cast<float>(std::pow(10.0, e - 6));
      for (int i = 0; i < parts; ++i, ++place) {
        values[place] = power * ((border(i) + border(i + 1)) / 2.0f);
        values[254 - place] = -values[place];
      }
    }
    values[127] = 0.0f;
    values[255] = 1.0f;
  }
  float values[256];
};

uint8_t NearestDynamic(float x) {
  const float* const values = DynamicValues();
  const int above =
      static_cast<int>(std::lower_bound(values, values + 256, x) - values);
  if (above == 0) return 0;
  if (above == 256) return 255;
  const bool below = x - values[above - 1] <= values[above] - x;
  return static_cast<uint8_t>(above - (below ? 1 : 0));
}

float LoadFloat(const uint8_t* p) {
  float value;
  std::memcpy(&value, p, sizeof(value));
  return value;
}

}  // namespace

const float* DynamicValues() {
  static const Dynamic* const dynamic = new Dynamic;
  return dynamic->values;
}

Nf4Layout::Nf4Layout(int64_t numel, bool double_quantised)
    : numel(numel),
      double_quantised(double_quantised),
      blocks((numel + kNf4Block - 1) / kNf4Block),
      groups(double_quantised ? (blocks + kNf4Group - 1) / kNf4Group : 0),
      nibbles((numel + 1) / 2) {
  offset = Up(nibbles, 64);
  group_scales = offset + (double_quantised ? 4 : 0);
  scales = group_scales + 4 * groups;
  bytes = scales + (double_quantised ? blocks : 4 * blocks);
}

void Nf4DoubleScales(const uint8_t* quantised, const void* group_scales,
                     float offset, int64_t first, int64_t count,
                     float* scales) {
  const float* const values = DynamicValues();
  for (int64_t i = 0; i < count;) {
    const int64_t group = (first + i) / kNf4Group;
    const int64_t end = std::min(count, (group + 1) * kNf4Group - first);
    const float scale =
        LoadFloat(static_cast<const uint8_t*>(group_scales) + 4 * group);
    for (; i < end; ++i) {
      scales[i] = values[quantised[first + i]] * scale + offset;
    }
  }
}

void Nf4Scales(const Nf4Matrix& matrix, int64_t first, int64_t count,
               float* scales) {
  const Nf4Layout& layout = matrix.layout;
  const uint8_t* const bytes = matrix.bytes;
  if (layout.double_quantised) {
    Nf4DoubleScales(bytes + layout.scales, bytes + layout.group_scales,
                    LoadFloat(bytes + layout.offset), first, count, scales);
  } else {
    std::memcpy(scales, bytes + layout.scales + 4 * first, 4 * count);
  }
}

void DequantizeNf4(const Nf4Matrix& matrix, int64_t begin, int64_t count,
                   float* out) {
  constexpr int64_t kBlocks = 256;
  float scales[kBlocks];
  while (count > 0) {
    const int64_t block = begin / kNf4Block;
    const int64_t piece =
        std::min(count, (block + kBlocks) * kNf4Block - begin);
    Nf4Scales(matrix, block,
              (begin + piece + kNf4Block - 1) / kNf4Block - block, scales);
    kNf4.best().dequantize(matrix.bytes, scales, begin, piece, out);
    begin += piece;
    count -= piece;
    out += piece;
  }
}

void QuantizeNf4(const float* x, int64_t n, uint8_t* packed, float* scales) {
  kNf4.best().quantize(x, n, packed, scales);
}

float Nf4Offset(const float* scales, int64_t count) {
  double sum = 0.0;
  for (int64_t i = 0; i < count; ++i) sum += static_cast<double>(scales[i]);
  return static_cast<float>(sum / static_cast<double>(count));
}

void QuantizeNf4Scales(const float* scales, int64_t count, float offset,
                       uint8_t* quantised, float* group_scales) {
  for (int64_t begin = 0; begin < count; begin += kNf4Group) {
    const int64_t end = std::min(count, begin + kNf4Group);
    float largest = 0.0f;
    for (int64_t i = begin; i < end; ++i) {
      largest = std::max(largest, std::abs(scales[i] - offset));
    }
    group_scales[begin / kNf4Group] = largest;
    const float inverse = largest > 0.0f ? 1.0f / largest : 0.0f;
    for (int64_t i = begin; i < end; ++i) {
      quantised[i] = NearestDynamic((scales[i] - offset) * inverse);
    }
  }
}

}  // namespace capstan::kernels
