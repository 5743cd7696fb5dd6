// SPDX-License-Identifier: Apache-2.0
#include "cluster/comm/shm/shm_sum.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

namespace capstan {
namespace {

at::Tensor SumTensors(const std::vector<at::Tensor>& tensors) {
  std::vector<const void*> sources;
  for (const at::Tensor& tensor : tensors) sources.push_back(tensor.data_ptr());
  at::Tensor sum = at::full(tensors[0].sizes(), 99, tensors[0].options());
  SumOf(sum.scalar_type())(sources.data(), static_cast<int>(sources.size()),
                           sum.data_ptr(), sum.numel());
  return sum;
}

// Values of all magnitudes, subnormal ones and zeros too.
at::Tensor Wild(int64_t size, int seed, at::ScalarType type) {
  const at::Tensor x = at::arange(size, at::kDouble).add(0.37 * seed);
  return x.mul(12.9898).sin().mul(x.mul(0.771).cos().mul(20).exp()).to(type);
}

// The sum of tensors [begin, end) along the tree, in their type.
at::Tensor Tree(const std::vector<at::Tensor>& tensors, int begin, int end) {
  if (end - begin == 1) return tensors[begin];
  int left = 1;
  while (2 * left < end - begin) left *= 2;
  return Tree(tensors, begin, begin + left)
      .add(Tree(tensors, begin + left, end));
}

TEST(SumOf, AddsFloatsAlongATreeOverTheRanks) {
  for (const at::ScalarType type : {at::kFloat, at::kDouble}) {
    for (const int64_t size : {0, 1, 7, 1024, 1025, 10007}) {
      std::vector<at::Tensor> tensors;
      for (int i = 0; i < 13; ++i) {
        tensors.push_back(Wild(size, i, type));
        if (i == 0) continue;
        EXPECT_TRUE(SumTensors(tensors).equal(Tree(tensors, 0, i + 1)))
            << size << " of " << i + 1;
      }
    }
  }
  const auto one = [](double x) { return at::full({1}, x, at::kFloat); };
  // Four ones beside 2^24 are lost one by one, but not together.
  EXPECT_EQ(SumTensors({one(1 << 24), one(0), one(1), one(1)}).item<float>(),
            (1 << 24) + 2);
}

TEST(SumOf, SumsHalfFloatsInFloatAndRoundsOnce) {
  for (const at::ScalarType type : {at::kHalf, at::kBFloat16}) {
    for (const int64_t size : {1, 7, 8, 2051}) {
      std::vector<at::Tensor> tensors, wide;
      for (int i = 0; i < 7; ++i) {
        tensors.push_back(Wild(size, i, at::kFloat).div(1e4).to(type));
        wide.push_back(tensors[i].to(at::kFloat));
        if (i == 0) continue;
        const at::Tensor got = SumTensors(tensors);
        const at::Tensor sum = Tree(wide, 0, i + 1).to(type);
        // Compared as bits: the sign of zero counts.
        EXPECT_TRUE(got.view(at::kShort).equal(sum.view(at::kShort)))
            << at::toString(type) << " " << size << " of " << i + 1;
      }
    }
    // Rounding after each addition would lose all the ones.
    const at::Tensor big = at::full({40}, 4096, type);
    const at::Tensor one = at::full({40}, 1, type);
    const std::vector<at::Tensor> many = {big, one, one, one, one,
                                          one, one, one, one};
    const at::Tensor want = at::full({40}, 4104, at::kFloat).to(type);
    EXPECT_TRUE(SumTensors(many).equal(want)) << at::toString(type);
  }
}

TEST(SumOf, KeepsNotANumberAndInfinity) {
  const double inf = std::numeric_limits<double>::infinity();
  for (const at::ScalarType type :
       {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16}) {
    const at::Tensor a = at::tensor({NAN, inf, inf, -inf, 1.0}).to(type);
    const at::Tensor b = at::tensor({1.0, 1.0, -inf, -inf, NAN}).to(type);
    const at::Tensor sum = SumTensors({a, b}).to(at::kDouble);
    EXPECT_TRUE(std::isnan(sum[0].item<double>()));
    EXPECT_EQ(sum[1].item<double>(), inf);
    EXPECT_TRUE(std::isnan(sum[2].item<double>()));
    EXPECT_EQ(sum[3].item<double>(), -inf);
    EXPECT_TRUE(std::isnan(sum[4].item<double>()));
  }
}

TEST(SumOf, AddsIntegersAsLibTorchDoes) {
  for (const at::ScalarType type :
       {at::kLong, at::kInt, at::kShort, at::kChar, at::kByte}) {
    const at::Tensor a = at::arange(5000).mul(2654435761).to(type);
    const at::Tensor b = at::arange(5000).mul(40503).to(type);
    EXPECT_TRUE(SumTensors({a, b, a}).equal(a.add(b).add(a)))
        << at::toString(type);
  }
}

TEST(SumOf, MayWriteToAnyOfItsSources) {
  for (const at::ScalarType type : {at::kFloat, at::kHalf}) {
    for (int into = 0; into < 3; ++into) {
      std::vector<at::Tensor> tensors;
      std::vector<const void*> sources;
      for (int i = 0; i < 3; ++i) {
        tensors.push_back(at::arange(5000).add(i).remainder(100).to(type));
        sources.push_back(tensors.back().data_ptr());
      }
      const at::Tensor want = SumTensors(tensors);
      SumOf(type)(sources.data(), 3, tensors[into].data_ptr(), 5000);
      EXPECT_TRUE(tensors[into].equal(want)) << into;
    }
  }
}

// In parts of one source or more, the sum has the same bits.
TEST(PartialSumOf, GivesTheBitsOfSumOf) {
  constexpr int kSources = 9;
  for (const at::ScalarType type :
       {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16, at::kLong, at::kInt,
        at::kShort, at::kChar, at::kByte}) {
    const PartialSum parts = PartialSumOf(type);
    for (const int64_t size : {1, 7, 2051}) {
      std::vector<at::Tensor> tensors;
      std::vector<const void*> sources;
      for (int i = 0; i < kSources; ++i) {
        const at::Tensor wild = Wild(size, i, at::kDouble);
        tensors.push_back(at::isFloatingType(type)
                              ? wild.div(1e4).to(type)
                              : wild.to(at::kLong).to(type));
        sources.push_back(tensors.back().data_ptr());
      }
      const at::Tensor want = SumTensors(tensors);
      for (const int first : {1, 2, 3, 5, 7}) {
        // At most three subtrees, apart by more than they are long.
        const int64_t stride = size + 5;
        std::vector<char> unfinished(3 * stride * parts.width);
        at::Tensor got = at::full({size}, 99, tensors[0].options());
        const auto add = [&](int begin, int end, void* out) {
          parts.add(begin, unfinished.data(), stride, sources.data() + begin,
                    end - begin, out, size);
        };
        add(0, first, nullptr);
        add(first, kSources - 1, nullptr);
        add(kSources - 1, kSources, got.data_ptr());
        EXPECT_EQ(std::memcmp(got.data_ptr(), want.data_ptr(), want.nbytes()),
                  0)
            << at::toString(type) << " " << size << " after " << first;
      }
    }
  }
}

TEST(PartialSumOf, HasARowPerSubtree) {
  EXPECT_EQ(SumParts(0), 0);
  EXPECT_EQ(SumParts(4), 1);
  EXPECT_EQ(SumParts(7), 3);
}

TEST(PartialSumOf, OfOneSourceIsThatSource) {
  for (const at::ScalarType type : {at::kFloat, at::kHalf, at::kByte}) {
    const at::Tensor only = at::arange(100).to(type);
    const at::Tensor got = at::full({100}, 99, only.options());
    const void* const source = only.data_ptr();
    PartialSumOf(type).add(0, nullptr, 0, &source, 1, got.data_ptr(), 100);
    EXPECT_TRUE(got.equal(only)) << at::toString(type);
  }
}

TEST(SumOf, KnowsWhatItCannotSum) {
  EXPECT_EQ(SumOf(at::kComplexFloat), nullptr);
  EXPECT_EQ(SumOf(at::kBool), nullptr);
  EXPECT_EQ(PartialSumOf(at::kBool).add, nullptr);
}

}  // namespace
}  // namespace capstan
