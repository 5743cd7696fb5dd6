// SPDX-License-Identifier: Apache-2.0
#include "kernels/gemm/gemm.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

// From the BLAS in libtorch_cpu, which at::mm calls; calling it directly saves
// the microsecond or two of making tensors and dispatching for each block of an
// attention head. Only the Fortran interface is exported.
extern "C" void sgemm_(const char* transpose_a, const char* transpose_b,
                       const int* m, const int* n, const int* k,
                       const float* alpha, const float* a, const int* lda,
                       const float* b, const int* ldb, const float* beta,
                       float* c, const int* ldc);

namespace capstan::kernels {
namespace {

// The fewest multiplications worth waking a thread.
constexpr int64_t kGrain = int64_t{1} << 20;

// Null: the BLAS. Constant per machine, so that runs repeat bit by bit.
const GemmKernels* Chosen() {
  static const GemmKernels* const chosen = []() -> const GemmKernels* {
    if (BestInstructionSet() == InstructionSet::kPlain) return nullptr;
    const GemmKernels* const best = &kGemm.best();
    const char* const wish = std::getenv("CAPSTAN_GEMM");
    if (wish != nullptr && std::strcmp(wish, "blas") == 0) return nullptr;
    if (wish != nullptr && std::strcmp(wish, "own") == 0) return best;
#ifdef __x86_64__
    if (__builtin_cpu_is("intel")) return nullptr;
#endif
    return best;
  }();
  return chosen;
}

// This thread's panels, reused by later products.
float* Space() {
  struct Free {
    void operator()(float* p) const { std::free(p); }
  };
  thread_local std::unique_ptr<float, Free> space(
      static_cast<float*>(std::aligned_alloc(
          4096,
          ((kGemmSpace + kGemmRead) * sizeof(float) + 4095) / 4096 * 4096)));
  return space.get();
}

void Blas(const GemmProblem& p) {
  const char left = p.a_transposed ? 'T' : 'N';
  const char right = p.b_transposed ? 'T' : 'N';
  const int m = static_cast<int>(p.m), n = static_cast<int>(p.n);
  const int k = static_cast<int>(p.k);
  const int a_stride = static_cast<int>(p.a.stride);
  const int b_stride = static_cast<int>(p.b.stride);
  const int c_stride = static_cast<int>(p.c.stride);
  // Fortran sees a row-major matrix as its transpose: c^T = b^T a^T.
  sgemm_(&right, &left, &n, &m, &k, &p.alpha, p.b.data, &b_stride, p.a.data,
         &a_stride, &p.beta, p.c.data, &c_stride);
}

// The longer dimension is divided among threads, in whole tiles.
void Own(const GemmKernels& kernels, const GemmProblem& p) {
  constexpr int64_t kUnit = 32;
  const int64_t side = std::max(p.m, p.n);
  const int64_t units = (side + kUnit - 1) / kUnit;
  const int64_t work = p.m * p.n * p.k;
  const int64_t pieces =
      at::in_parallel_region()
          ? 1
          : std::min<int64_t>({at::get_num_threads(), units,
                               std::max<int64_t>(1, work / kGrain)});
  const auto run = [&](int64_t piece) {
    const int64_t begin = units * piece / pieces * kUnit;
    const int64_t end = std::min(side, units * (piece + 1) / pieces * kUnit);
    if (p.m >= p.n) {
      kernels.run(p, begin, end, 0, p.n, Space());
    } else {
      kernels.run(p, 0, p.m, begin, end, Space());
    }
  };
  if (pieces == 1) return run(0);
  at::parallel_for(0, pieces, 1, [&](int64_t first, int64_t last) {
    for (int64_t piece = first; piece < last; ++piece) run(piece);
  });
}

// Without loops of our own: as many of b's rows at a time as fill a megabyte.
void BlasOfParts(const GemmProblem& p) {
  const int64_t columns = p.b_transposed ? p.k : p.n;
  const int64_t rows = p.b_transposed ? p.n : p.k;
  const int64_t most = std::max<int64_t>(1, (int64_t{1} << 18) / columns);
  std::vector<float> values(std::min(rows, most) * columns);
  for (int64_t row = 0; row < rows; row += most) {
    GemmProblem part = p;
    const int64_t count = std::min(most, rows - row);
    p.source.read(p.source.what, row, count, 0, columns, values.data());
    part.b = {values.data(), columns};
    if (p.b_transposed) {
      part.n = count;
      part.c.data += row;
    } else {
      part.k = count;
      part.a.data += p.a_transposed ? row * p.a.stride : row;
      if (row > 0) part.beta = 1.0f;
    }
    Blas(part);
  }
}

}  // namespace

const char* GemmName() { return Chosen() == nullptr ? "blas" : Chosen()->name; }

void Gemm(Transpose transpose, int64_t m, int64_t n, int64_t k, float alpha,
          ConstMatrix a, ConstMatrix b, float beta, Matrix c) {
  if (m <= 0 || n <= 0) return;
  const GemmProblem problem = {m,
                               n,
                               k,
                               alpha,
                               transpose == Transpose::kLeft,
                               a,
                               transpose == Transpose::kRight,
                               b,
                               beta,
                               c};
  // Without terms, the BLAS does the right thing.
  if (Chosen() == nullptr || k <= 0) {
    Blas(problem);
  } else {
    Own(*Chosen(), problem);
  }
}

void Gemm(Transpose transpose, int64_t m, int64_t n, int64_t k, float alpha,
          ConstMatrix a, const MatrixSource& b, float beta, Matrix c) {
  if (m <= 0 || n <= 0 || k <= 0) return;
  GemmProblem problem;
  problem.m = m;
  problem.n = n;
  problem.k = k;
  problem.alpha = alpha;
  problem.a_transposed = transpose == Transpose::kLeft;
  problem.a = a;
  problem.b_transposed = transpose == Transpose::kRight;
  problem.beta = beta;
  problem.c = c;
  problem.source = b;
  // Also where the BLAS is faster with a matrix that is in memory.
  if (kGemm.best().run == nullptr) {
    BlasOfParts(problem);
  } else {
    Own(kGemm.best(), problem);
  }
}

}  // namespace capstan::kernels
