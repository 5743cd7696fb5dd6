// SPDX-License-Identifier: Apache-2.0
//
// Checkpoints that can't be resumed from: a run of 3 ranks of FSDP meets what
// 2 ranks of ZeRO-2 have left.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <functional>
#include <ostream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "tests/testing/run_folder.h"
#include "tests/testing/run_text.h"

namespace capstan {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr char kStep[] = "/checkpoints/step-00000002";
constexpr char kManifest[] = "/manifest.json";
constexpr char kShard[] = "/state-00001-of-00002.safetensors";
// At once; on a busy machine, too.
constexpr double kSeconds = 30.0;

RunText Saved() {
  return RunText().Strategy("zero2", 2).Batch(3, 6).Train("max_steps: 2");
}

RunText Resumed(const std::string& folder) {
  return RunText()
      .Strategy("fsdp", 3)
      .Batch(2, 6)
      .Train("max_steps: 3 resume: AUTO")
      .Output(folder);
}

// The folder of a run that saved after two steps; made once.
const std::string& SavedRun() {
  static const auto* folder = new std::string(MustTrain(Saved()));
  return *folder;
}

std::string CopyOfSavedRun() {
  const std::string copy = NewTestFolder("copy");
  fs::copy(SavedRun(), copy, fs::copy_options::recursive);
  return copy;
}

struct Fault {
  std::string name;
  // Damages a step's folder.
  std::function<void(const std::string& folder)> damage;
  std::vector<std::string> words;
};

void PrintTo(const Fault& fault, std::ostream* out) { *out << fault.name; }

// RFC 3720, appendix B.4, bit by bit.
uint32_t SlowCrc32c(const std::string& bytes) {
  uint32_t crc = ~uint32_t{0};
  for (const unsigned char byte : bytes) {
    crc ^= byte;
    for (int i = 0; i < 8; ++i) crc = crc >> 1 ^ (crc & 1) * 0x82f63b78u;
  }
  return ~crc;
}

// Edits the manifest as if the trainer had written it so.
std::function<void(const std::string&)> Manifest(
    const std::function<void(Json*)>& edit) {
  return [edit](const std::string& folder) {
    Json json = Json::parse(ReadText(folder + kManifest));
    edit(&json);
    json.erase("crc32c");
    json["crc32c"] = absl::StrFormat("%08x", SlowCrc32c(json.dump()));
    WriteText(folder + kManifest, json.dump(1));
  };
}

// The first range of the second file.
Json& FirstRange(Json* json) { return (*json)["files"][1]["ranges"][0]; }

std::vector<Fault> ShardFaults() {
  const std::string file = absl::StrCat(kStep, kShard);
  const std::string hint =
      absl::StrCat(kStep, " to resume from the checkpoint");
  return {
      {"Missing",
       [](const std::string& f) { fs::remove(f + kShard); },
       {file, "isn't there", hint}},
      {"Truncated",
       [](const std::string& f) {
         fs::resize_file(f + kShard, fs::file_size(f + kShard) - 100);
       },
       {file, "is damaged", " bytes, manifest.json says ", hint}},
      {"Empty",
       [](const std::string& f) { WriteText(f + kShard, ""); },
       {file, "it has 0 bytes", hint}},
      {"OtherBytes",
       [](const std::string& f) {
         std::string bytes = ReadText(f + kShard);
         bytes[bytes.size() / 2] ^= 1;
         WriteText(f + kShard, bytes);
       },
       {file, "CRC-32C", "of its tensor '", hint}},
      {"OfAnotherRun",
       [](const std::string& f) {
         const std::string other = MustTrain(Saved().Train("seed: 2"));
         fs::copy_file(absl::StrCat(other, kStep, kShard), f + kShard,
                       fs::copy_options::overwrite_existing);
       },
       {file, "CRC-32C", "of its tensor '", hint}},
      {"ATensorOfAnotherName",
       [](const std::string& f) {
         std::string bytes = ReadText(f + kShard);
         bytes.replace(bytes.find("master/"), 6, "pastor");
         WriteText(f + kShard, bytes);
       },
       {file, "it has no tensor 'master/", hint}},
      {"ATensorOfAnotherShape",
       [](const std::string& f) {
         const std::string key = "\"shape\":[";
         std::string bytes = ReadText(f + kShard);
         char& digit = bytes[bytes.find(key) + key.size()];
         digit = digit == '9' ? '8' : digit + 1;
         WriteText(f + kShard, bytes);
       },
       {file, "tensor 'master/", "data_offsets give it", hint}},
  };
}

std::vector<Fault> ManifestFaults() {
  const std::string file = absl::StrCat(kStep, kManifest);
  const std::string hint =
      absl::StrCat(kStep, " to resume from the checkpoint");
  return {
      {"Truncated",
       [](const std::string& f) {
         fs::resize_file(f + kManifest, fs::file_size(f + kManifest) / 2);
       },
       {file, "is damaged", hint}},
      {"OneDigit",
       [](const std::string& f) {
         std::string text = ReadText(f + kManifest);
         const std::string key = "\"samples\": ";
         ++text[text.find(key) + key.size()];
         WriteText(f + kManifest, text);
       },
       {file, "is damaged", "CRC-32C", hint}},
      {"OverlappingRanges",
       Manifest([](Json* json) {
         Json range = FirstRange(json);
         (*json)["files"][0]["ranges"].push_back(range);
       }),
       {file, "of master of '", "is stored twice, in state-00000-of-00002.",
        " and state-00001-of-00002.", hint}},
      {"MissingRange",
       Manifest([](Json* json) { (*json)["files"][1]["ranges"].erase(0); }),
       {file, "of master of '", "is missing", hint}},
      {"RangeOutsideItsParameter",
       Manifest([](Json* json) { FirstRange(json)["begin"] = 1 << 30; }),
       {file, "elements from element 1073741824 of '",
        "are not in that parameter", hint}},
      {"AnOlderTrainers",
       Manifest([](Json* json) { (*json)["format_version"] = 1; }),
       {file, "an older trainer", "another output_dir"}},
  };
}

class CheckpointFaultTest : public ::testing::TestWithParam<Fault> {};

TEST_P(CheckpointFaultTest, OneClearError) {
  const std::string folder = CopyOfSavedRun();
  GetParam().damage(folder + kStep);
  const auto before = Snapshot(folder);
  const TrainerResult result =
      RunTrainer({"--config=" + Resumed(folder).File()});
  ExpectOneError(result, GetParam().words);
  EXPECT_LT(result.seconds, kSeconds);
  EXPECT_TRUE(Snapshot(folder) == before);
}

std::string NameOf(const ::testing::TestParamInfo<Fault>& info) {
  return info.param.name;
}

INSTANTIATE_TEST_SUITE_P(Shard, CheckpointFaultTest,
                         ::testing::ValuesIn(ShardFaults()), NameOf);
INSTANTIATE_TEST_SUITE_P(Manifest, CheckpointFaultTest,
                         ::testing::ValuesIn(ManifestFaults()), NameOf);

TEST(OtherModelTest, IsRefused) {
  const std::string folder = CopyOfSavedRun();
  const auto before = Snapshot(folder);
  const std::string config = "--config=" + Resumed(folder).File();
  struct Other {
    std::string set;
    std::vector<std::string> words;
  };
  for (const Other& other :
       std::vector<Other>{{"model.tie_word_embeddings=false",
                           {"it has no parameter 'lm_head.weight'"}},
                          {"model.num_hidden_layers=1",
                           {"this run's has no parameter 'model.layers.1."}},
                          {"model.intermediate_size=96",
                           {"'model.layers.0.mlp.", "88", "96"}}}) {
    SCOPED_TRACE(other.set);
    std::vector<std::string> words = other.words;
    words.push_back(folder + kStep);
    words.push_back("resume with the ");
    ExpectOneError(RunTrainer({config, "--set", other.set}), words);
    EXPECT_TRUE(Snapshot(folder) == before);
  }
}

TEST(OtherOptimizerTest, IsRefused) {
  const std::string folder = CopyOfSavedRun();
  const auto before = Snapshot(folder);
  const RunText run = Resumed(folder).Set(
      "optimizer", "[plugin/capstan.sgd.Config] { learning_rate: 0.1 }");
  ExpectOneError(RunTrainer({"--config=" + run.File()}),
                 {folder + kStep, "exp_avg, exp_avg_sq", "resume with the "});
  EXPECT_TRUE(Snapshot(folder) == before);
}

// Under the strategy that saved it each rank needs its own file alone, and the
// other must not wait for ever.
TEST(LostShardTest, StopsTheRankThatHasItsOwn) {
  const std::string folder = CopyOfSavedRun();
  fs::remove(absl::StrCat(folder, kStep, "/state-00000-of-00002.safetensors"));
  const RunText run = Saved().Train("resume: AUTO max_steps: 3").Output(folder);
  const TrainerResult result = RunTrainer({"--config=" + run.File()});
  ExpectOneError(result, {"state-00000-of-00002", "isn't there"});
  EXPECT_LT(result.seconds, kSeconds);
}

// What isn't saved comes from the folder that the config names.
TEST(PretrainedFolderTest, MustStillBeThere) {
  const std::string model =
      CopyFolder(Runfile("tests/golden/testdata/llama"), "model");
  const RunText run =
      RunText::Golden()
          .Set("model", absl::StrCat("[plugin/capstan.llama.Config] { "
                                     "pretrained: \"",
                                     model, "\" }"))
          .Strategy("zero2", 2)
          .Batch(2, 4)
          .Train("max_steps: 1");
  const std::string folder = MustTrain(run);
  fs::rename(model, model + ".gone");
  const auto before = Snapshot(folder);
  const RunText again =
      RunText(run).Train("resume: AUTO max_steps: 2").Output(folder);
  ExpectOneError(RunTrainer({"--config=" + again.File()}),
                 {"run.pbtxt:", "model.pretrained", model});
  EXPECT_TRUE(Snapshot(folder) == before);
  fs::rename(model + ".gone", model);
  MustTrain(again);
}

}  // namespace
}  // namespace capstan
