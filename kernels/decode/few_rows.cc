// SPDX-License-Identifier: Apache-2.0
#include "kernels/decode/few_rows.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <vector>

#include "kernels/gemm/gemm.h"

namespace capstan::kernels {
namespace {

// Bytes of a matrix that a thread takes at a time: several microseconds, so
// that threads end together though one of them is interrupted.
constexpr int64_t kPieceBytes = int64_t{64} << 10;
// The fewest worth waking a thread.
constexpr int64_t kAloneBytes = int64_t{96} << 10;

const FewRowsKernels& Loops() {
#ifdef __x86_64__
  if (MultipliesBf16Pairs()) {
    return kFewRowsLoopsAvx512Bf16;
  }
#endif
  return kFewRowsLoops.best();
}

template <typename T>
void Fit(size_t size, std::vector<T>* values) {
  if (values->size() < size) values->resize(size);
}

// The rows of x in the forms that matrices need.
class Rows {
 public:
  Rows(const float* x, int64_t stride, int64_t rows)
      : x_(x), stride_(stride), rows_(rows) {}

  // For matrices of bfloat16. In memory that outlives this, of this thread.
  void Round(int64_t columns) {
    thread_local std::vector<Bf16> rounded;
    thread_local std::vector<float> widened;
    Fit(rows_ * columns, &rounded);
    for (int64_t r = 0; r < rows_; ++r) {
      Simd().bf16.scaled(x_ + r * stride_, 1.0f, columns,
                         rounded.data() + r * columns);
    }
    rounded_ = rounded.data();
    if (Loops().pairs != nullptr) return;
    Fit(rows_ * columns, &widened);
    Loops().read_bf16(rounded_, 1.0f, rows_ * columns, widened.data());
    widened_ = widened.data();
  }

  // By rows [begin, end) of a product's matrix.
  void Multiply(const FewRowsProduct& p, int64_t begin, int64_t end) const {
    const FewRowsKernels& loops = Loops();
    const int64_t n = p.w.columns;
    const auto run = [&](auto multiply, auto* w, auto* x, int64_t x_stride) {
      multiply(w + begin * n,
               p.w.scales == nullptr ? nullptr : p.w.scales + begin,
               end - begin, n, n, x, x_stride, rows_, p.add, p.y + begin,
               p.y_stride);
    };
    switch (p.w.type) {
      case MatrixType::kFloat:
        return run(loops.fp32, static_cast<const float*>(p.w.data), x_,
                   stride_);
      case MatrixType::kBf16: {
        const auto* const w = static_cast<const Bf16*>(p.w.data);
        if (rounded_ == nullptr) return run(loops.bf16, w, x_, stride_);
        if (widened_ == nullptr) return run(loops.pairs, w, rounded_, n);
        return run(loops.bf16, w, widened_, n);
      }
      case MatrixType::kFp16:
        return run(loops.fp16, static_cast<const Fp16*>(p.w.data), x_, stride_);
      case MatrixType::kInt8:
        return run(loops.int8, static_cast<const int8_t*>(p.w.data), x_,
                   stride_);
    }
  }

 private:
  const float* const x_;
  const int64_t stride_;
  const int64_t rows_;
  // Rounded, dense; null: not needed.
  const Bf16* rounded_ = nullptr;
  const float* widened_ = nullptr;
};

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

bool RoundsToBf16() { return MultipliesBf16(); }

bool TakesFewRows(int64_t rows) {
  return rows <= kFewRows && !at::globalContext().deterministicAlgorithms();
}

void FewRows(const float* x, int64_t x_stride, int64_t rows,
             const FewRowsProduct* products, int count) {
  Rows values(x, x_stride, rows);
  int64_t bytes = 0;
  bool halves = false;
  for (int i = 0; i < count; ++i) {
    bytes += products[i].w.rows * products[i].w.row_bytes();
    halves = halves || products[i].w.type == MatrixType::kBf16;
  }
  if (halves && RoundsToBf16()) values.Round(products[0].w.columns);
  const int threads = at::get_num_threads();
  if (threads == 1 || bytes < kAloneBytes || at::in_parallel_region()) {
    for (int i = 0; i < count; ++i) {
      values.Multiply(products[i], 0, products[i].w.rows);
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
        values.Multiply(p, begin, std::min(begin + step, p.w.rows));
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
