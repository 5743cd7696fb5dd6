// SPDX-License-Identifier: Apache-2.0
#include "kernels/quant/fp8.h"

#include <c10/util/Float8_e4m3fn.h>

#include <algorithm>
#include <array>
#include <cmath>

namespace capstan::kernels {
namespace {

std::array<float, 256> MakeTable() {
  std::array<float, 256> table;
  for (int i = 0; i < 256; ++i) {
    table[i] = c10::detail::fp8e4m3fn_to_fp32_value(static_cast<uint8_t>(i));
  }
  return table;
}

}  // namespace

float QuantizeFp8(const float* row, int64_t n, uint8_t* out) {
  float amax = kLeastAmax;
  bool finite = true;
  for (int64_t i = 0; i < n; ++i) {
    amax = std::max(amax, std::fabs(row[i]));
    finite &= std::isfinite(row[i]);
  }
  if (!finite) return INFINITY;
  const float scale = amax / kE4m3Most, factor = 1.0f / scale;
  for (int64_t i = 0; i < n; ++i) {
    out[i] = c10::detail::fp8e4m3fn_from_fp32_value(row[i] * factor);
  }
  return scale;
}

void DequantizeFp8(const uint8_t* values, float scale, int64_t n, float* out) {
  static const std::array<float, 256> table = MakeTable();
  for (int64_t i = 0; i < n; ++i) out[i] = table[values[i]] * scale;
}

}  // namespace capstan::kernels
