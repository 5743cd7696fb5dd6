// SPDX-License-Identifier: Apache-2.0
//
// The layouts are those of the blocks of ggml (github.com/ggml-org/ggml,
// ggml-common.h and docs/gguf.md); how values are chosen is our own.
#include "desk/export/gguf_types.h"

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "glog/logging.h"

namespace capstan {
namespace {

constexpr int kMostValues = 256;  // of a block
constexpr int kMostGroups = 16;

// A quantised type's blocks.
struct Layout {
  GgufType type;
  int values;      // of a block
  int bytes;       // of a block
  int group;       // values that share a step
  int codes;       // codes are 0 .. codes - 1
  bool offsets;    // groups have offsets; else the middle code means 0
  int step_limit;  // steps are 1 .. this times the block's; 0: one group
  // The bound of GgufError, as a share of the block's range: half a step (a
  // whole one where the middle code leaves the last of a sign out), and what
  // rounding the steps and offsets of groups adds.
  double error;
};

constexpr Layout kLayouts[] = {
    {GgufType::kQ4_0, 32, 18, 32, 16, false, 0, 1.0 / 8},
    {GgufType::kQ5_0, 32, 22, 32, 32, false, 0, 1.0 / 16},
    {GgufType::kQ5_1, 32, 24, 32, 32, true, 0, 0.5 / 31},
    {GgufType::kQ8_0, 32, 34, 32, 256, false, 0, 0.5 / 127},
    {GgufType::kQ4_K, 256, 144, 32, 16, true, 63, 0.5 / 15 + 1.0 / 63},
    {GgufType::kQ5_K, 256, 176, 32, 32, true, 63, 0.5 / 31 + 1.0 / 63},
    {GgufType::kQ6_K, 256, 210, 16, 64, false, 127, 1.0 / 32 + 0.5 / 127},
};

const Layout* LayoutOf(GgufType type) {
  for (const Layout& layout : kLayouts) {
    if (layout.type == type) return &layout;
  }
  return nullptr;
}

// A block, unpacked: a value is step[g] * code - offset[g], where the steps of
// groups are multiples of the block's.
struct Block {
  float step = 0.0f;    // of the block, a float16
  float offset = 0.0f;  // the same
  int steps[kMostGroups] = {1};
  int offsets[kMostGroups] = {1};
  int codes[kMostValues];

  float Step(int group) const {
    return step * static_cast<float>(steps[group]);
  }
  float Offset(const Layout& layout, int group) const {
    return layout.offsets ? offset * static_cast<float>(offsets[group])
                          : Step(group) * static_cast<float>(layout.codes / 2);
  }
};

float ToHalf(float value) { return c10::Half(value); }

void PutHalf(float value, char* out) {
  const c10::Half half(value);
  std::memcpy(out, &half.x, 2);
}

float GetHalf(const char* bytes) {
  uint16_t bits;
  std::memcpy(&bits, bytes, 2);
  return c10::Half(bits, c10::Half::from_bits());
}

// Eight steps and eight offsets of 6 bits: four of each in the low bits of
// bytes, the rest split between the last four bytes and the high bits.
void PackSixes(const Block& block, char* out) {
  for (int i = 0; i < 4; ++i) {
    const int step = block.steps[i + 4], offset = block.offsets[i + 4];
    out[i] = static_cast<char>(block.steps[i] | step >> 4 << 6);
    out[i + 4] = static_cast<char>(block.offsets[i] | offset >> 4 << 6);
    out[i + 8] = static_cast<char>((step & 15) | (offset & 15) << 4);
  }
}

void UnpackSixes(const uint8_t* bytes, Block* block) {
  for (int i = 0; i < 4; ++i) {
    block->steps[i] = bytes[i] & 63;
    block->offsets[i] = bytes[i + 4] & 63;
    block->steps[i + 4] = (bytes[i + 8] & 15) | bytes[i] >> 6 << 4;
    block->offsets[i + 4] = bytes[i + 8] >> 4 | bytes[i + 4] >> 6 << 4;
  }
}

// Where a code's bits are: `low` of them at bit low_shift of byte low_byte of
// the low part, the others at high_shift of byte high_byte of the high part.
struct Place {
  int low_byte, low_shift, high_byte, high_shift;
};

Place PlaceOf(GgufType type, int i) {
  switch (type) {
    case GgufType::kQ4_K:
    case GgufType::kQ5_K: {
      const int group = i / 32;
      return {group / 2 * 32 + i % 32, group % 2 * 4, i % 32, group};
    }
    case GgufType::kQ6_K: {
      const int half = i / 128, quarter = i % 128 / 32;
      return {half * 64 + quarter % 2 * 32 + i % 32, quarter / 2 * 4,
              half * 32 + i % 32, quarter * 2};
    }
    default:
      return {i % 16, i / 16 * 4, i / 8, i % 8};
  }
}

// The places of a block's parts in its bytes; -1: it has none.
struct Parts {
  int step, offset, steps, low, high;
};

Parts PartsOf(GgufType type) {
  switch (type) {
    case GgufType::kQ5_0:
      return {0, -1, -1, 6, 2};
    case GgufType::kQ5_1:
      return {0, 2, -1, 8, 4};
    case GgufType::kQ4_K:
      return {0, 2, 4, 16, -1};
    case GgufType::kQ5_K:
      return {0, 2, 4, 48, 16};
    case GgufType::kQ6_K:
      return {208, -1, 192, 0, 128};
    default:  // kQ4_0, kQ8_0
      return {0, -1, -1, 2, -1};
  }
}

void Pack(const Layout& layout, const Block& block, char* out) {
  const Parts parts = PartsOf(layout.type);
  std::memset(out, 0, layout.bytes);
  PutHalf(block.step, out + parts.step);
  // Q5_1 has the least value in place of what is subtracted.
  if (parts.offset >= 0) {
    PutHalf(parts.steps < 0 ? -block.offset : block.offset, out + parts.offset);
  }
  if (layout.type == GgufType::kQ6_K) {
    for (int g = 0; g < 16; ++g) {
      out[parts.steps + g] = static_cast<char>(block.steps[g]);
    }
  } else if (parts.steps >= 0) {
    PackSixes(block, out + parts.steps);
  }
  for (int i = 0; i < layout.values; ++i) {
    const int code = block.codes[i];
    if (layout.codes == 256) {
      out[parts.low + i] = static_cast<char>(code - 128);
      continue;
    }
    const Place place = PlaceOf(layout.type, i);
    out[parts.low + place.low_byte] |=
        static_cast<char>((code & 15) << place.low_shift);
    if (parts.high >= 0) {
      out[parts.high + place.high_byte] |=
          static_cast<char>(code >> 4 << place.high_shift);
    }
  }
}

Block Unpack(const Layout& layout, const char* bytes) {
  const Parts parts = PartsOf(layout.type);
  const auto* const raw = reinterpret_cast<const uint8_t*>(bytes);
  Block block;
  block.step = GetHalf(bytes + parts.step);
  if (parts.offset >= 0) {
    block.offset = GetHalf(bytes + parts.offset) * (parts.steps < 0 ? -1 : 1);
  }
  if (layout.type == GgufType::kQ6_K) {
    for (int g = 0; g < 16; ++g) {
      block.steps[g] = static_cast<int8_t>(bytes[parts.steps + g]);
    }
  } else if (parts.steps >= 0) {
    UnpackSixes(raw + parts.steps, &block);
  }
  const int high_mask = layout.codes / 16 - 1;
  for (int i = 0; i < layout.values; ++i) {
    if (layout.codes == 256) {
      block.codes[i] = static_cast<int8_t>(bytes[parts.low + i]) + 128;
      continue;
    }
    const Place place = PlaceOf(layout.type, i);
    block.codes[i] = raw[parts.low + place.low_byte] >> place.low_shift & 15;
    if (parts.high >= 0) {
      block.codes[i] |=
          (raw[parts.high + place.high_byte] >> place.high_shift & high_mask)
          << 4;
    }
  }
  return block;
}

// A group's line before it is rounded: values are near step * code - offset.
struct Line {
  float step = 0.0f;
  float offset = 0.0f;
};

int CodeOf(const Layout& layout, float value, const Line& line) {
  if (line.step == 0.0f) return 0;
  const float code = std::nearbyint((value + line.offset) / line.step);
  // Also where it isn't a number.
  if (!(code > 0.0f)) return 0;
  return static_cast<int>(std::min(code, static_cast<float>(layout.codes - 1)));
}

double SquaredError(const Layout& layout, const float* values,
                    const Line& line) {
  double sum = 0.0;
  for (int i = 0; i < layout.group; ++i) {
    const int code = CodeOf(layout, values[i], line);
    const double error =
        values[i] - (line.step * static_cast<double>(code) - line.offset);
    sum += error * error;
  }
  return sum;
}

// The line through a group's ends, or one that cuts a little off them where
// that leaves less error.
Line BestLine(const Layout& layout, const float* values) {
  float low = values[0], high = values[0];
  for (int i = 1; i < layout.group; ++i) {
    low = std::min(low, values[i]);
    high = std::max(high, values[i]);
  }
  Line whole;
  if (layout.offsets) {
    // Groups of a block can only subtract.
    if (layout.step_limit > 0) low = std::min(low, 0.0f);
    whole = {(high - low) / static_cast<float>(layout.codes - 1), -low};
  } else if (layout.codes == 256) {
    whole.step = std::max(high, -low) / 127.0f;
  } else {
    // The codes reach one step further on the side of the largest value.
    whole.step =
        (high > -low ? high : low) / static_cast<float>(-layout.codes / 2);
  }
  if (!layout.offsets) {
    whole.offset = whole.step * static_cast<float>(layout.codes / 2);
  }
  if (layout.step_limit == 0) return whole;
  Line best = whole;
  double least = SquaredError(layout, values, whole);
  for (const float share : {0.95f, 0.9f, 0.85f}) {
    const Line line = {whole.step * share, whole.offset * share};
    const double error = SquaredError(layout, values, line);
    if (error < least) {
      least = error;
      best = line;
    }
  }
  return best;
}

// The multiple of `unit` that is nearest to `value`, up to `limit` times it.
int MultipleOf(float unit, float value, int limit) {
  if (unit == 0.0f) return 0;
  return std::clamp(static_cast<int>(std::nearbyint(value / unit)), -limit,
                    limit);
}

void EncodeBlock(const Layout& layout, const float* values, char* out) {
  Block block;
  const int groups = layout.values / layout.group;
  Line lines[kMostGroups];
  float most_step = 0.0f, most_offset = 0.0f;
  for (int g = 0; g < groups; ++g) {
    lines[g] = BestLine(layout, values + g * layout.group);
    most_step = std::max(most_step, std::fabs(lines[g].step));
    most_offset = std::max(most_offset, lines[g].offset);
  }
  const int limit = layout.step_limit;
  if (limit == 0) {
    block.step = ToHalf(lines[0].step);
    block.offset = ToHalf(lines[0].offset);
  } else {
    block.step = ToHalf(most_step / static_cast<float>(limit));
    block.offset = ToHalf(most_offset / static_cast<float>(limit));
    for (int g = 0; g < groups; ++g) {
      block.steps[g] = MultipleOf(block.step, lines[g].step, limit);
      block.offsets[g] = MultipleOf(block.offset, lines[g].offset, limit);
    }
  }
  for (int i = 0; i < layout.values; ++i) {
    const int g = i / layout.group;
    const Line line = {block.Step(g), block.Offset(layout, g)};
    block.codes[i] = CodeOf(layout, values[i], line);
  }
  Pack(layout, block, out);
}

void DecodeBlock(const Layout& layout, const char* bytes, float* out) {
  const Block block = Unpack(layout, bytes);
  for (int i = 0; i < layout.values; ++i) {
    const int g = i / layout.group;
    out[i] = block.Step(g) * static_cast<float>(block.codes[i]) -
             block.Offset(layout, g);
  }
}

}  // namespace

absl::string_view GgufTypeName(GgufType type) {
  static constexpr std::pair<GgufType, absl::string_view> kNames[] = {
      {GgufType::kF32, "F32"},   {GgufType::kF16, "F16"},
      {GgufType::kBF16, "BF16"}, {GgufType::kQ4_0, "Q4_0"},
      {GgufType::kQ5_0, "Q5_0"}, {GgufType::kQ5_1, "Q5_1"},
      {GgufType::kQ8_0, "Q8_0"}, {GgufType::kQ4_K, "Q4_K"},
      {GgufType::kQ5_K, "Q5_K"}, {GgufType::kQ6_K, "Q6_K"}};
  for (const auto& [known, name] : kNames) {
    if (type == known) return name;
  }
  return "";
}

int64_t GgufBlock(GgufType type) {
  const Layout* const layout = LayoutOf(type);
  return layout == nullptr ? 1 : layout->values;
}

int64_t GgufBytes(GgufType type, int64_t values) {
  CHECK_EQ(values % GgufBlock(type), 0);
  const Layout* const layout = LayoutOf(type);
  if (layout == nullptr) return values * (type == GgufType::kF32 ? 4 : 2);
  return values / layout->values * layout->bytes;
}

void ToGguf(GgufType type, const float* values, int64_t count, char* out) {
  const Layout* const layout = LayoutOf(type);
  if (type == GgufType::kF32) {
    std::memcpy(out, values, count * 4);
  } else if (type == GgufType::kF16) {
    for (int64_t i = 0; i < count; ++i) PutHalf(values[i], out + 2 * i);
  } else if (type == GgufType::kBF16) {
    for (int64_t i = 0; i < count; ++i) {
      const c10::BFloat16 value(values[i]);
      std::memcpy(out + 2 * i, &value.x, 2);
    }
  } else {
    for (int64_t i = 0; i < count; i += layout->values) {
      EncodeBlock(*layout, values + i, out);
      out += layout->bytes;
    }
  }
}

void FromGguf(GgufType type, const char* bytes, int64_t count, float* out) {
  const Layout* const layout = LayoutOf(type);
  if (type == GgufType::kF32) {
    std::memcpy(out, bytes, count * 4);
  } else if (type == GgufType::kF16) {
    for (int64_t i = 0; i < count; ++i) out[i] = GetHalf(bytes + 2 * i);
  } else if (type == GgufType::kBF16) {
    for (int64_t i = 0; i < count; ++i) {
      uint16_t bits;
      std::memcpy(&bits, bytes + 2 * i, 2);
      out[i] = c10::BFloat16(bits, c10::BFloat16::from_bits());
    }
  } else {
    for (int64_t i = 0; i < count; i += layout->values) {
      DecodeBlock(*layout, bytes, out + i);
      bytes += layout->bytes;
    }
  }
}

double GgufError(GgufType type, const float* wanted, const float* got) {
  const Layout* const layout = LayoutOf(type);
  const int64_t values = GgufBlock(type);
  double squares = 0.0, low = 0.0, high = 0.0;
  if (type == GgufType::kQ5_1) low = high = wanted[0];
  for (int64_t i = 0; i < values; ++i) {
    const double error = static_cast<double>(wanted[i]) - got[i];
    squares += error * error;
    low = std::min<double>(low, wanted[i]);
    high = std::max<double>(high, wanted[i]);
  }
  const double error = std::sqrt(squares / static_cast<double>(values));
  if (error == 0.0) return 0.0;
  const double largest = std::max(std::fabs(low), std::fabs(high));
  double allowed = 0.0;
  if (type == GgufType::kF16) {
    // Half the distance of numbers, and of the smallest ones.
    allowed = largest * 0x1p-11 + 0x1p-25;
  } else if (type == GgufType::kBF16) {
    allowed = largest * 0x1p-8 + 0x1p-134;
  } else if (layout != nullptr) {
    const double range = layout->offsets ? high - low : largest;
    // Beside the type's own: float16 steps and offsets, and their smallest.
    allowed = layout->error * range + largest * 0x1p-10 +
              0x1p-25 * layout->codes * std::max(layout->step_limit, 1);
  }
  // Also for what isn't a number.
  return allowed > 0.0 && error <= 1e38 ? error / allowed : INFINITY;
}

}  // namespace capstan
