// SPDX-License-Identifier: Apache-2.0
#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/isnan.h>
#include <ATen/ops/nan_to_num.h>
#include <c10/core/ScalarType.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/random.h"
#include "testing/cuda/checks.h"

namespace capstan::kernels::cuda {
namespace {

constexpr at::ScalarType kTypes[] = {at::kFloat, at::kBFloat16, at::kHalf};

// Half the distance from 1 to the next number.
double Unit(at::ScalarType dtype) {
  const int bits = dtype == at::kBFloat16 ? 8 : dtype == at::kHalf ? 11 : 24;
  return std::ldexp(1.0, -bits);
}

class List {
 public:
  template <typename F>
  void Add(const std::string& name, at::ScalarType dtype, F run) {
    checks_.push_back(
        {absl::StrCat(name, ", ", c10::toString(dtype)), std::move(run)});
  }
  std::vector<NamedCheck> Take() { return std::move(checks_); }

 private:
  std::vector<NamedCheck> checks_;
};

void AddNorms(at::ScalarType t, bool large, List& list) {
  // 12104 columns are more than fit into shared memory.
  std::vector<std::pair<int64_t, int64_t>> sizes = {
      {1, 1}, {3, 7}, {5, 64}, {37, 33}, {9, 576}, {2, 12104}};
  if (large)
    sizes.insert(sizes.end(), {{4096, 2048}, {5003, 1152}, {300, 4097}});
  for (const auto& [rows, n] : sizes) {
    const std::string size = absl::StrCat(" ", rows, " x ", n);
    list.Add("RMSNorm" + size, t, [=, rows = rows, n = n](const Subject& s) {
      return CheckRmsNorm(s, t, rows, n);
    });
    list.Add("SwiGLU" + size, t, [=, rows = rows, n = n](const Subject& s) {
      return CheckSwiGlu(s, t, rows, n);
    });
  }
  // A row's one norm, of few heads, of many; the last isn't aligned.
  for (const auto& [heads, n, before] : std::vector<std::array<int64_t, 3>>{
           {1, 96, 16}, {3, 16, 8}, {9, 64, 0}, {2, 24, 3}}) {
    const int64_t rows = large ? 3000 : 4;
    list.Add(absl::StrCat("norms of heads ", heads, " x ", n), t,
             [=, heads = heads, n = n, before = before](const Subject& s) {
               return CheckHeadNorms(s, t, rows, heads, n, before);
             });
  }
  for (const int64_t n : {1, 6, 64, 1030}) {
    const int64_t length = large ? 1000 : 5;
    list.Add(absl::StrCat("dropout ", n), t, [=](const Subject& s) {
      return CheckDropout(s, t, 3, length, n);
    });
  }
  for (const int64_t head_dim : {2, 6, 16, 64}) {
    for (const bool aligned : {true, false}) {
      const int64_t positions = large ? 1000 : 5;
      list.Add(absl::StrCat("rope ", head_dim), t, [=](const Subject& s) {
        return CheckRope(s, t, positions, 3, head_dim, aligned);
      });
    }
  }
}

void AddTokens(at::ScalarType t, bool large, List& list) {
  std::vector<std::pair<int64_t, int64_t>> sizes = {
      {1, 1}, {2, 7}, {5, 999}, {3, 8200}};
  if (large) sizes.insert(sizes.end(), {{513, 50257}, {1024, 49152}});
  for (const auto& [rows, vocab] : sizes) {
    list.Add(absl::StrCat("cross-entropy ", rows, " x ", vocab), t,
             [=, rows = rows, vocab = vocab](const Subject& s) {
               return CheckCrossEntropy(s, t, rows, vocab);
             });
  }
  std::vector<at::ScalarType> weights = {at::kFloat};
  if (t != at::kFloat) weights.push_back(t);
  for (const at::ScalarType weight : weights) {
    for (const int64_t hidden : {5, 64, 300}) {
      const int64_t rows = large ? 20000 : 90, vocab = large ? 5000 : 11;
      list.Add(absl::StrCat("embedding ", hidden), t, [=](const Subject& s) {
        return CheckEmbedding(s, t, weight, rows, hidden, vocab);
      });
    }
  }
}

void AddExperts(at::ScalarType t, bool large, List& list) {
  struct Size {
    int64_t rows, top_k, experts, n;
  };
  std::vector<Size> sizes = {{1, 1, 1, 1}, {70, 3, 5, 30}, {9, 2, 40, 264}};
  if (large) sizes.push_back({4096, 8, 128, 2048});
  for (const Size& size : sizes) {
    list.Add(absl::StrCat("experts ", size.experts), t, [=](const Subject& s) {
      return CheckExperts(s, t, size.rows, size.top_k, size.experts, size.n);
    });
  }
}

void AddOptimizer(at::ScalarType t, bool large, List& list) {
  std::vector<int64_t> sizes = {1, 7, 1024, 2051};
  if (large) sizes.push_back(10000019);
  for (const int64_t n : sizes) {
    for (const at::ScalarType working :
         {at::ScalarType::Undefined, at::kBFloat16, at::kHalf}) {
      for (const int64_t shift : {0, 1}) {
        for (const at::ScalarType state : {at::kFloat, at::kBFloat16}) {
          list.Add(
              absl::StrCat("AdamW, state in ", c10::toString(state), " ", n), t,
              [=](const Subject& s) {
                return CheckAdamW(s, t, working, state, n, shift);
              });
        }
        list.Add(absl::StrCat("AdamW in 8 bits ", n), t, [=](const Subject& s) {
          return CheckAdamW8Bit(s, t, working, n, shift);
        });
      }
    }
    list.Add(absl::StrCat("squared sum ", n), t,
             [=](const Subject& s) { return CheckSquaredSum(s, t, n); });
  }
}

void AddQuant(at::ScalarType t, bool large, List& list) {
  std::vector<int64_t> sizes = {1, 63, 64, 130, 2048, 20000, 16640};
  if (large) sizes.push_back(10000003);
  for (const int64_t n : sizes) {
    for (const bool twice : {false, true}) {
      list.Add(absl::StrCat("NF4 ", n), t, [=](const Subject& s) {
        return CheckDequantizeNf4(s, t, n, twice);
      });
    }
  }
}

void AddCasts(at::ScalarType type, bool large, List& list) {
  std::vector<std::pair<int64_t, int64_t>> sizes = {
      {1, 16}, {5, 64}, {70, 208}, {130, 2080}};
  if (large) sizes.insert(sizes.end(), {{8192, 2048}, {2049, 8192}});
  for (const auto& [rows, n] : sizes) {
    for (const bool turned : {false, true}) {
      for (const bool by_row : {false, true}) {
        list.Add(absl::StrCat("cast ", rows, " x ", n), type,
                 [=, rows = rows, n = n](const Subject& s) {
                   return CheckCastFp8(s, type, rows, n, turned, by_row);
                 });
      }
    }
  }
}

}  // namespace

std::vector<NamedCheck> AllChecks(bool large) {
  List list;
  for (const at::ScalarType t : kTypes) {
    AddNorms(t, large, list);
    AddTokens(t, large, list);
    AddExperts(t, large, list);
    AddOptimizer(t, large, list);
    AddQuant(t, large, list);
  }
  for (const at::ScalarType type : {at::kFloat8_e4m3fn, at::kFloat8_e5m2}) {
    AddCasts(type, large, list);
  }
  return list.Take();
}

// at::randn's numbers would depend on the processor.
at::Tensor Normal(uint64_t seed, at::IntArrayRef sizes, at::ScalarType dtype) {
  const at::Tensor numbers = at::empty(sizes, at::kFloat);
  FillNormal(RandomKey(seed, "testing/cuda"), 0, numbers.numel(), 0.0f, 1.0f,
             numbers.mutable_data_ptr<float>());
  return numbers.to(dtype);
}

void ExpectClose(const at::Tensor& actual, const at::Tensor& expected,
                 at::ScalarType dtype, double ulps, const std::string& what,
                 double least_size) {
  const at::Tensor a =
      actual.to(at::kCPU).to(at::kDouble).contiguous().view(-1);
  const at::Tensor e = expected.to(at::kDouble).contiguous().view(-1);
  ASSERT_EQ(a.numel(), e.numel()) << what;
  const double size =
      std::max(least_size, std::sqrt((e * e).mean().item<double>()));
  const double* ap = a.const_data_ptr<double>();
  const double* ep = e.const_data_ptr<double>();
  for (int64_t i = 0; i < a.numel(); ++i) {
    const double limit = ulps * Unit(dtype) * (std::abs(ep[i]) + size);
    // Not for NaN, either.
    ASSERT_TRUE(std::abs(ap[i] - ep[i]) <= limit)
        << what << " at " << i << ": " << ap[i] << " for " << ep[i];
  }
}

bool SameBits(const at::Tensor& a, const at::Tensor& b) {
  const at::Tensor x = a.to(at::kCPU), y = b.to(at::kCPU);
  return at::equal(at::isnan(x), at::isnan(y)) &&
         at::equal(at::nan_to_num(x), at::nan_to_num(y));
}

}  // namespace capstan::kernels::cuda
