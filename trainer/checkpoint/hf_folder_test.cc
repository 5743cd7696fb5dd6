// SPDX-License-Identifier: Apache-2.0
#include "trainer/checkpoint/hf_folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <nlohmann/json.hpp>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/files.h"
#include "plugins/sdk/idle_for_test.h"
#include "plugins/sdk/lib/safetensors.h"
#include "trainer/checkpoint/base_weights.h"
#include "trainer/checkpoint/checkpoint_testing.h"

namespace capstan {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Json = nlohmann::json;

// 12, 20, 3 and 8 elements.
std::vector<ParameterSpec> Specs() {
  return {{"embed", {3, 4}, 0, true},
          {"w", {4, 5}, 1, true},
          {"b", {3}, 1, true},
          {"head", {8}, 2, true}};
}

class FakeModel final : public Model {
 public:
  const std::vector<ParameterSpec>& parameters() const override {
    return specs_;
  }
  const std::vector<std::string>& units() const override { return units_; }
  absl::Status InitialValue(int, uint64_t, int64_t, int64_t,
                            float*) const override {
    return absl::UnimplementedError("not for this test");
  }
  void Bind(std::vector<at::Tensor>) override {}
  absl::Status SaveConfig(const std::string& folder,
                          c10::ScalarType dtype) const override {
    if (!config_status_.ok()) return config_status_;
    return WriteWholeFile(folder + "/config.json",
                          absl::StrCat("{\"dtype\":\"", c10::toString(dtype),
                                       "\",\"eos_token_id\":[5,6]}"));
  }

  absl::Status config_status_;

 private:
  const std::vector<ParameterSpec> specs_ = Specs();
  const std::vector<std::string> units_ = {"0", "1", "2"};
};

// Sets element i of parameter p to `base` + 100 p + i.
class FakeStrategy final : public IdleStrategy {
 public:
  FakeStrategy(ProcessGroup* group, float base) : group_(group), base_(base) {}

  absl::Status ForEachFullParameter(
      const std::function<absl::Status(int, const at::Tensor&)>& fn) override {
    const std::vector<ParameterSpec> specs = Specs();
    for (int p = 0; p < static_cast<int>(specs.size()); ++p) {
      double meet[1] = {1.0};
      group_->AllReduceHost(absl::MakeSpan(meet));
      if (group_->rank() != 0) continue;
      const at::Tensor value = at::zeros(specs[p].shape, at::kFloat);
      for (int64_t i = 0; i < value.numel(); ++i) {
        value.data_ptr<float>()[i] = base_ + 100.0f * p + i;
      }
      const absl::Status status = fn(p, value);
      if (!status.ok()) return status;
    }
    return absl::OkStatus();
  }

 private:
  ProcessGroup* const group_;
  const float base_;
};

class FakeTokenizer final : public Tokenizer {
 public:
  int64_t vocab_size() const override { return 1; }
  std::vector<int64_t> Encode(absl::string_view) const override { return {}; }
  Encoding EncodeWithPlaces(absl::string_view) const override { return {}; }
  std::string Decode(absl::Span<const int64_t>) const override { return ""; }
  SpecialIds special_ids() const override { return special_ids_; }
  absl::Status Save(const std::string& folder) const override {
    return WriteWholeFile(folder + "/tokenizer.json", "{}");
  }

  SpecialIds special_ids_;
};

struct Wish {
  c10::ScalarType dtype = c10::ScalarType::Float;
  int64_t max_shard_bytes = 1 << 20;
  float base = 0.0f;
  bool tokenizer = false;
  Tokenizer::SpecialIds special_ids;
  std::vector<std::pair<std::string, std::string>> files;
  absl::Status config_status;
  std::string base_model;
  std::string* note = nullptr;
};

std::vector<absl::Status> SaveTo(const std::string& folder, const Wish& wish,
                                 int ranks = 2) {
  return OnRanks(ranks, [&](ProcessGroup& group) {
    FakeModel model;
    model.config_status_ = wish.config_status;
    FakeStrategy strategy(&group, wish.base);
    FakeTokenizer tokenizer;
    tokenizer.special_ids_ = wish.special_ids;
    FinalFolder final;
    final.path = folder;
    final.dtype = wish.dtype;
    final.max_shard_bytes = wish.max_shard_bytes;
    if (wish.tokenizer) final.tokenizer = &tokenizer;
    final.files = wish.files;
    final.config_text = "name: \"test\"\n";
    final.base_model = wish.base_model;
    if (wish.note != nullptr && group.rank() == 0) {
      final.note = [&wish](const std::string& line) { *wish.note = line; };
    }
    return SaveHuggingFaceFolder(final, model, strategy, group);
  });
}

// Whether all values are there, in order and shape.
void ExpectWeights(const std::string& folder, c10::ScalarType dtype,
                   float base = 0.0f) {
  const auto reader = SafetensorsReader::Open(folder);
  ASSERT_TRUE(reader.ok()) << reader.status();
  const std::vector<ParameterSpec> specs = Specs();
  ASSERT_EQ((*reader)->tensors().size(), specs.size());
  for (int p = 0; p < static_cast<int>(specs.size()); ++p) {
    const TensorEntry& entry = (*reader)->tensors().at(specs[p].name);
    EXPECT_EQ(entry.shape, specs[p].shape);
    EXPECT_EQ(entry.dtype, dtype);
    std::vector<float> values(entry.numel);
    ASSERT_TRUE((*reader)
                    ->ReadFloats(specs[p].name, 0, entry.numel, values.data())
                    .ok());
    for (int64_t i = 0; i < entry.numel; ++i) {
      EXPECT_EQ(values[i], base + 100.0f * p + i) << specs[p].name;
    }
  }
}

TEST(HfFolderTest, OneFile) {
  const std::string out = NewFolder();
  Wish wish;
  wish.tokenizer = true;
  const absl::Status status = FirstError(SaveTo(out + "/final/", wish));
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_THAT(Names(out), ElementsAre("final"));
  EXPECT_THAT(Names(out + "/final"),
              ElementsAre("capstan.json", "config.json", "model.safetensors",
                          "tokenizer.json"));
  ExpectWeights(out + "/final", c10::ScalarType::Float);
  const Json capstan = Json::parse(*ReadWholeFile(out + "/final/capstan.json"));
  EXPECT_EQ(capstan,
            Json({{"format", 1},
                  {"config", "name: \"test\"\n"},
                  {"weights", DigestOfWeights(out + "/final").value()}}));
  EXPECT_EQ((*SafetensorsReader::Open(out + "/final"))->metadata().at("format"),
            "pt");
}

// A chat's end of turn becomes the model's EOS.
TEST(HfFolderTest, TheTokenizersSpecialTokensAreTheModels) {
  const std::string out = NewFolder() + "/final";
  Wish wish;
  wish.tokenizer = true;
  wish.special_ids.eos = 7;
  wish.special_ids.pad = 8;
  wish.files = {{"README.md", "# It\n"}};
  ASSERT_TRUE(FirstError(SaveTo(out, wish)).ok());
  EXPECT_THAT(Names(out), ElementsAre("README.md", "capstan.json",
                                      "config.json", "generation_config.json",
                                      "model.safetensors", "tokenizer.json"));
  EXPECT_EQ(*ReadWholeFile(out + "/README.md"), "# It\n");
  EXPECT_EQ(
      Json::parse(*ReadWholeFile(out + "/config.json")),
      Json({{"dtype", "Float"}, {"eos_token_id", 7}, {"pad_token_id", 8}}));
  EXPECT_EQ(Json::parse(*ReadWholeFile(out + "/generation_config.json")),
            Json({{"eos_token_id", 7}, {"pad_token_id", 8}}));
  // One of several EOS tokens.
  wish.special_ids = {};
  wish.special_ids.eos = 6;
  ASSERT_TRUE(FirstError(SaveTo(out, wish)).ok());
  EXPECT_EQ(Json::parse(*ReadWholeFile(out + "/config.json"))["eos_token_id"],
            Json({5, 6}));
}

// Our own files take precedence.
TEST(HfFolderTest, TheBasesCodeGoesAlong) {
  const std::string base = NewFolder() + "/base", out = NewFolder();
  ASSERT_TRUE(MakeFolder(base).ok());
  for (const char* name : {"config.json", "tokenizer.json", "vocab.json",
                           "modeling_x.py", "model-00001.safetensors"}) {
    ASSERT_TRUE(WriteWholeFile(base + "/" + name, "base").ok());
  }
  std::string note;
  Wish wish;
  wish.tokenizer = true;
  wish.base_model = base;
  wish.note = &note;
  const absl::Status status = FirstError(SaveTo(out + "/final", wish));
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_THAT(Names(out + "/final"),
              ElementsAre("capstan.json", "config.json", "model.safetensors",
                          "modeling_x.py", "tokenizer.json"));
  EXPECT_EQ(*ReadWholeFile(out + "/final/modeling_x.py"), "base");
  EXPECT_NE(*ReadWholeFile(out + "/final/config.json"), "base");
  EXPECT_EQ(note, "final/ also has modeling_x.py of base");
}

TEST(HfFolderTest, ShardsAndAnIndex) {
  const std::string out = NewFolder() + "/final";
  Wish wish;
  wish.dtype = c10::ScalarType::BFloat16;
  wish.max_shard_bytes = 30;  // 24 | 40, too large for any | 6 + 16
  const absl::Status status = FirstError(SaveTo(out, wish, 1));
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_THAT(Names(out), ElementsAre("capstan.json", "config.json",
                                      "model-00001-of-00003.safetensors",
                                      "model-00002-of-00003.safetensors",
                                      "model-00003-of-00003.safetensors",
                                      "model.safetensors.index.json"));
  // bfloat16 has 8 bits: 0..255 are exact, 300.. too where even.
  const auto reader = SafetensorsReader::Open(out);
  ASSERT_TRUE(reader.ok()) << reader.status();
  float value = 0;
  ASSERT_TRUE((*reader)->ReadFloats("w", 19, 1, &value).ok());
  EXPECT_EQ(value, 119.0f);
  ASSERT_TRUE((*reader)->ReadFloats("head", 4, 1, &value).ok());
  EXPECT_EQ(value, 304.0f);
  const Json index =
      Json::parse(*ReadWholeFile(out + "/model.safetensors.index.json"));
  EXPECT_EQ(index["metadata"]["total_size"], 86);
  EXPECT_EQ(index["weight_map"],
            Json({{"embed", "model-00001-of-00003.safetensors"},
                  {"w", "model-00002-of-00003.safetensors"},
                  {"b", "model-00003-of-00003.safetensors"},
                  {"head", "model-00003-of-00003.safetensors"}}));
}

TEST(HfFolderTest, ANewFolderReplacesAnOlder) {
  const std::string out = NewFolder();
  Wish wish;
  wish.max_shard_bytes = 30;
  ASSERT_TRUE(FirstError(SaveTo(out + "/final", wish)).ok());
  ASSERT_TRUE(MakeFolder(out + "/.final.tmp/a_killed_run").ok());
  wish.max_shard_bytes = 1 << 20;
  wish.base = 0.5f;
  ASSERT_TRUE(FirstError(SaveTo(out + "/final", wish)).ok());
  EXPECT_THAT(Names(out), ElementsAre("final"));
  EXPECT_THAT(Names(out + "/final"),
              ElementsAre("capstan.json", "config.json", "model.safetensors"));
  ExpectWeights(out + "/final", c10::ScalarType::Float, 0.5f);
}

TEST(HfFolderTest, ABitOfTheWeightsThatChangedIsFound) {
  for (const int64_t shard_bytes : {int64_t{30}, kMaxShardBytes}) {
    const std::string out = NewFolder() + "/final";
    Wish wish;
    wish.max_shard_bytes = shard_bytes;
    ASSERT_TRUE(FirstError(SaveTo(out, wish)).ok());
    EXPECT_EQ(CheckFinalFolder(out).value(), true);
    const std::string capstan = *ReadWholeFile(out + "/capstan.json");
    ASSERT_TRUE(WriteWholeFile(out + "/capstan.json", "{}").ok());
    EXPECT_EQ(CheckFinalFolder(out).value(), false);
    ASSERT_TRUE(WriteWholeFile(out + "/capstan.json", "{").ok());
    EXPECT_TRUE(absl::IsDataLoss(CheckFinalFolder(out).status()));
    ASSERT_TRUE(WriteWholeFile(out + "/capstan.json", capstan).ok());
    for (const std::string& name : Names(out)) {
      if (!absl::EndsWith(name, ".safetensors")) continue;
      const std::string path = absl::StrCat(out, "/", name);
      const std::string bytes = *ReadWholeFile(path);
      std::string flipped = bytes;
      flipped[flipped.size() - 5] ^= 64;
      ASSERT_TRUE(WriteWholeFile(path, flipped).ok());
      const absl::Status status = CheckFinalFolder(out).status();
      EXPECT_TRUE(absl::IsDataLoss(status)) << name;
      EXPECT_THAT(std::string(status.message()),
                  HasSubstr("is damaged: its weights are 4 tensors in F32"));
      ASSERT_TRUE(WriteWholeFile(path, bytes.substr(0, 20)).ok());
      EXPECT_TRUE(absl::IsDataLoss(CheckFinalFolder(out).status())) << name;
      ASSERT_TRUE(WriteWholeFile(path, bytes).ok());
    }
    EXPECT_EQ(CheckFinalFolder(out).value(), true);
  }
}

TEST(HfFolderTest, AFailureLeavesTheOlderFolder) {
  const std::string out = NewFolder();
  ASSERT_TRUE(FirstError(SaveTo(out + "/final", Wish())).ok());
  Wish wish;
  wish.base = 0.5f;
  wish.config_status = absl::ResourceExhaustedError("config.json: disk full");
  const auto statuses = SaveTo(out + "/final", wish, 3);
  EXPECT_EQ(statuses[0].message(), "config.json: disk full");
  EXPECT_THAT(std::string(statuses[2].message()),
              AllOf(HasSubstr("rank 0 could not write "), HasSubstr("/final")));
  EXPECT_TRUE(absl::IsUnavailable(statuses[2]));
  EXPECT_THAT(Names(out), ElementsAre("final"));
  ExpectWeights(out + "/final", c10::ScalarType::Float);
}

}  // namespace
}  // namespace capstan
