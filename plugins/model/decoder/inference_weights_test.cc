// SPDX-License-Identifier: Apache-2.0
//
// Weights where the file lies, and in fewer bits.
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "kernels/decode/few_rows.h"
#include "plugins/model/decoder/decoder.h"
#include "plugins/model/decoder/decoder_testing.h"
#include "plugins/sdk/lib/safetensors.h"

namespace capstan::decoder {
namespace {

const char* const kGolden = "tests/golden/testdata/llama31";

std::unique_ptr<Decoder> Make(const std::string& folder, int64_t tokens = 0) {
  Config config;
  config.set_pretrained(folder);
  config.set_vocab_size(tokens);
  auto model = Decoder::Create(config);
  EXPECT_TRUE(model.ok()) << model.status();
  return *std::move(model);
}

bool IsMatrix(const Model& model, int index) {
  return model.parameters()[index].shape.size() == 2;
}

at::Tensor Value(const Model& model, int index) {
  at::Tensor value = at::empty(model.parameters()[index].shape);
  EXPECT_TRUE(model
                  .InitialValue(index, 0, 0, value.numel(),
                                value.mutable_data_ptr<float>())
                  .ok());
  return value;
}

// As generation gathers them: where they are mapped, else as floats.
std::vector<at::Tensor> Gather(const Decoder& model) {
  std::vector<at::Tensor> weights;
  for (size_t i = 0; i < model.parameters().size(); ++i) {
    const int index = static_cast<int>(i);
    weights.push_back(model.StoredWeight(index));
    if (!weights[i].defined()) weights[i] = Value(model, index);
  }
  return weights;
}

std::vector<at::Tensor> Values(const Decoder& model) {
  std::vector<at::Tensor> weights;
  for (size_t i = 0; i < model.parameters().size(); ++i) {
    weights.push_back(Value(model, static_cast<int>(i)));
  }
  return weights;
}

at::Tensor Logits(Decoder& model, int64_t times = 1) {
  const at::AutoGradMode no_gradients(false);
  PlainRunner runner;
  const at::Tensor ids = at::tensor({1, 7, 300, 42, 9}, at::kLong);
  return model.Logits({ids.repeat({times}).unsqueeze(0)}, runner);
}

// The root of the mean square.
double Size(const at::Tensor& x) {
  return x.square().mean().sqrt().item<double>();
}

// The golden folder with its weights in another dtype, or as another file.
std::string Folder(const std::string& name) {
  const std::string folder = TestFolder(name);
  std::ofstream(folder + "/config.json") << GoldenConfig("llama31").dump();
  std::remove((folder + "/model.safetensors").c_str());
  return folder;
}

std::string InBfloat16() {
  const std::string folder = Folder("bf16");
  const auto from = SafetensorsReader::Open(kGolden);
  EXPECT_TRUE(from.ok());
  auto to = SafetensorsWriter::Create(folder + "/model.safetensors");
  EXPECT_TRUE(to.ok());
  for (const auto& [name, entry] : (*from)->tensors()) {
    (*to)->Declare(name, at::kBFloat16, entry.shape);
  }
  for (const auto& [name, entry] : (*from)->tensors()) {
    const at::Tensor values = at::empty({entry.numel});
    EXPECT_TRUE(
        (*from)
            ->ReadFloats(name, 0, entry.numel, values.mutable_data_ptr<float>())
            .ok());
    const at::Tensor narrow = values.to(at::kBFloat16);
    EXPECT_TRUE((*to)->Append(narrow.const_data_ptr(), 2 * entry.numel).ok());
  }
  EXPECT_TRUE((*to)->Close().ok());
  return folder;
}

// The flags of the mapping of `file`, as /proc/self/smaps has them.
std::string MappingFlags(const std::string& file) {
  std::ifstream smaps("/proc/self/smaps");
  bool in_file = false;
  for (std::string line; std::getline(smaps, line);) {
    if (line.find('/') != std::string::npos) {
      in_file = line.find(file) != std::string::npos;
    }
    if (in_file && line.rfind("VmFlags:", 0) == 0) return line + " ";
  }
  return "";
}

TEST(StoredWeightTest, IsTheFilesOwnMemory) {
  const auto model = Make(kGolden);
  for (size_t i = 0; i < model->parameters().size(); ++i) {
    const int index = static_cast<int>(i);
    const at::Tensor stored = model->StoredWeight(index);
    ASSERT_TRUE(stored.defined()) << i;
    EXPECT_EQ(stored.scalar_type(), at::kFloat);
    EXPECT_TRUE(stored.equal(Value(*model, index))) << i;
    EXPECT_EQ(stored.const_data_ptr(),
              model->StoredWeight(index).const_data_ptr());
  }
  EXPECT_FALSE(model->StoredWeight(static_cast<int>(model->parameters().size()))
                   .defined());
}

TEST(StoredWeightTest, OnlyMatricesHave16Bits) {
  const auto model = Make(InBfloat16());
  for (size_t i = 0; i < model->parameters().size(); ++i) {
    const int index = static_cast<int>(i);
    const at::Tensor stored = model->StoredWeight(index);
    ASSERT_EQ(stored.defined(), IsMatrix(*model, index)) << i;
    if (!stored.defined()) continue;
    EXPECT_EQ(stored.scalar_type(), at::kBFloat16);
    EXPECT_TRUE(stored.to(at::kFloat).equal(Value(*model, index))) << i;
  }
}

TEST(StoredWeightTest, NotWhatTheFileHasOtherwise) {
  Config random;
  random.set_config(std::string(kGolden) + "/config.json");
  const auto without = Decoder::Create(random);
  ASSERT_TRUE(without.ok());
  EXPECT_FALSE((*without)->StoredWeight(1).defined());
  // Rows that the file lacks.
  const auto grown = Make(kGolden, 515);
  EXPECT_FALSE(grown->StoredWeight(0).defined());
  EXPECT_TRUE(grown->StoredWeight(1).defined());
}

TEST(StoredWeightTest, NotWhatIsntAligned) {
  std::ifstream from(std::string(kGolden) + "/model.safetensors",
                     std::ios::binary);
  std::string bytes((std::istreambuf_iterator<char>(from)), {});
  uint64_t header = 0;
  std::memcpy(&header, bytes.data(), 8);
  bytes.insert(8 + header, " ");
  ++header;
  std::memcpy(&bytes[0], &header, 8);
  const std::string folder = Folder("odd");
  std::ofstream(folder + "/model.safetensors", std::ios::binary) << bytes;
  const auto model = Make(folder), golden = Make(kGolden);
  for (size_t i = 0; i < model->parameters().size(); ++i) {
    const int index = static_cast<int>(i);
    EXPECT_FALSE(model->StoredWeight(index).defined());
    EXPECT_TRUE(Value(*model, index).equal(Value(*golden, index)));
  }
}

TEST(BindForInferenceTest, StoredIsAsBound) {
  const auto wanted = Make(kGolden), model = Make(kGolden);
  wanted->Bind(Values(*wanted));
  ASSERT_TRUE(
      model->BindForInference(Gather(*model), WeightForm::kStored).ok());
  EXPECT_TRUE(Logits(*model).allclose(Logits(*wanted), 1e-5, 1e-5));
}

TEST(BindForInferenceTest, Bfloat16IsThatOfAFolderInBfloat16) {
  const auto from_floats = Make(kGolden), from_halves = Make(InBfloat16());
  ASSERT_TRUE(
      from_floats->BindForInference(Gather(*from_floats), WeightForm::kBfloat16)
          .ok());
  // Their norms differ, by the file's rounding.
  std::vector<at::Tensor> halves = Gather(*from_halves);
  for (size_t i = 0; i < halves.size(); ++i) {
    const int index = static_cast<int>(i);
    if (!IsMatrix(*from_halves, index)) {
      halves[i] = Value(*from_floats, index);
    }
  }
  ASSERT_TRUE(from_halves->BindForInference(halves, WeightForm::kStored).ok());
  const at::Tensor logits = Logits(*from_halves);
  EXPECT_TRUE(Logits(*from_floats).equal(logits));
  const auto rounded = Make(kGolden);
  for (at::Tensor& weight : halves) weight = weight.to(at::kFloat);
  rounded->Bind(halves);
  // Where products round their rows to bfloat16, each value is off by up to
  // 2^-9 of itself: by 1e-2 of the logits' size, after a few layers.
  const double bound = kernels::RoundsToBf16() ? 1e-2 : 1e-4;
  const at::Tensor exact = Logits(*rounded);
  EXPECT_LT(Size(exact - logits), bound * Size(exact));
  // So many rows that they aren't multiplied as a text's next tokens are.
  const at::Tensor wide = Logits(*rounded, 8);
  EXPECT_LT(Size(Logits(*from_halves, 8) - wide), bound * Size(wide));
  ASSERT_TRUE(
      from_halves->BindForInference(Gather(*from_halves), WeightForm::kFloat32)
          .ok());
  EXPECT_TRUE(Logits(*from_halves).allclose(logits, 1e-1, 1e-1));
}

TEST(BindForInferenceTest, Int8IsARoundedRow) {
  const auto model = Make(kGolden), exact = Make(kGolden),
             wanted = Make(kGolden);
  ASSERT_TRUE(model->BindForInference(Gather(*model), WeightForm::kInt8).ok());
  exact->Bind(Values(*exact));
  std::vector<at::Tensor> rounded = Values(*wanted);
  for (size_t i = 0; i < rounded.size(); ++i) {
    if (!IsMatrix(*wanted, static_cast<int>(i))) continue;
    const int64_t columns = rounded[i].size(1);
    std::vector<int8_t> codes(columns);
    for (int64_t row = 0; row < rounded[i].size(0); ++row) {
      float* const values =
          rounded[i].mutable_data_ptr<float>() + row * columns;
      const float scale = kernels::QuantizeInt8(values, columns, codes.data());
      for (int64_t c = 0; c < columns; ++c) values[c] = scale * codes[c];
    }
  }
  wanted->Bind(rounded);
  const at::Tensor logits = Logits(*model);
  EXPECT_TRUE(logits.allclose(Logits(*wanted), 1e-4, 1e-4));
  EXPECT_FALSE(logits.allclose(Logits(*exact), 1e-4, 1e-4));
}

TEST(BindForInferenceTest, MappedWeightsArentReadOnlyOnce) {
  const std::string folder = Folder("again");
  std::ofstream(folder + "/model.safetensors", std::ios::binary)
      << std::ifstream(std::string(kGolden) + "/model.safetensors",
                       std::ios::binary)
             .rdbuf();
  const std::string file =
      std::filesystem::canonical(folder + "/model.safetensors").string();
  const auto model = Make(folder);
  EXPECT_NE(MappingFlags(file).find(" sr "), std::string::npos)
      << MappingFlags(file);
  ASSERT_TRUE(model->BindForInference(Gather(*model), WeightForm::kInt8).ok());
  EXPECT_NE(MappingFlags(file).find(" sr "), std::string::npos);
  ASSERT_TRUE(
      model->BindForInference(Gather(*model), WeightForm::kStored).ok());
  EXPECT_EQ(MappingFlags(file).find(" sr "), std::string::npos)
      << MappingFlags(file);
}

}  // namespace
}  // namespace capstan::decoder
