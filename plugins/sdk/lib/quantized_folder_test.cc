// SPDX-License-Identifier: Apache-2.0
//
// Folders as bitsandbytes writes them, made from golden values; hostile ones;
// and matrices that are quantised as they are read.
#include "plugins/sdk/lib/quantized_folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <cstring>
#include <functional>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/files.h"
#include "plugins/sdk/lib/packed_matrix.h"

namespace capstan {
namespace {

using ::testing::HasSubstr;
using Json = nlohmann::ordered_json;

constexpr char kName[] = "model.layers.1.mlp.down_proj.weight";
constexpr int64_t kRows = 64, kColumns = 176;

struct Part {
  c10::ScalarType dtype = c10::ScalarType::Byte;
  std::vector<int64_t> shape;
  std::string bytes;
};
using Parts = std::map<std::string, Part>;

class QuantizedFolderTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto opened = SafetensorsReader::Open(
        "tests/golden/testdata/llama_qlora/nf4.safetensors");
    ASSERT_TRUE(opened.ok()) << opened.status();
    golden_ = *std::move(opened);
  }

  Part Golden(const std::string& part) const {
    const TensorEntry& entry =
        golden_->tensors().at(absl::StrCat(kName, ".", part));
    return {entry.dtype, entry.shape,
            std::string(entry.data, static_cast<size_t>(entry.bytes))};
  }
  std::vector<float> GoldenFloats(const std::string& part) const {
    const std::string bytes = Golden(part).bytes;
    std::vector<float> values(bytes.size() / 4);
    std::memcpy(values.data(), bytes.data(), bytes.size());
    return values;
  }

  Json State(bool twice) const {
    Json state = {{"quant_type", "nf4"},
                  {"blocksize", 64},
                  {"dtype", "bfloat16"},
                  {"shape", {kRows, kColumns}}};
    if (!twice) return state;
    state["nested_blocksize"] = 256;
    state["nested_dtype"] = "float32";
    state["nested_offset"] = GoldenFloats("offset")[0];
    return state;
  }

  Parts Good(bool twice) const {
    Parts parts;
    const std::string name = kName;
    parts[name] = Golden("packed");
    parts[name + ".quant_map"] = Golden("code");
    parts[name + ".absmax"] = Golden(twice ? "absmax_quantised" : "absmax");
    if (twice) {
      parts[name + ".nested_absmax"] = Golden("absmax_absmax");
      parts[name + ".nested_quant_map"] = Golden("absmax_code");
    }
    SetState(State(twice), &parts);
    parts["model.norm.weight"] = {
        c10::ScalarType::Float, {2}, std::string(8, '\0')};
    return parts;
  }
  static void SetState(const Json& state, Parts* parts) {
    const std::string text = state.dump();
    (*parts)[absl::StrCat(kName, ".quant_state.bitsandbytes__nf4")] = {
        c10::ScalarType::Byte, {static_cast<int64_t>(text.size())}, text};
  }

  absl::StatusOr<std::unique_ptr<SafetensorsReader>> Open(const Parts& parts) {
    const std::string path = absl::StrCat(::testing::TempDir(), "/quantized_",
                                          count_++, ".safetensors");
    std::remove(path.c_str());  // another test's
    auto writer = SafetensorsWriter::Create(path);
    EXPECT_TRUE(writer.ok()) << writer.status();
    for (const auto& [name, part] : parts) {
      (*writer)->Declare(name, part.dtype, part.shape);
    }
    for (const auto& [name, part] : parts) {
      EXPECT_TRUE((*writer)->Append(part.bytes.data(), part.bytes.size()).ok());
    }
    EXPECT_TRUE((*writer)->Close().ok());
    return OpenWeights(path);
  }

  std::unique_ptr<SafetensorsReader> golden_;
  int count_ = 0;
};

TEST_F(QuantizedFolderTest, ReadsValuesAndBytes) {
  for (const bool twice : {false, true}) {
    const auto opened = Open(Good(twice));
    ASSERT_TRUE(opened.ok()) << opened.status();
    const auto* const reader =
        dynamic_cast<const QuantizedReader*>(opened->get());
    ASSERT_NE(reader, nullptr);
    EXPECT_EQ(reader->tensors().size(), 2u);
    const TensorEntry& entry = reader->tensors().at(kName);
    EXPECT_EQ(entry.shape, std::vector<int64_t>({kRows, kColumns}));
    EXPECT_EQ(entry.dtype, c10::ScalarType::BFloat16);
    EXPECT_EQ(reader->Packed("model.norm.weight"), nullptr);

    const std::vector<float> wanted =
        GoldenFloats(twice ? "float32_double" : "float32");
    std::vector<float> values(wanted.size());
    ASSERT_TRUE(
        reader->ReadFloats(kName, 0, values.size(), values.data()).ok());
    EXPECT_EQ(values, wanted);
    std::vector<float> part(101);
    ASSERT_TRUE(reader->ReadFloats(kName, 333, 101, part.data()).ok());
    EXPECT_TRUE(std::equal(part.begin(), part.end(), wanted.begin() + 333));
    EXPECT_FALSE(
        reader->ReadFloats(kName, kRows * kColumns, 1, part.data()).ok());

    // In parts as well.
    const PackedMatrix& matrix = *reader->Packed(kName);
    EXPECT_EQ(matrix.format(), twice ? Quantize::kNf4Double : Quantize::kNf4);
    std::vector<uint8_t> all(matrix.bytes());
    ASSERT_TRUE(matrix.ReadBytes(0, matrix.bytes(), all.data()).ok());
    EXPECT_EQ(std::memcmp(all.data(), Golden("packed").bytes.data(), 5632), 0);
    for (int64_t begin = 0; begin < matrix.bytes(); begin += 77) {
      const int64_t n = std::min<int64_t>(77, matrix.bytes() - begin);
      std::vector<uint8_t> some(n);
      ASSERT_TRUE(matrix.ReadBytes(begin, n, some.data()).ok());
      EXPECT_TRUE(std::equal(some.begin(), some.end(), all.begin() + begin));
    }
  }
}

TEST_F(QuantizedFolderTest, LeavesOtherFoldersAlone) {
  Parts parts;
  parts["a"] = {c10::ScalarType::Float, {1}, std::string(4, '\0')};
  const auto opened = Open(parts);
  ASSERT_TRUE(opened.ok());
  EXPECT_EQ(dynamic_cast<const QuantizedReader*>(opened->get()), nullptr);
}

TEST_F(QuantizedFolderTest, RefusesWhatContradictsItself) {
  const std::string name = kName;
  const auto refused = [&](const std::function<void(Parts*)>& change,
                           const std::string& what) {
    Parts parts = Good(true);
    change(&parts);
    const auto opened = Open(parts);
    ASSERT_FALSE(opened.ok()) << what;
    EXPECT_THAT(std::string(opened.status().message()),
                ::testing::AllOf(HasSubstr(what), HasSubstr(kName),
                                 HasSubstr("quantized_")));
  };
  const auto state = [&](const char* key, const Json& value,
                         const std::string& what) {
    refused(
        [&](Parts* parts) {
          Json json = State(true);
          json[key] = value;
          SetState(json, parts);
        },
        what);
  };
  for (const char* part :
       {"absmax", "quant_map", "nested_absmax", "nested_quant_map"}) {
    refused([&](Parts* parts) { parts->erase(name + "." + part); },
            absl::StrCat("lacks '", name, ".", part, "'"));
    refused(
        [&](Parts* parts) {
          Part& cut = (*parts)[name + "." + part];
          cut = {c10::ScalarType::Byte, {3}, "abc"};
        },
        "which has 3 of Byte");
  }
  refused([&](Parts* parts) { parts->erase(name); }, "lacks");
  refused(
      [&](Parts* parts) {
        (*parts)[name] = {c10::ScalarType::Byte, {4}, "abcd"};
      },
      "needs 5632 bytes");
  refused([&](Parts* parts) { (*parts)[name + ".quant_map"].bytes[3] ^= 1; },
          "other numbers in quant_map");
  refused(
      [&](Parts* parts) {
        (*parts)[name + ".quant_state.bitsandbytes__nf4"] = {
            c10::ScalarType::Byte, {1}, "{"};
      },
      "isn't a JSON object");
  refused(
      [&](Parts* parts) {
        (*parts)[name + ".quant_state.bitsandbytes__fp4"] = {
            c10::ScalarType::Byte, {2}, "{}"};
      },
      "not to NF4");
  state("quant_type", "fp4", "isn't in NF4");
  state("blocksize", 128, "isn't in NF4");
  state("nested_blocksize", 128, "blocks of 256");
  state("nested_dtype", "float16", "blocks of 256");
  state("nested_offset", "x", "no nested_offset");
  state("nested_offset", 1e300, "isn't finite");
  state("dtype", "int8", "none of float32");
  state("shape", Json::array({64}), "isn't a matrix's");
  state("shape", Json::array({-64, -176}), "isn't a matrix's");
  state("shape", Json::array({int64_t{1} << 40, int64_t{1} << 40}),
        "isn't a matrix's");
  state("shape", Json::array({64, 177}), "needs 5664 bytes");
}

TEST_F(QuantizedFolderTest, ConfigsThatAreRead) {
  const Json good = {{"quant_method", "bitsandbytes"},
                     {"load_in_4bit", true},
                     {"bnb_4bit_quant_type", "nf4"},
                     {"bnb_4bit_use_double_quant", true}};
  EXPECT_TRUE(CheckQuantizationConfig(good.dump()).ok());
  for (const char* text :
       {"{}", "null", "[]", "7", "{\"quant_method\":\"gptq\",\"bits\":4}",
        "{\"quant_method\":\"bitsandbytes\",\"load_in_8bit\":true}",
        "{\"quant_method\":\"bitsandbytes\",\"load_in_4bit\":true,"
        "\"bnb_4bit_quant_type\":\"fp4\"}"}) {
    const absl::Status status = CheckQuantizationConfig(text);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << text;
  }
  EXPECT_THAT(
      std::string(
          CheckQuantizationConfig("{\"quant_method\":\"gptq\"}").message()),
      HasSubstr("has quant_method \"gptq\""));
}

// From the base's own values, in any parts, as in one.
TEST_F(QuantizedFolderTest, QuantisesAsItReads) {
  auto base = SafetensorsReader::Open("tests/golden/testdata/llama_qlora/base");
  ASSERT_TRUE(base.ok()) << base.status();
  const SafetensorsReader& reader = **base;
  for (const bool twice : {false, true}) {
    int64_t most = 0;
    const auto matrix = QuantizeMatrix(
        twice ? Quantize::kNf4Double : Quantize::kNf4, kRows, kColumns,
        [&](int64_t begin, int64_t count, float* out) {
          most = std::max(most, count);
          return reader.ReadFloats(kName, begin, count, out);
        },
        kName);
    std::vector<uint8_t> all(matrix->bytes());
    ASSERT_TRUE(matrix->ReadBytes(0, matrix->bytes(), all.data()).ok());
    EXPECT_EQ(std::memcmp(all.data(), Golden("packed").bytes.data(), 5632), 0);
    if (!twice) {
      EXPECT_EQ(
          std::memcmp(all.data() + 5632, Golden("absmax").bytes.data(), 704),
          0);
      std::vector<float> values(kRows * kColumns);
      ASSERT_TRUE(matrix->ReadValues(0, values.size(), values.data()).ok());
      EXPECT_EQ(values, GoldenFloats("float32"));
    }
    for (const int64_t length : {1, 7, 1000, 5633}) {
      for (int64_t begin = 0; begin < matrix->bytes(); begin += length + 300) {
        const int64_t n = std::min(length, matrix->bytes() - begin);
        std::vector<uint8_t> some(n);
        ASSERT_TRUE(matrix->ReadBytes(begin, n, some.data()).ok());
        EXPECT_TRUE(std::equal(some.begin(), some.end(), all.begin() + begin));
      }
    }
    std::vector<float> whole(kRows * kColumns), part(500);
    ASSERT_TRUE(matrix->ReadValues(0, whole.size(), whole.data()).ok());
    ASSERT_TRUE(matrix->ReadValues(1001, 500, part.data()).ok());
    EXPECT_TRUE(std::equal(part.begin(), part.end(), whole.begin() + 1001));
    EXPECT_LE(most, 16384);
  }
}

TEST(QuantizeMatrixTest, Fp8InAnyPartsAsInOne) {
  constexpr int64_t kOut = 30, kIn = 50;
  const auto read = [](int64_t begin, int64_t count, float* out) {
    for (int64_t i = begin; i < begin + count; ++i) {
      *out++ = std::sin(0.3f * static_cast<float>(i)) *
               static_cast<float>(1 + i / kIn);
    }
    return absl::OkStatus();
  };
  const auto matrix =
      QuantizeMatrix(Quantize::kFp8, kOut, kIn, read, "some.weight");
  EXPECT_EQ(matrix->format(), Quantize::kFp8);
  EXPECT_EQ(matrix->bytes(), 1536 + 4 * kOut);
  std::vector<uint8_t> all(matrix->bytes());
  ASSERT_TRUE(matrix->ReadBytes(0, matrix->bytes(), all.data()).ok());
  std::vector<float> values(kOut * kIn), exact(kOut * kIn);
  ASSERT_TRUE(matrix->ReadValues(0, values.size(), values.data()).ok());
  ASSERT_TRUE(read(0, exact.size(), exact.data()).ok());
  for (int64_t i = 0; i < kOut * kIn; ++i) {
    ASSERT_NEAR(values[i], exact[i], std::fabs(exact[i]) / 16 + 1e-3);
  }
  for (const int64_t length : {1, 7, 49, 100, 1600}) {
    for (int64_t begin = 0; begin < matrix->bytes(); begin += length + 3) {
      const int64_t n = std::min(length, matrix->bytes() - begin);
      std::vector<uint8_t> some(n, 0xff);
      ASSERT_TRUE(matrix->ReadBytes(begin, n, some.data()).ok());
      EXPECT_TRUE(std::equal(some.begin(), some.end(), all.begin() + begin))
          << begin << " " << n;
    }
  }
  std::vector<float> part(120);
  ASSERT_TRUE(matrix->ReadValues(33, part.size(), part.data()).ok());
  EXPECT_TRUE(std::equal(part.begin(), part.end(), values.begin() + 33));
}

TEST(QuantizeMatrixTest, RefusesWhatIsNoNumber) {
  for (const Quantize format :
       {Quantize::kNf4, Quantize::kNf4Double, Quantize::kFp8}) {
    const auto matrix = QuantizeMatrix(
        format, 2, 64,
        [](int64_t begin, int64_t count, float* out) {
          for (int64_t i = 0; i < count; ++i) {
            out[i] = begin + i == 70 ? std::numeric_limits<float>::quiet_NaN()
                                     : 1.0f;
          }
          return absl::OkStatus();
        },
        "some.weight");
    std::vector<uint8_t> bytes(matrix->bytes());
    const absl::Status status =
        matrix->ReadBytes(0, matrix->bytes(), bytes.data());
    EXPECT_THAT(
        std::string(status.message()),
        ::testing::AllOf(HasSubstr("'some.weight'"), HasSubstr("from 64 on")));
  }
}

}  // namespace
}  // namespace capstan
