// SPDX-License-Identifier: Apache-2.0
#include "kernels/decode/few_rows.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>

namespace capstan::kernels {
namespace {

// Bytes of a matrix that a thread takes at a time: several microseconds, so
// that threads end together though one of them is interrupted.
constexpr int64_t kPieceBytes = int64_t{64} << 10;
// The fewest worth waking a thread.
constexpr int64_t kAloneBytes = int64_t{96} << 10;

// Rows [begin, end) of a product's matrix.
void Part(const float* x, int64_t x_stride, int64_t rows,
          const FewRowsProduct& p, int64_t begin, int64_t end) {
  const FewRowsKernels& loops = kFewRowsLoops.best();
  const auto run = [&](auto multiply, auto* data) {
    multiply(data + begin * p.w.columns,
             p.w.scales == nullptr ? nullptr : p.w.scales + begin, end - begin,
             p.w.columns, p.w.columns, x, x_stride, rows, p.add, p.y + begin,
             p.y_stride);
  };
  switch (p.w.type) {
    case MatrixType::kFloat:
      return run(loops.fp32, static_cast<const float*>(p.w.data));
    case MatrixType::kBf16:
      return run(loops.bf16, static_cast<const Bf16*>(p.w.data));
    case MatrixType::kFp16:
      return run(loops.fp16, static_cast<const Fp16*>(p.w.data));
    case MatrixType::kInt8:
      return run(loops.int8, static_cast<const int8_t*>(p.w.data));
  }
}

// Rows of a matrix in one piece: a multiple of what the loops take at a time.
int64_t PieceRows(const StoredMatrix& w) {
  return std::max<int64_t>(8, kPieceBytes / w.row_bytes() / 8 * 8);
}

}  // namespace

StoredMatrix StoredMatrix::Rows(int64_t begin, int64_t count) const {
  StoredMatrix part = *this;
  part.data = static_cast<const char*>(data) + begin * row_bytes();
  if (scales != nullptr) part.scales = scales + begin;
  part.rows = count;
  return part;
}

void FewRows(const float* x, int64_t x_stride, int64_t rows,
             const FewRowsProduct* products, int count) {
  int64_t bytes = 0;
  for (int i = 0; i < count; ++i) {
    bytes += products[i].w.rows * products[i].w.row_bytes();
  }
  const int threads = at::get_num_threads();
  if (threads == 1 || bytes < kAloneBytes || at::in_parallel_region()) {
    for (int i = 0; i < count; ++i) {
      Part(x, x_stride, rows, products[i], 0, products[i].w.rows);
    }
    return;
  }
  // Pieces of all products in a row, which threads take as they come.
  std::atomic<int64_t> next{0};
  at::parallel_for(0, threads, 1, [&](int64_t, int64_t) {
    int64_t piece = next.fetch_add(1, std::memory_order_relaxed);
    int64_t first = 0;  // of the product's pieces
    for (int i = 0; i < count; ++i) {
      const FewRowsProduct& p = products[i];
      const int64_t step = PieceRows(p.w);
      const int64_t pieces = (p.w.rows + step - 1) / step;
      for (; piece < first + pieces;
           piece = next.fetch_add(1, std::memory_order_relaxed)) {
        const int64_t begin = (piece - first) * step;
        Part(x, x_stride, rows, p, begin, std::min(begin + step, p.w.rows));
      }
      first += pieces;
    }
  });
}

void ReadMatrix(const StoredMatrix& matrix, int64_t row, int64_t begin,
                int64_t count, float* out) {
  const FewRowsKernels& loops = kFewRowsLoops.best();
  const int64_t at = row * matrix.columns + begin;
  switch (matrix.type) {
    case MatrixType::kFloat:
      std::memcpy(out, static_cast<const float*>(matrix.data) + at,
                  count * sizeof(float));
      return;
    case MatrixType::kBf16:
      return loops.read_bf16(static_cast<const Bf16*>(matrix.data) + at, 1.0f,
                             count, out);
    case MatrixType::kFp16:
      return loops.read_fp16(static_cast<const Fp16*>(matrix.data) + at, 1.0f,
                             count, out);
    case MatrixType::kInt8:
      return loops.read_int8(static_cast<const int8_t*>(matrix.data) + at,
                             matrix.scales[row], count, out);
  }
}

float QuantizeInt8(const float* x, int64_t n, int8_t* out) {
  float most = 0.0f;
  bool finite = true;
  for (int64_t i = 0; i < n; ++i) {
    most = std::max(most, std::fabs(x[i]));
    finite = finite && std::isfinite(x[i]);
  }
  if (!finite || most == 0.0f) {
    for (int64_t i = 0; i < n; ++i) out[i] = finite ? 0 : 1;
    return finite ? 0.0f : NAN;
  }
  const float scale = most / 127.0f, inverse = 127.0f / most;
  for (int64_t i = 0; i < n; ++i) {
    const float value = std::nearbyint(x[i] * inverse);
    out[i] = static_cast<int8_t>(std::clamp(value, -127.0f, 127.0f));
  }
  return scale;
}

}  // namespace capstan::kernels
