// SPDX-License-Identifier: Apache-2.0
//
// NF4 against bitsandbytes' bytes (tests/golden/testdata/llama_qlora), and
// against its definition, for each instruction set.
#include "kernels/quant/nf4.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "kernels/quant/pack_nf4_for_test.h"
#include "plugins/sdk/lib/safetensors.h"

namespace capstan::kernels {
namespace {

std::vector<float> Floats(const SafetensorsReader& reader,
                          const std::string& name) {
  const TensorEntry& entry = reader.tensors().at(name);
  std::vector<float> values(entry.numel);
  const absl::Status status =
      reader.ReadFloats(name, 0, entry.numel, values.data());
  EXPECT_TRUE(status.ok()) << status;
  return values;
}

std::vector<uint8_t> Bytes(const SafetensorsReader& reader,
                           const std::string& name) {
  const TensorEntry& entry = reader.tensors().at(name);
  const auto* data = reinterpret_cast<const uint8_t*>(entry.data);
  return std::vector<uint8_t>(data, data + entry.bytes);
}

std::vector<float> Normal(int64_t n, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0.0f, 0.3f);
  std::vector<float> x(n);
  for (float& v : x) v = normal(random);
  return x;
}

// The indices of the numbers nearest to x * (1 / scale), the lower of two.
std::vector<int> NearestByDefinition(const std::vector<float>& x,
                                     std::vector<float>* scales) {
  std::vector<int> nearest(x.size());
  for (size_t begin = 0; begin < x.size(); begin += kNf4Block) {
    const size_t end = std::min(x.size(), begin + kNf4Block);
    float scale = 0.0f;
    for (size_t i = begin; i < end; ++i) {
      scale = std::max(scale, std::abs(x[i]));
    }
    scales->push_back(scale);
    for (size_t i = begin; i < end; ++i) {
      const float value = x[i] * (1.0f / scale);
      for (int k = 1; k < 16; ++k) {
        if (std::abs(value - kNf4Values[k]) <
            std::abs(value - kNf4Values[nearest[i]])) {
          nearest[i] = k;
        }
      }
    }
  }
  return nearest;
}

class Golden : public ::testing::Test {
 protected:
  void SetUp() override {
    auto opened = SafetensorsReader::Open(
        "tests/golden/testdata/llama_qlora/nf4.safetensors");
    ASSERT_TRUE(opened.ok()) << opened.status();
    reader_ = *std::move(opened);
    for (const auto& [name, entry] : reader_->tensors()) {
      if (absl::EndsWith(name, ".packed")) {
        names_.push_back(name.substr(0, name.rfind('.')));
      }
    }
    ASSERT_EQ(names_.size(), 28u);
    auto base =
        SafetensorsReader::Open("tests/golden/testdata/llama_qlora/base");
    ASSERT_TRUE(base.ok()) << base.status();
    base_ = *std::move(base);
  }

  std::unique_ptr<SafetensorsReader> reader_, base_;
  std::vector<std::string> names_;
};

TEST_F(Golden, NumbersAreBitsandbytes) {
  EXPECT_EQ(Floats(*reader_, names_[0] + ".code"),
            std::vector<float>(kNf4Values, kNf4Values + 16));
  EXPECT_EQ(Floats(*reader_, names_[0] + ".absmax_code"),
            std::vector<float>(DynamicValues(), DynamicValues() + 256));
}

TEST_F(Golden, QuantisesToTheSameBytes) {
  for (const std::string& name : names_) {
    const std::vector<float> x = Floats(*base_, name);
    const Nf4Layout layout(x.size(), false);
    std::vector<uint8_t> bytes(layout.bytes);
    PackNf4(x.data(), layout, bytes.data());
    std::vector<uint8_t> wanted = Bytes(*reader_, name + ".packed");
    wanted.resize(layout.scales);
    const std::vector<uint8_t> scales = Bytes(*reader_, name + ".absmax");
    wanted.insert(wanted.end(), scales.begin(), scales.end());
    EXPECT_EQ(bytes, wanted) << name;
  }
}

// bitsandbytes' CPU code rounds to 16 bits on the way, so that a scale between
// two numbers may get the farther one; on GPUs it doesn't.
TEST_F(Golden, QuantisesScalesToTheNearest) {
  int others = 0, all = 0;
  for (const std::string& name : names_) {
    const std::vector<float> scales = Floats(*reader_, name + ".absmax");
    const float offset = Floats(*reader_, name + ".offset")[0];
    const int64_t count = static_cast<int64_t>(scales.size());
    EXPECT_NEAR(Nf4Offset(scales.data(), count), offset, 6e-8f);
    std::vector<uint8_t> quantised(count);
    float group = 0.0f;
    QuantizeNf4Scales(scales.data(), count, offset, quantised.data(), &group);
    EXPECT_EQ(group, Floats(*reader_, name + ".absmax_absmax")[0]);
    const std::vector<uint8_t> wanted =
        Bytes(*reader_, name + ".absmax_quantised");
    for (int64_t i = 0; i < count; ++i, ++all) {
      if (quantised[i] == wanted[i]) continue;
      ++others;
      const double x = (scales[i] - offset) / group;
      EXPECT_NEAR(std::abs(x - DynamicValues()[quantised[i]]),
                  std::abs(x - DynamicValues()[wanted[i]]), 4e-5)
          << name << " " << i;
    }
  }
  EXPECT_EQ(others, 5) << "of " << all;
}

TEST_F(Golden, DequantisesExactly) {
  for (const std::string& name : names_) {
    for (const bool twice : {false, true}) {
      const std::vector<float> wanted =
          Floats(*reader_, name + (twice ? ".float32_double" : ".float32"));
      const Nf4Layout layout(wanted.size(), twice);
      std::vector<uint8_t> bytes(layout.bytes);
      const auto put = [&](int64_t offset, const std::string& part) {
        const std::vector<uint8_t> from = Bytes(*reader_, name + part);
        std::copy(from.begin(), from.end(), bytes.begin() + offset);
      };
      put(0, ".packed");
      if (twice) {
        put(layout.offset, ".offset");
        put(layout.group_scales, ".absmax_absmax");
      }
      put(layout.scales, twice ? ".absmax_quantised" : ".absmax");
      std::vector<float> values(wanted.size());
      DequantizeNf4({bytes.data(), layout}, 0, layout.numel, values.data());
      EXPECT_EQ(values, wanted) << name;
    }
  }
}

class Nf4Sets : public ::testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    const Nf4Kernels* sets[3];
    if (GetParam() >= kNf4.Runnable(sets)) GTEST_SKIP() << "not on this CPU";
    loops_ = sets[GetParam()];
  }
  const Nf4Kernels* loops_ = nullptr;
};

TEST_P(Nf4Sets, QuantisesToTheNearest) {
  for (const int64_t n : {1, 5, 63, 64, 65, 128, 130, 4096}) {
    std::vector<float> x = Normal(n, static_cast<unsigned>(n));
    for (int64_t i = 0; i < std::min<int64_t>(n, 15); ++i) {
      x[i] = kNf4Limits[i];  // where the largest of the block is 1
    }
    if (n > 15) x[15] = 1.0f;
    std::vector<float> wanted_scales;
    const std::vector<int> wanted = NearestByDefinition(x, &wanted_scales);
    std::vector<uint8_t> packed((n + 1) / 2);
    std::vector<float> scales(wanted_scales.size());
    loops_->quantize(x.data(), n, packed.data(), scales.data());
    EXPECT_EQ(scales, wanted_scales);
    for (int64_t i = 0; i < n; ++i) {
      const int index = i % 2 == 0 ? packed[i / 2] >> 4 : packed[i / 2] & 15;
      EXPECT_EQ(index, wanted[i]) << i << " of " << n << ": " << x[i];
    }
    if (n % 2 != 0) {
      EXPECT_EQ(packed.back() & 15, 7);
    }
  }
}

TEST_P(Nf4Sets, LimitsAreWhereTheNearestChanges) {
  for (int i = 0; i < 15; ++i) {
    const auto upper = [&](float x) {
      return std::abs(x - kNf4Values[i + 1]) < std::abs(x - kNf4Values[i]);
    };
    EXPECT_TRUE(upper(kNf4Limits[i])) << i;
    EXPECT_FALSE(upper(std::nextafter(kNf4Limits[i], -2.0f))) << i;
  }
}

TEST_P(Nf4Sets, BlocksOfZerosAreZeros) {
  std::vector<float> x(192, 0.0f);
  x[70] = 0.5f;
  std::vector<uint8_t> packed(96);
  float scales[3];
  loops_->quantize(x.data(), 192, packed.data(), scales);
  EXPECT_EQ(scales[0], 0.0f);
  const float other_scales[3] = {0.01f, 0.5f, 0.02f};  // as if quantised
  std::vector<float> values(192);
  loops_->dequantize(packed.data(), other_scales, 0, 192, values.data());
  EXPECT_EQ(values, x);
}

TEST_P(Nf4Sets, ScalesShowWhatIsNoNumber) {
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(),
                          -std::numeric_limits<float>::infinity()}) {
    for (const int place : {3, 63}) {
      std::vector<float> x = Normal(64, 1);
      x[place] = bad;
      std::vector<uint8_t> packed(32);
      float scale = 0.0f;
      loops_->quantize(x.data(), 64, packed.data(), &scale);
      EXPECT_FALSE(std::isfinite(scale));
    }
  }
}

TEST_P(Nf4Sets, DequantisesAnyPart) {
  constexpr int64_t kN = 1000;
  std::mt19937 random(5);
  std::vector<uint8_t> packed(kN / 2);
  for (uint8_t& byte : packed) byte = static_cast<uint8_t>(random());
  const std::vector<float> scales = Normal((kN + 63) / 64, 6);
  std::vector<float> wanted(kN);
  for (int64_t i = 0; i < kN; ++i) {
    const int two = packed[i / 2];
    wanted[i] =
        kNf4Values[i % 2 == 0 ? two >> 4 : two & 15] * scales[i / kNf4Block];
  }
  for (const int64_t begin : {0, 1, 2, 17, 63, 64, 65, 500, 999}) {
    for (const int64_t count : {1, 2, 3, 31, 64, 130, 1000}) {
      const int64_t n = std::min(count, kN - begin);
      std::vector<float> values(n + 1, 77.0f);
      loops_->dequantize(packed.data(), scales.data() + begin / kNf4Block,
                         begin, n, values.data());
      EXPECT_EQ(std::memcmp(values.data(), wanted.data() + begin, 4 * n), 0)
          << begin << " " << n;
      EXPECT_EQ(values[n], 77.0f);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Sets, Nf4Sets, ::testing::Values(0, 1, 2));

TEST(Nf4LayoutTest, BytesAValue) {
  const Nf4Layout twice(4096 * 4096, true), once(4096 * 4096, false);
  EXPECT_LT(static_cast<double>(twice.bytes) / (4096 * 4096), 0.52);
  EXPECT_EQ(static_cast<double>(once.bytes) / (4096 * 4096), 0.5625);
  EXPECT_EQ(twice.group_scales % 4, 0);
  EXPECT_EQ(Nf4Layout(7, true).blocks, 1);
  EXPECT_EQ(Nf4Layout(7, true).bytes, 64 + 4 + 4 + 1);
}

TEST(Nf4Test, GroupsOfScalesAreIndependent) {
  std::vector<float> scales = Normal(600, 9);
  for (float& scale : scales) scale = std::abs(scale);
  const float offset = Nf4Offset(scales.data(), 600);
  std::vector<uint8_t> all(600), part(344);
  std::vector<float> groups(3), rest(2);
  QuantizeNf4Scales(scales.data(), 600, offset, all.data(), groups.data());
  QuantizeNf4Scales(scales.data() + 256, 344, offset, part.data(), rest.data());
  EXPECT_TRUE(std::equal(part.begin(), part.end(), all.begin() + 256));
  EXPECT_EQ(rest, std::vector<float>(groups.begin() + 1, groups.end()));
}

}  // namespace
}  // namespace capstan::kernels
