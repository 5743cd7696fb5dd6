// SPDX-License-Identifier: Apache-2.0
#include "desk/checkpoints/merge_adapter.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/from_blob.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <memory>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_format.h"
#include "base/files.h"
#include "plugins/sdk/lib/packed_matrix.h"
#include "plugins/sdk/lib/safetensors.h"
#include "trainer/checkpoint/base_weights.h"
#include "trainer/checkpoint/hf_folder.h"

namespace capstan {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::string Golden(const std::string& name) {
  return std::string(getenv("TEST_SRCDIR")) +
         "/capstan/tests/golden/testdata/" + name;
}

std::string NewFolder() {
  std::string folder = ::testing::TempDir() + "/merge_XXXXXX";
  EXPECT_NE(mkdtemp(&folder[0]), nullptr);
  return folder;
}

absl::Status Merge(const std::string& base, const std::string& adapter,
                   const std::string& output, bool other_base = false) {
  return MergeAdapter({base, adapter, output, other_base}).status();
}

std::unique_ptr<SafetensorsReader> Open(const std::string& folder) {
  auto reader = SafetensorsReader::Open(folder);
  EXPECT_TRUE(reader.ok()) << reader.status();
  return reader.ok() ? *std::move(reader) : nullptr;
}

std::vector<float> Values(const SafetensorsReader& reader,
                          const std::string& name) {
  std::vector<float> values(reader.tensors().at(name).numel);
  EXPECT_TRUE(reader.ReadFloats(name, 0, values.size(), values.data()).ok());
  return values;
}

// PEFT's merge of the same adapter (golden/llama_lora_merged).
TEST(MergeAdapterTest, IsPeftsMerge) {
  const std::string output = NewFolder() + "/merged";
  const absl::Status status =
      Merge(Golden("llama"), Golden("llama_lora"), output);
  ASSERT_TRUE(status.ok()) << status;
  const auto got = Open(output);
  const auto want = Open(Golden("llama_lora_merged"));
  const auto base = Open(Golden("llama"));
  ASSERT_EQ(got->tensors().size(), want->tensors().size());
  int changed = 0;
  for (const auto& [name, entry] : want->tensors()) {
    ASSERT_EQ(got->tensors().count(name), 1) << name;
    EXPECT_EQ(got->tensors().at(name).dtype, entry.dtype);
    EXPECT_EQ(got->tensors().at(name).shape, entry.shape);
    const std::vector<float> a = Values(*got, name);
    const std::vector<float> b = Values(*want, name);
    for (size_t i = 0; i < a.size(); ++i) {
      ASSERT_NEAR(a[i], b[i], 1e-7) << name << " " << i;
    }
    changed += a != Values(*base, name);
  }
  EXPECT_GT(changed, 0);
  EXPECT_EQ(*ReadWholeFile(output + "/config.json"),
            *ReadWholeFile(Golden("llama") + "/config.json"));
}

// The modules of golden/llama_dora that PEFT's merge_and_unload gave.
TEST(MergeAdapterTest, IsPeftsMergeOfDora) {
  const std::string output = NewFolder() + "/merged";
  const absl::Status status =
      Merge(Golden("llama"), Golden("llama_dora"), output);
  ASSERT_TRUE(status.ok()) << status;
  const auto got = Open(output);
  const auto want = Open(Golden("llama_dora") + "/golden.safetensors");
  int compared = 0;
  for (const auto& [name, entry] : want->tensors()) {
    if (got->tensors().count(name) == 0) continue;
    const std::vector<float> a = Values(*got, name);
    const std::vector<float> b = Values(*want, name);
    for (size_t i = 0; i < a.size(); ++i) {
      ASSERT_NEAR(a[i], b[i], 2e-7) << name << " " << i;
    }
    ++compared;
  }
  EXPECT_EQ(compared, 2);
}

TEST(MergeAdapterTest, ShardsStayAsTheyAre) {
  const std::string output = NewFolder() + "/merged";
  const absl::Status status =
      Merge(Golden("llama_untied_sharded"), Golden("llama_lora"), output);
  ASSERT_TRUE(status.ok()) << status;
  const auto got = Open(output);
  const auto base = Open(Golden("llama_untied_sharded"));
  ASSERT_EQ(got->tensors().size(), base->tensors().size());
  for (const auto& [name, entry] : base->tensors()) {
    const auto file = [](const TensorEntry& of) {
      return std::filesystem::path(of.file).filename();
    };
    EXPECT_EQ(file(got->tensors().at(name)), file(entry));
  }
}

// The folder with its weights in another dtype, each times factor(name).
void Rewrite(
    const std::string& from, const std::string& to, c10::ScalarType dtype,
    const std::function<double(const std::string& name)>& factor =
        [](const std::string&) { return 1.0; }) {
  std::filesystem::copy(from, to);
  ASSERT_TRUE(std::filesystem::remove(to + "/model.safetensors"));
  const auto reader = Open(from);
  auto writer = SafetensorsWriter::Create(to + "/model.safetensors");
  ASSERT_TRUE(writer.ok()) << writer.status();
  for (const auto& [name, entry] : reader->tensors()) {
    (*writer)->Declare(name, dtype, entry.shape);
  }
  for (const auto& [name, entry] : reader->tensors()) {
    std::vector<float> values = Values(*reader, name);
    const at::Tensor stored =
        at::from_blob(values.data(), {entry.numel}, at::kFloat)
            .mul_(factor(name))
            .to(dtype);
    ASSERT_TRUE(
        (*writer)->Append(stored.const_data_ptr(), stored.nbytes()).ok());
  }
  ASSERT_TRUE((*writer)->Close().ok());
}

// The adapter's folder as a run writes it that was trained on `base`.
std::string TrainedOn(const std::string& base) {
  const std::string folder = NewFolder() + "/adapter";
  std::filesystem::copy(Golden("llama_lora"), folder);
  EXPECT_TRUE(
      WriteWholeFile(folder + "/capstan.json",
                     CapstanJson("name: \"x\"", DigestOfWeights(base).value()))
          .ok());
  return folder;
}

TEST(MergeAdapterTest, AnotherBaseIsNoticed) {
  const std::string output = NewFolder() + "/merged";
  const std::string base = Golden("llama");
  absl::Status status = Merge(base, TrainedOn(base), output);
  EXPECT_TRUE(status.ok()) << status;
  const std::string another = TrainedOn(Golden("llama_lora_merged"));
  status = Merge(base, another, output + "2");
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr(another + " was trained on a base of "),
                    HasSubstr(base), HasSubstr("--other_base")));
  EXPECT_FALSE(PathExists(output + "2"));
  status = Merge(base, another, output + "2", /*other_base=*/true);
  EXPECT_TRUE(status.ok()) << status;
  // Weights that the adapter doesn't touch are the base's, too.
  const std::string scaled = NewFolder() + "/base";
  Rewrite(base, scaled, at::kFloat, [](const std::string& name) {
    return name.find("layernorm") == std::string::npos ? 1.0 : 1.5;
  });
  status = Merge(scaled, TrainedOn(base), output + "3");
  EXPECT_THAT(std::string(status.message()), HasSubstr("another state of it"));
  // PEFT's own, which doesn't say.
  const auto note =
      MergeAdapter({base, Golden("llama_lora"), output + "4", false});
  ASSERT_TRUE(note.ok()) << note.status();
  EXPECT_THAT(*note, HasSubstr("doesn't say which weights its base had"));
}

// An adapter that was trained on NF4 (QLoRA) is merged into what NF4 keeps of
// its own modules, and the note says how far rounding moved the weights.
TEST(MergeAdapterTest, OntoWhatNf4Keeps) {
  const std::string adapter = NewFolder() + "/adapter";
  std::filesystem::copy(Golden("llama_lora"), adapter);
  ASSERT_TRUE(WriteWholeFile(adapter + "/capstan.json",
                             CapstanJson("name: \"x\"", /*base_weights=*/"",
                                         Quantize::kNf4Double))
                  .ok());
  for (const c10::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const std::string base = NewFolder() + "/base";
    Rewrite(Golden("llama"), base, dtype);
    const std::string output = NewFolder() + "/merged";
    const auto note = MergeAdapter({base, adapter, output});
    ASSERT_TRUE(note.ok()) << note.status();
    const auto was = Open(base), got = Open(output);
    // PEFT's merge of the float32 base: what the adapter adds.
    const auto golden = Open(Golden("llama")),
               merged = Open(Golden("llama_lora_merged"));
    double squares = 0.0, errors = 0.0;
    int adapted = 0;
    for (const auto& [name, entry] : got->tensors()) {
      EXPECT_EQ(entry.dtype, dtype);
      std::vector<float> wanted = Values(*was, name);
      const std::vector<float> before = Values(*golden, name);
      const std::vector<float> after = Values(*merged, name);
      if (before == after) {
        EXPECT_EQ(Values(*got, name), wanted) << name;
        continue;
      }
      ++adapted;
      const auto packed = QuantizeMatrix(
          Quantize::kNf4Double, entry.shape[0], entry.shape[1],
          [&, from = wanted](int64_t begin, int64_t count, float* out) {
            std::copy_n(from.begin() + begin, count, out);
            return absl::OkStatus();
          },
          name);
      ASSERT_TRUE(packed->ReadValues(0, entry.numel, wanted.data()).ok());
      EXPECT_NE(wanted, Values(*was, name));
      const std::vector<float> values = Values(*got, name);
      const double most = dtype == at::kFloat ? 1e-6 : 1.0 / 256;  // relative
      for (size_t i = 0; i < values.size(); ++i) {
        const double exact =
            wanted[i] + (static_cast<double>(after[i]) - before[i]);
        ASSERT_NEAR(values[i], exact, 1e-7 + most * std::fabs(exact))
            << name << " " << i;
        squares += exact * exact;
        errors += (values[i] - exact) * (values[i] - exact);
      }
    }
    EXPECT_GT(adapted, 0);
    const double moved = std::sqrt(errors / squares);
    EXPECT_THAT(*note,
                HasSubstr(dtype == at::kFloat
                              ? "moved them by 0.0e+00 of their size"
                              : absl::StrFormat("moved them by %.1e", moved)));
  }
}

// golden/llama as the text part of a model that sees: its tensors' names begin
// with `start` in place of "model.".
std::string TextPart(const std::string& start) {
  const std::string folder = NewFolder() + "/whole";
  std::filesystem::copy(Golden("llama"), folder);
  std::filesystem::remove(folder + "/model.safetensors");
  const auto llama = Open(Golden("llama"));
  auto writer = SafetensorsWriter::Create(folder + "/model.safetensors");
  EXPECT_TRUE(writer.ok()) << writer.status();
  const auto renamed = [&](const std::string& name) {
    return absl::StartsWith(name, "model.") ? start + name.substr(6) : name;
  };
  for (const auto& [name, entry] : llama->tensors()) {
    (*writer)->Declare(renamed(name), entry.dtype, entry.shape);
  }
  for (const auto& [name, entry] : llama->tensors()) {
    EXPECT_TRUE((*writer)->Append(entry.data, entry.bytes).ok());
  }
  EXPECT_TRUE((*writer)->Close().ok());
  return folder;
}

TEST(MergeAdapterTest, TextPartOfAModelThatSees) {
  const auto want = Open(Golden("llama_lora_merged"));
  const std::string weight = "layers.0.self_attn.q_proj.weight";
  for (const std::string start :
       {"language_model.model.", "model.language_model."}) {
    const std::string output = NewFolder() + "/merged";
    const std::string base = TextPart(start);
    const absl::Status status = Merge(base, TrainedOn(base), output);
    ASSERT_TRUE(status.ok()) << status;
    const auto got = Open(output);
    ASSERT_EQ(got->tensors().size(), want->tensors().size());
    const std::vector<float> a = Values(*got, start + weight);
    const std::vector<float> b = Values(*want, "model." + weight);
    for (size_t i = 0; i < a.size(); ++i) ASSERT_NEAR(a[i], b[i], 1e-7) << i;
  }
}

TEST(MergeAdapterTest, TheBasesCodeComesAlong) {
  const std::string base = NewFolder() + "/base", output = NewFolder() + "/m";
  std::filesystem::copy(Golden("llama"), base);
  ASSERT_TRUE(WriteWholeFile(base + "/modeling_x.py", "code").ok());
  const absl::StatusOr<std::string> note =
      MergeAdapter({base, Golden("llama_lora"), output});
  ASSERT_TRUE(note.ok()) << note.status();
  EXPECT_THAT(*note, HasSubstr("modeling_x.py"));
  EXPECT_EQ(*ReadWholeFile(output + "/modeling_x.py"), "code");
}

TEST(MergeAdapterTest, LeavesNothingBehindAndTouchesNothingElse) {
  const std::string folder = NewFolder();
  const std::string output = folder + "/merged";
  EXPECT_FALSE(Merge(Golden("llama"), Golden("llama"), output).ok());
  EXPECT_TRUE(std::filesystem::is_empty(folder));
  ASSERT_TRUE(MakeFolder(output).ok());
  ASSERT_TRUE(WriteWholeFile(output + "/mine", "x").ok());
  const absl::Status status =
      Merge(Golden("llama"), Golden("llama_lora"), output);
  EXPECT_EQ(status.code(), absl::StatusCode::kAlreadyExists);
  EXPECT_THAT(std::string(status.message()), HasSubstr("is there already"));
}

}  // namespace
}  // namespace capstan
