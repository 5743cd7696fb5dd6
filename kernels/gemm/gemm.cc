// SPDX-License-Identifier: Apache-2.0
#include "kernels/gemm/gemm.h"

#include <ATen/Parallel.h>
#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#include "kernels/context/witness.h"

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

bool Is(const char* wish, const char* name) {
  return wish != nullptr && std::strcmp(wish, name) == 0;
}

// For float32. Null: the BLAS. Constant per machine, so that runs repeat bit by
// bit.
const GemmKernels* Chosen() {
  static const GemmKernels* const chosen = []() -> const GemmKernels* {
    if (BestInstructionSet() == InstructionSet::kPlain) return nullptr;
    const char* const wish = std::getenv("CAPSTAN_GEMM");
    if (Is(wish, "blas")) return nullptr;
    return Is(wish, "own") || !OnIntel() ? &kGemm.best() : nullptr;
  }();
  return chosen;
}

// If a factor has 16 bits. Null: widened, for the BLAS.
const GemmKernels* ChosenForHalves() {
  static const GemmKernels* const chosen = []() -> const GemmKernels* {
    if (kGemm.best().run == nullptr) return nullptr;
    return &ChooseForHalves(std::getenv("CAPSTAN_BF16_PRODUCTS"), OnIntel(),
                            HasBf16Products(), HasAmxTiles);
  }();
  return chosen;
}

// A piece of memory of this thread, made at first use.
struct FreeFloats {
  void operator()(float* p) const { std::free(p); }
};
using Floats = std::unique_ptr<float, FreeFloats>;
Floats NewFloats(int64_t count) {
  return Floats(static_cast<float*>(
      std::aligned_alloc(4096, (count * sizeof(float) + 4095) / 4096 * 4096)));
}

// This thread's panels, reused by later products.
float* Space() {
  thread_local const Floats space = NewFloats(kGemmSpace + kGemmRead);
  return space.get();
}

// Its sums of a 16-bit result; null for a float32 one.
float* SumsFor(const Matrix& c) {
  if (c.type == NumberType::kFloat) return nullptr;
  thread_local const Floats sums = NewFloats(kGemmRounded * kGemmRounded);
  return sums.get();
}

const float* ReadFloats(const ConstMatrix& x) {
  return static_cast<const float*>(x.data);
}

void Blas(const GemmProblem& p) {
  const char left = p.a_transposed ? 'T' : 'N';
  const char right = p.b_transposed ? 'T' : 'N';
  const int m = static_cast<int>(p.m), n = static_cast<int>(p.n);
  const int k = static_cast<int>(p.k);
  // A matrix of one row may have any stride; the BLAS wants a row's length.
  const auto stride = [](int64_t stride, int64_t columns) {
    return static_cast<int>(std::max({int64_t{1}, stride, columns}));
  };
  const int a_stride = stride(p.a.stride, p.a_transposed ? p.m : p.k);
  const int b_stride = stride(p.b.stride, p.b_transposed ? p.k : p.n);
  const int c_stride = stride(p.c.stride, p.n);
  // Fortran sees a row-major matrix as its transpose: c^T = b^T a^T.
  sgemm_(&right, &left, &n, &m, &k, &p.alpha, ReadFloats(p.b), &b_stride,
         ReadFloats(p.a), &a_stride, &p.beta, static_cast<float*>(p.c.data),
         &c_stride);
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
      kernels.run(p, begin, end, 0, p.n, Space(), SumsFor(p.c));
    } else {
      kernels.run(p, 0, p.m, begin, end, Space(), SumsFor(p.c));
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
      part.c.data = static_cast<float*>(p.c.data) + row;
    } else {
      part.k = count;
      part.a.data = ReadFloats(p.a) + (p.a_transposed ? row * p.a.stride : row);
      if (row > 0) part.beta = 1.0f;
    }
    Blas(part);
  }
}

bool IsHalf(NumberType type) { return type != NumberType::kFloat; }

bool HasHalves(const GemmProblem& p) {
  return IsHalf(p.a.type) || IsHalf(p.b.type) || IsHalf(p.c.type);
}

// The same problem with float32 copies of what isn't.
class Widened {
 public:
  explicit Widened(const GemmProblem& p) : wide_(p), c_(p.c) {
    const int64_t a_rows = p.a_transposed ? p.k : p.m;
    const int64_t b_rows = p.b_transposed ? p.n : p.k;
    Widen(a_rows, p.a_transposed ? p.m : p.k, &wide_.a, &a_values_);
    if (p.source.read == nullptr) {
      Widen(b_rows, p.b_transposed ? p.k : p.n, &wide_.b, &b_values_);
    }
    if (!IsHalf(c_.type)) return;
    ConstMatrix c;
    c.data = c_.data;
    c.stride = c_.stride;
    c.type = c_.type;
    Widen(p.m, p.n, &c, &c_values_);
    wide_.c = {c_values_.data(), p.n};
  }
  const GemmProblem& problem() const { return wide_; }
  // Rounds the result to where it belongs.
  void Finish() const {
    if (!IsHalf(c_.type)) return;
    for (int64_t i = 0; i < wide_.m; ++i) {
      for (int64_t j = 0; j < wide_.n; ++j) {
        const float x = c_values_[i * wide_.n + j];
        uint16_t* const to =
            static_cast<uint16_t*>(c_.data) + i * c_.stride + j;
        *to =
            c_.type == NumberType::kBf16 ? c10::BFloat16(x).x : c10::Half(x).x;
      }
    }
  }

 private:
  static void Widen(int64_t rows, int64_t columns, ConstMatrix* x,
                    std::vector<float>* values) {
    if (!IsHalf(x->type)) return;
    values->resize(rows * columns);
    const auto* const from = static_cast<const uint16_t*>(x->data);
    for (int64_t i = 0; i < rows; ++i) {
      for (int64_t j = 0; j < columns; ++j) {
        const uint16_t bits = from[i * x->stride + j];
        (*values)[i * columns + j] =
            x->type == NumberType::kBf16
                ? static_cast<float>(
                      c10::BFloat16(bits, c10::BFloat16::from_bits()))
                : static_cast<float>(c10::Half(bits, c10::Half::from_bits()));
      }
    }
    *x = {values->data(), std::max<int64_t>(1, columns)};
  }

  GemmProblem wide_;
  const Matrix c_;
  std::vector<float> a_values_, b_values_, c_values_;
};

// Of a problem with factors in memory and at least one term.
void Halves(const GemmProblem& p) {
  if (ChosenForHalves() != nullptr) return Own(*ChosenForHalves(), p);
  const Widened wide(p);
  Blas(wide.problem());
  wide.Finish();
}

}  // namespace

const GemmKernels& ChooseForHalves(const char* wish, bool intel, bool pairs,
                                   bool (*tiles)()) {
#ifdef __x86_64__
  if (!Is(wish, "float32")) {
    const bool wished = pairs && Is(wish, "avx512bf16");
    if (!wished && tiles()) return kGemmAmx;
    // Intel's cores make one vdpbf16ps in the time of four multiply-adds; AMD's
    // make it in that of one.
    if (wished || (pairs && !intel)) return kGemmAvx512Bf16;
  }
#endif
  return kGemm.best();
}

const char* GemmName() { return Chosen() == nullptr ? "blas" : Chosen()->name; }

bool MultipliesBf16() {
#ifdef __x86_64__
  return MultipliesBf16Pairs() || ChosenForHalves() == &kGemmAmx;
#else
  return false;
#endif
}

bool MultipliesBf16Pairs() {
#ifdef __x86_64__
  return ChosenForHalves() == &kGemmAvx512Bf16;
#else
  return false;
#endif
}

namespace {

void Compute(const GemmProblem& problem) {
  if (HasHalves(problem)) {
    if (problem.k > 0) return Halves(problem);
    const Widened wide(problem);
    Blas(wide.problem());
    return wide.Finish();
  }
  // Without terms, the BLAS does the right thing.
  if (Chosen() == nullptr || problem.k <= 0) {
    Blas(problem);
  } else {
    Own(*Chosen(), problem);
  }
}

// Of a problem with a source.
void ComputeOfSource(const GemmProblem& problem) {
  // Also where the BLAS is faster with a matrix that is in memory.
  if (kGemm.best().run == nullptr) {
    const Widened wide(problem);
    BlasOfParts(wide.problem());
    wide.Finish();
  } else {
    Own(kGemm.best(), problem);
  }
}

void Witnessed(const GemmProblem& problem,
               void (*compute)(const GemmProblem&)) {
  if (ProductWitness* const witness = CurrentProductWitness()) {
    witness->Compute(problem, [&] { compute(problem); });
  } else {
    compute(problem);
  }
}

}  // namespace

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
  Witnessed(problem, &Compute);
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
  Witnessed(problem, &ComputeOfSource);
}

}  // namespace capstan::kernels
