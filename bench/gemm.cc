// SPDX-License-Identifier: Apache-2.0
//
// What products of matrices reach on one core, beside what the core could do:
// kernels/gemm by each of its tables that this processor runs, and LibTorch's
// (the BLAS for float32, oneDNN for bfloat16).
//
//     bazel run -c opt //bench:gemm [-- --ms=40] [--only=576]
//
// prints a table in GFLOP/s of this thread's CPU time, the best of several
// tries: forward / gradient to the input / gradient to the weight of a linear
// layer of `rows` x `in` to `out`, the last added to what is there. With
// bfloat16 the first two are rounded to it; weights' gradients are float32 by
// ours, bfloat16 by LibTorch's. --ms: how long a figure is measured; --only:
// shapes whose name contains that.
#include "kernels/gemm/gemm.h"

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <stdio.h>
#include <time.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/simd/instruction_set.h"
#ifdef __x86_64__
#include <immintrin.h>
#endif

namespace capstan::kernels {
namespace {

double CpuSeconds() {
  timespec t;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

// Calls a second: the best of tries of a tenth of `seconds`, or of one call.
double Rate(double seconds, const std::function<void()>& call) {
  call();
  const double before = CpuSeconds();
  call();
  // The clock is read so seldom that it doesn't count.
  const double one = std::max(1e-9, CpuSeconds() - before);
  const int64_t batch = 1 + static_cast<int64_t>(2e-4 / one);
  double best = 0.0;
  const double end = CpuSeconds() + seconds;
  for (double now = CpuSeconds(); now < end;) {
    const double start = now;
    int64_t calls = 0;
    for (; now < start + 0.1 * seconds; now = CpuSeconds()) {
      for (int64_t i = 0; i < batch; ++i) call();
      calls += batch;
    }
    best = std::max(best, static_cast<double>(calls) / (now - start));
  }
  return best;
}

#ifdef __x86_64__
constexpr int kSums = 16;  // enough to hide an instruction's latency
constexpr int kTurns = 4096;

__attribute__((target("avx512f"))) void Fmas512() {
  __m512 sums[kSums] = {}, x = _mm512_set1_ps(1e-9f);
  for (int i = 0; i < kTurns; ++i) {
#pragma GCC unroll 16
    for (int j = 0; j < kSums; ++j) {
      __m512 sum = sums[j];
      asm("vfmadd231ps %1, %1, %0" : "+v"(sum) : "v"(x));
      sums[j] = sum;
    }
  }
  for (const __m512& sum : sums) asm volatile("" ::"v"(sum));
}

__attribute__((target("avx2,fma"))) void Fmas256() {
  __m256 sums[kSums - 4] = {}, x = _mm256_set1_ps(1e-9f);
  for (int i = 0; i < kTurns; ++i) {
#pragma GCC unroll 16
    for (int j = 0; j < kSums - 4; ++j) {
      __m256 sum = sums[j];
      asm("vfmadd231ps %1, %1, %0" : "+x"(sum) : "x"(x));
      sums[j] = sum;
    }
  }
  for (const __m256& sum : sums) asm volatile("" ::"x"(sum));
}

__attribute__((target("avx512f,avx512bf16"))) void Pairs512() {
  __m512 sums[kSums] = {}, x = _mm512_set1_ps(1e-9f);
  for (int i = 0; i < kTurns; ++i) {
#pragma GCC unroll 16
    for (int j = 0; j < kSums; ++j) {
      __m512 sum = sums[j];
      asm("vdpbf16ps %1, %1, %0" : "+v"(sum) : "v"(x));
      sums[j] = sum;
    }
  }
  for (const __m512& sum : sums) asm volatile("" ::"v"(sum));
}

void PrintPeaks(double seconds) {
  const auto print = [&](const char* what, void (*loop)(), int flops) {
    printf("peak of %s: %.0f GFLOP/s\n", what,
           1e-9 * flops * kTurns * Rate(seconds, loop));
  };
  if (BestInstructionSet() == InstructionSet::kAvx512) {
    print("float32 multiply-adds", Fmas512, 2 * 16 * kSums);
  } else if (BestInstructionSet() == InstructionSet::kAvx2) {
    print("float32 multiply-adds", Fmas256, 2 * 8 * (kSums - 4));
  }
  if (HasBf16Products()) print("vdpbf16ps", Pairs512, 4 * 16 * kSums);
}
#else
void PrintPeaks(double /*seconds*/) {}
#endif

struct Shape {
  int64_t rows, in, out;
};

// A linear layer's three products, of matrices of one type.
struct Layer {
  Layer(const Shape& s, at::ScalarType type)
      : shape(s),
        x(at::randn({s.rows, s.in}).to(type)),
        weight(at::randn({s.out, s.in}).to(type)),
        y(at::randn({s.rows, s.out}).to(type)),
        dx(at::zeros({s.rows, s.in}).to(type)),
        dweight(at::zeros({s.out, s.in})) {}
  Shape shape;
  at::Tensor x, weight, y, dx, dweight;
};

enum Pass { kForward, kToInput, kToWeight, kPasses };

template <typename M>
M MatrixOf(const at::Tensor& t) {
  M m;
  m.data = t.data_ptr();
  m.stride = t.stride(0);
  m.type =
      t.scalar_type() == at::kFloat ? NumberType::kFloat : NumberType::kBf16;
  return m;
}

struct FreeFloats {
  void operator()(float* p) const { std::free(p); }
};
using Floats = std::unique_ptr<float, FreeFloats>;
Floats NewFloats(int64_t count) {
  return Floats(static_cast<float*>(
      std::aligned_alloc(4096, (4 * count + 4095) / 4096 * 4096)));
}

void Own(const GemmKernels& table, Pass pass, Layer& layer) {
  static const Floats space = NewFloats(kGemmSpace + kGemmRead);
  static const Floats sums = NewFloats(kGemmRounded * kGemmRounded);
  const Shape& s = layer.shape;
  GemmProblem p;
  const auto set = [&](int64_t m, int64_t n, int64_t k, const at::Tensor& a,
                       const at::Tensor& b, const at::Tensor& c) {
    p.m = m;
    p.n = n;
    p.k = k;
    p.a = MatrixOf<ConstMatrix>(a);
    p.b = MatrixOf<ConstMatrix>(b);
    p.c = MatrixOf<Matrix>(c);
  };
  if (pass == kForward) {
    p.b_transposed = true;
    set(s.rows, s.out, s.in, layer.x, layer.weight, layer.y);
  } else if (pass == kToInput) {
    set(s.rows, s.in, s.out, layer.y, layer.weight, layer.dx);
  } else {
    p.a_transposed = true;
    p.beta = 1.0f;
    set(s.out, s.in, s.rows, layer.y, layer.x, layer.dweight);
  }
  table.run(p, 0, p.m, 0, p.n, space.get(), sums.get());
}

void LibTorch(Pass pass, Layer& layer) {
  if (pass == kForward) {
    at::mm_out(layer.y, layer.x, layer.weight.t());
  } else if (pass == kToInput) {
    at::mm_out(layer.dx, layer.y, layer.weight);
  } else {
    at::addmm_out(layer.dweight, layer.dweight, layer.y.t(), layer.x);
  }
}

struct Contestant {
  std::string name;
  at::ScalarType type;
  const GemmKernels* table;  // null: LibTorch
};

std::vector<Contestant> Contestants() {
  std::vector<Contestant> all;
  const GemmKernels& best = kGemm.best();
  if (best.run != nullptr) {
    all.push_back({std::string("fp32, ") + best.name, at::kFloat, &best});
  }
  all.push_back({"fp32, LibTorch", at::kFloat, nullptr});
  if (best.run != nullptr) {
    all.push_back({std::string("bf16, ") + best.name, at::kBFloat16, &best});
  }
#ifdef __x86_64__
  for (const auto& [table, runs] :
       {std::pair(&kGemmAvx512Bf16, HasBf16Products()),
        std::pair(&kGemmAmx, HasAmxTiles())}) {
    if (!runs) continue;
    all.push_back({std::string("bf16, ") + table->name, at::kBFloat16, table});
  }
#endif
  all.push_back({"bf16, LibTorch", at::kBFloat16, nullptr});
  return all;
}

void PrintRow(const Shape& s, const std::vector<Contestant>& contestants,
              double seconds) {
  const double flops = 2e-9 * static_cast<double>(s.rows * s.in * s.out);
  for (const Contestant& c : contestants) {
    Layer layer(s, c.type);
    if (c.table == nullptr) layer.dweight = layer.dweight.to(c.type);
    for (int pass = kForward; pass < kPasses; ++pass) {
      const double rate = Rate(seconds, [&] {
        if (c.table == nullptr) {
          LibTorch(static_cast<Pass>(pass), layer);
        } else {
          Own(*c.table, static_cast<Pass>(pass), layer);
        }
      });
      printf(pass == kForward ? " | %.0f" : " / %.0f", flops * rate);
      fflush(stdout);
    }
  }
  printf(" |\n");
}

// The value of --NAME=VALUE, or `missing`.
std::string Flag(int argc, char** argv, const std::string& name,
                 const std::string& missing) {
  const std::string start = "--" + name + "=";
  for (int i = 1; i < argc; ++i) {
    const std::string arg = argv[i];
    if (arg.rfind(start, 0) == 0) return arg.substr(start.size());
  }
  return missing;
}

void Main(int argc, char** argv) {
  const double seconds = 1e-3 * std::atof(Flag(argc, argv, "ms", "40").c_str());
  const std::string only = Flag(argc, argv, "only", "");
  at::set_num_threads(1);
  PrintPeaks(seconds);
  const std::vector<Contestant> contestants = Contestants();
  std::string line = "| rows, in, out |", below = "|---|";
  for (const Contestant& c : contestants) {
    line += " " + c.name + " |";
    below += "---|";
  }
  printf("%s\n%s\n", line.c_str(), below.c_str());
  for (const Shape& s :
       {Shape{512, 256, 256}, Shape{512, 256, 688}, Shape{512, 688, 256},
        Shape{256, 576, 576}, Shape{256, 576, 1536}, Shape{256, 1536, 576},
        Shape{256, 576, 49152}, Shape{256, 64, 64}}) {
    const std::string name = std::to_string(s.rows) + ", " +
                             std::to_string(s.in) + ", " +
                             std::to_string(s.out);
    if (name.find(only) == std::string::npos) continue;
    printf("| %s", name.c_str());
    PrintRow(s, contestants, seconds);
  }
}

}  // namespace
}  // namespace capstan::kernels

int main(int argc, char** argv) {
  capstan::kernels::Main(argc, argv);
  return 0;
}
