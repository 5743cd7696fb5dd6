// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_KERNELS_QUANT_PACK_NF4_FOR_TEST_H_
#define CAPSTAN_KERNELS_QUANT_PACK_NF4_FOR_TEST_H_

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "kernels/quant/nf4.h"

namespace capstan::kernels {

// Packs all of x[layout.numel] to layout.bytes.
inline void PackNf4(const float* x, const Nf4Layout& layout, uint8_t* bytes) {
  std::fill(bytes + layout.nibbles, bytes + layout.offset, uint8_t{0});
  std::vector<float> scales(layout.blocks);
  QuantizeNf4(x, layout.numel, bytes, scales.data());
  if (!layout.double_quantised) {
    std::memcpy(bytes + layout.scales, scales.data(), 4 * layout.blocks);
    return;
  }
  const float offset = Nf4Offset(scales.data(), layout.blocks);
  std::vector<float> groups(layout.groups);
  QuantizeNf4Scales(scales.data(), layout.blocks, offset, bytes + layout.scales,
                    groups.data());
  std::memcpy(bytes + layout.offset, &offset, 4);
  std::memcpy(bytes + layout.group_scales, groups.data(), 4 * layout.groups);
}

}  // namespace capstan::kernels

#endif  // CAPSTAN_KERNELS_QUANT_PACK_NF4_FOR_TEST_H_
