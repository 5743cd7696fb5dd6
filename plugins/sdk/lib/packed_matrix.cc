// SPDX-License-Identifier: Apache-2.0
#include "plugins/sdk/lib/packed_matrix.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <mutex>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "kernels/quant/fp8.h"
#include "kernels/quant/nf4.h"

namespace capstan {
namespace {

using kernels::kNf4Block;
using kernels::Nf4Layout;

// Values that are quantised at a time: whole groups.
constexpr int64_t kPiece = kNf4Block * kernels::kNf4Group;

// What a matrix's double-quantised scales take.
struct DoubleScales {
  float offset = 0.0f;
  std::vector<float> groups;
  std::vector<uint8_t> quantised;
};

// Those of the last matrix that was asked for some, of any model: matrices are
// read one after another.
struct LastScales {
  static LastScales& Get() {
    static LastScales* const last = new LastScales;
    return *last;
  }
  std::mutex mutex;
  const void* owner = nullptr;
  std::shared_ptr<const DoubleScales> scales;
};

// A range of bytes that is asked for, and where it goes.
class Wanted {
 public:
  Wanted(int64_t begin, int64_t count, uint8_t* out)
      : begin_(begin), end_(begin + count), out_(out) {}

  // The part of [from, from + length) that is wanted, relative to `from`.
  std::pair<int64_t, int64_t> Part(int64_t from, int64_t length) const {
    return {std::clamp<int64_t>(begin_ - from, 0, length),
            std::clamp<int64_t>(end_ - from, 0, length)};
  }
  // `bytes` lie at `from`.
  void Put(int64_t from, const void* bytes, int64_t length) const {
    const auto [begin, end] = Part(from, length);
    if (begin >= end) return;
    std::memcpy(out_ + from + begin - begin_,
                static_cast<const uint8_t*>(bytes) + begin, end - begin);
  }
  void PutZeros(int64_t from, int64_t length) const {
    const auto [begin, end] = Part(from, length);
    if (begin < end) std::memset(out_ + from + begin - begin_, 0, end - begin);
  }

 private:
  const int64_t begin_, end_;
  uint8_t* const out_;
};

absl::Status NotFinite(const std::string& name, int64_t value) {
  return absl::DataLossError(absl::StrCat(
      "tensor '", name, "' has values that aren't finite among those from ",
      value, " on, and can't be quantised"));
}

class Nf4QuantizedMatrix final : public PackedMatrix {
 public:
  Nf4QuantizedMatrix(int64_t numel, bool double_quantised, ReadMatrix read,
                     std::string name)
      : layout_(numel, double_quantised),
        read_(std::move(read)),
        name_(std::move(name)) {}

  ~Nf4QuantizedMatrix() override {
    LastScales& last = LastScales::Get();
    const std::lock_guard<std::mutex> lock(last.mutex);
    if (last.owner != this) return;
    last.owner = nullptr;
    last.scales.reset();
  }

  Quantize format() const override {
    return layout_.double_quantised ? Quantize::kNf4Double : Quantize::kNf4;
  }
  int64_t bytes() const override { return layout_.bytes; }

  absl::Status ReadBytes(int64_t begin, int64_t count,
                         uint8_t* out) const override {
    const Wanted wanted(begin, count, out);
    CAPSTAN_RETURN_IF_ERROR(ReadNibbles(wanted));
    wanted.PutZeros(layout_.nibbles, layout_.offset - layout_.nibbles);
    return layout_.double_quantised ? ReadDoubleScales(wanted)
                                    : ReadScales(wanted);
  }

  absl::Status ReadValues(int64_t begin, int64_t count,
                          float* out) const override {
    std::shared_ptr<const DoubleScales> twice;
    if (layout_.double_quantised) {
      CAPSTAN_ASSIGN_OR_RETURN(twice, Scales());
    }
    return ForPieces(
        begin, begin + count,
        [&](int64_t first, int64_t n, const uint8_t* packed, float* scales) {
          if (twice != nullptr) {
            kernels::Nf4DoubleScales(
                twice->quantised.data(), twice->groups.data(), twice->offset,
                first / kNf4Block, (n + kNf4Block - 1) / kNf4Block, scales);
          }
          const int64_t from = std::max(begin, first);
          const int64_t end = std::min(begin + count, first + n);
          kernels::kNf4.best().dequantize(
              packed, scales + (from - first) / kNf4Block, from - first,
              end - from, out + from - begin);
        });
  }

 private:
  // fn(first value, count, their nibbles, their scales)
  using Piece = std::function<void(int64_t first, int64_t count,
                                   const uint8_t* packed, float* scales)>;

  // Quantises the blocks that hold values [begin, end), some at a time.
  absl::Status ForPieces(int64_t begin, int64_t end, const Piece& fn) const {
    begin = begin / kNf4Block * kNf4Block;
    end =
        std::min((end + kNf4Block - 1) / kNf4Block * kNf4Block, layout_.numel);
    std::vector<float> values(
        std::min(kPiece, std::max<int64_t>(end - begin, 0)));
    std::vector<uint8_t> packed((values.size() + 1) / 2);
    std::vector<float> scales((values.size() + kNf4Block - 1) / kNf4Block);
    for (; begin < end; begin += kPiece) {
      const int64_t count = std::min(kPiece, end - begin);
      CAPSTAN_RETURN_IF_ERROR(read_(begin, count, values.data()));
      kernels::QuantizeNf4(values.data(), count, packed.data(), scales.data());
      const int64_t blocks = (count + kNf4Block - 1) / kNf4Block;
      for (int64_t b = 0; b < blocks; ++b) {
        if (!std::isfinite(scales[b])) {
          return NotFinite(name_, begin + b * kNf4Block);
        }
      }
      fn(begin, count, packed.data(), scales.data());
    }
    return absl::OkStatus();
  }

  absl::Status ReadNibbles(const Wanted& wanted) const {
    const auto [begin, end] = wanted.Part(0, layout_.nibbles);
    return ForPieces(
        2 * begin, begin < end ? 2 * end : 2 * begin,
        [&](int64_t first, int64_t count, const uint8_t* packed, float*) {
          wanted.Put(first / 2, packed, (count + 1) / 2);
        });
  }

  absl::Status ReadScales(const Wanted& wanted) const {
    const auto [begin, end] = wanted.Part(layout_.scales, 4 * layout_.blocks);
    if (begin >= end) return absl::OkStatus();
    return ForPieces(
        begin / 4 * kNf4Block, (end + 3) / 4 * kNf4Block,
        [&](int64_t first, int64_t count, const uint8_t*, const float* scales) {
          const int64_t blocks = (count + kNf4Block - 1) / kNf4Block;
          wanted.Put(layout_.scales + first / kNf4Block * 4, scales,
                     4 * blocks);
        });
  }

  absl::Status ReadDoubleScales(const Wanted& wanted) const {
    const auto [begin, end] =
        wanted.Part(layout_.offset, layout_.bytes - layout_.offset);
    if (begin >= end) return absl::OkStatus();
    CAPSTAN_ASSIGN_OR_RETURN(const auto scales, Scales());
    wanted.Put(layout_.offset, &scales->offset, 4);
    wanted.Put(layout_.group_scales, scales->groups.data(), 4 * layout_.groups);
    wanted.Put(layout_.scales, scales->quantised.data(), layout_.blocks);
    return absl::OkStatus();
  }

  absl::StatusOr<std::shared_ptr<const DoubleScales>> Scales() const {
    LastScales& last = LastScales::Get();
    const std::lock_guard<std::mutex> lock(last.mutex);
    if (last.owner == this) return last.scales;
    std::vector<float> scales(layout_.blocks);
    CAPSTAN_RETURN_IF_ERROR(ForPieces(
        0, layout_.numel,
        [&](int64_t first, int64_t count, const uint8_t*, const float* some) {
          std::copy_n(some, (count + kNf4Block - 1) / kNf4Block,
                      scales.begin() + first / kNf4Block);
        }));
    auto made = std::make_shared<DoubleScales>();
    made->offset = kernels::Nf4Offset(scales.data(), layout_.blocks);
    made->groups.resize(layout_.groups);
    made->quantised.resize(layout_.blocks);
    kernels::QuantizeNf4Scales(scales.data(), layout_.blocks, made->offset,
                               made->quantised.data(), made->groups.data());
    last.owner = this;
    last.scales = std::move(made);
    return last.scales;
  }

  const Nf4Layout layout_;
  const ReadMatrix read_;
  const std::string name_;
};

class Fp8QuantizedMatrix final : public PackedMatrix {
 public:
  Fp8QuantizedMatrix(int64_t rows, int64_t columns, ReadMatrix read,
                     std::string name)
      : layout_(rows, columns),
        read_(std::move(read)),
        name_(std::move(name)) {}

  Quantize format() const override { return Quantize::kFp8; }
  int64_t bytes() const override { return layout_.bytes; }

  absl::Status ReadBytes(int64_t begin, int64_t count,
                         uint8_t* out) const override {
    const Wanted wanted(begin, count, out);
    const int64_t columns = layout_.columns, values = layout_.rows * columns;
    const auto [first, end] = wanted.Part(0, values);
    CAPSTAN_RETURN_IF_ERROR(
        ForRows(first, end, [&](int64_t row, const uint8_t* packed, float) {
          wanted.Put(row * columns, packed, columns);
        }));
    wanted.PutZeros(values, layout_.scales - values);
    const auto [scale, last] = wanted.Part(layout_.scales, 4 * layout_.rows);
    return ForRows(scale / 4 * columns, (last + 3) / 4 * columns,
                   [&](int64_t row, const uint8_t*, float of_row) {
                     wanted.Put(layout_.scales + 4 * row, &of_row, 4);
                   });
  }

  absl::Status ReadValues(int64_t begin, int64_t count,
                          float* out) const override {
    return ForRows(begin, begin + count,
                   [&](int64_t row, const uint8_t* packed, float scale) {
                     const int64_t from = row * layout_.columns;
                     const int64_t first = std::max(begin, from);
                     const int64_t end =
                         std::min(begin + count, from + layout_.columns);
                     kernels::DequantizeFp8(packed + first - from, scale,
                                            end - first, out + first - begin);
                   });
  }

 private:
  // fn(row, its bytes, its scale)
  using Row =
      std::function<void(int64_t row, const uint8_t* packed, float scale)>;

  // Quantises the rows that hold values [begin, end).
  absl::Status ForRows(int64_t begin, int64_t end, const Row& fn) const {
    if (begin >= end) return absl::OkStatus();
    const int64_t columns = layout_.columns;
    std::vector<float> values(columns);
    std::vector<uint8_t> packed(columns);
    for (int64_t row = begin / columns; row * columns < end; ++row) {
      CAPSTAN_RETURN_IF_ERROR(read_(row * columns, columns, values.data()));
      const float scale =
          kernels::QuantizeFp8(values.data(), columns, packed.data());
      if (!std::isfinite(scale)) return NotFinite(name_, row * columns);
      fn(row, packed.data(), scale);
    }
    return absl::OkStatus();
  }

  const kernels::Fp8Layout layout_;
  const ReadMatrix read_;
  const std::string name_;
};

}  // namespace

PackedMatrix::~PackedMatrix() = default;

std::unique_ptr<PackedMatrix> QuantizeMatrix(Quantize format, int64_t rows,
                                             int64_t columns, ReadMatrix read,
                                             std::string name) {
  if (format == Quantize::kFp8) {
    return std::make_unique<Fp8QuantizedMatrix>(rows, columns, std::move(read),
                                                std::move(name));
  }
  return std::make_unique<Nf4QuantizedMatrix>(rows * columns,
                                              format == Quantize::kNf4Double,
                                              std::move(read), std::move(name));
}

}  // namespace capstan
