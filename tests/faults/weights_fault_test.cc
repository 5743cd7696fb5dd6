// SPDX-License-Identifier: Apache-2.0
//
// Model folders that are damaged, or made to do damage.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <functional>
#include <ostream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "tests/testing/run_folder.h"
#include "tests/testing/run_text.h"

namespace capstan {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr char kTensor[] = "model.layers.1.mlp.up_proj.weight";
constexpr char kNorm[] = "model.norm.weight";
// At once; on a busy machine, too.
constexpr double kSeconds = 30.0;

struct Fault {
  std::string name;
  // Damages a copy of the golden folder.
  std::function<void(const std::string& folder)> damage;
  std::vector<std::string> words;
};

void PrintTo(const Fault& fault, std::ostream* out) { *out << fault.name; }

std::string Weights(const std::string& folder) {
  return folder + "/model.safetensors";
}

// Edits the JSON of the safetensors header.
std::function<void(const std::string&)> Header(
    const std::function<void(Json*)>& edit) {
  return [edit](const std::string& folder) {
    Json header = SafetensorsHeader(Weights(folder));
    edit(&header);
    ReplaceSafetensorsHeader(Weights(folder), header.dump());
  };
}

// Edits config.json.
std::function<void(const std::string&)> Config(
    const std::function<void(Json*)>& edit) {
  return [edit](const std::string& folder) {
    Json config = ReadJson(folder + "/config.json");
    edit(&config);
    WriteText(folder + "/config.json", config.dump());
  };
}

void PatchLength(const std::string& folder, uint64_t length) {
  std::string bytes = ReadText(Weights(folder));
  bytes.replace(0, 8, reinterpret_cast<const char*>(&length), 8);
  WriteText(Weights(folder), bytes);
}

// Bytes that are no safetensors file.
std::vector<Fault> FileFaults() {
  const std::string file = "model.safetensors";
  return {
      {"Truncated",
       [](const std::string& f) {
         fs::resize_file(Weights(f), fs::file_size(Weights(f)) - 100);
       },
       {file, "tensor '", "truncated"}},
      {"TruncatedInTheHeader",
       [](const std::string& f) { fs::resize_file(Weights(f), 300); },
       {file, "header", "truncated"}},
      {"Empty",
       [](const std::string& f) { fs::resize_file(Weights(f), 0); },
       {file, "too short"}},
      {"HeaderLargerThanTheFile",
       [](const std::string& f) { PatchLength(f, 1 << 30); },
       {file, "header", "1073741824"}},
      {"HeaderLengthOverflows",
       [](const std::string& f) { PatchLength(f, ~uint64_t{0} - 3); },
       {file, "header"}},
      {"NoJson",
       [](const std::string& f) {
         ReplaceSafetensorsHeader(Weights(f), "{\"a\": ");
       },
       {file, "header"}},
      {"DeepJson",
       [](const std::string& f) {
         ReplaceSafetensorsHeader(Weights(f), std::string(1 << 20, '['));
       },
       {file, "header"}},
  };
}

// The JSON is fine, what it says is not.
std::vector<Fault> HeaderFaults() {
  const std::string file = "model.safetensors";
  return {
      {"OffsetsBeyondTheFile",
       Header([](Json* h) { (*h)[kTensor]["data_offsets"][1] = 1 << 30; }),
       {file, kTensor}},
      {"OffsetsBackwards",
       Header([](Json* h) {
         (*h)[kTensor]["data_offsets"] = {4096, 0};
       }),
       {file, kTensor}},
      {"NegativeOffset",
       Header([](Json* h) { (*h)[kTensor]["data_offsets"][0] = -4; }),
       {file, kTensor, "-4"}},
      {"Overlap",
       Header([](Json* h) {
         (*h)[kTensor]["data_offsets"] =
             (*h)["model.layers.0.mlp.up_proj.weight"]["data_offsets"];
       }),
       {file, "tensor '", "overlaps"}},
      {"ShapeOverflows",
       Header([](Json* h) {
         (*h)[kTensor]["shape"] = {int64_t{1} << 62, 8};
       }),
       {file, kTensor, "overflows"}},
      {"SizeAndDtypeDisagree",
       Header([](Json* h) { (*h)[kTensor]["dtype"] = "F64"; }),
       {file, kTensor, "F64"}},
      {"UnknownDtype",
       Header([](Json* h) { (*h)[kTensor]["dtype"] = "F33"; }),
       {file, kTensor, "F33"}},
      {"IntegerWeights",
       Header([](Json* h) { (*h)[kTensor]["dtype"] = "I32"; }),
       {file, kTensor}},
      {"DuplicateTensor",
       [](const std::string& f) {
         const std::string header = SafetensorsHeader(Weights(f)).dump();
         const std::string entry = SafetensorsHeader(Weights(f))[kNorm].dump();
         ReplaceSafetensorsHeader(
             Weights(f),
             absl::StrCat("{\"", kNorm, "\":", entry, ",", header.substr(1)));
       },
       {file, kNorm, "twice"}},
      {"MissingTensor",
       // Renamed, so that no hole is left in the data.
       Header([](Json* h) {
         (*h)["other"] = (*h)[kTensor];
         h->erase(kTensor);
       }),
       {kTensor}},
      {"TensorOfAnotherShape",
       Header([](Json* h) {
         (*h)[kTensor]["shape"] = {64, 176};
       }),
       {file, kTensor, "[64, 176]", "[176, 64]", "config.json"}},
  };
}

// config.json is wrong, or the weights are of another model.
std::vector<Fault> ConfigFaults() {
  const std::string file = "config.json";
  return {
      {"OtherLayerCount",
       Config([](Json* c) { (*c)["num_hidden_layers"] = 2; }),
       {"model.layers.2.", file}},
      {"OtherSize",
       Config([](Json* c) { (*c)["intermediate_size"] = 180; }),
       {"mlp.", "176", "180", file}},
      {"OtherTying",
       Config([](Json* c) { (*c)["tie_word_embeddings"] = false; }),
       {"lm_head.weight"}},
      {"NotDivisible",
       Config([](Json* c) {
         c->erase("head_dim");
         (*c)["hidden_size"] = 66;
       }),
       {file, "hidden_size", "66", "num_attention_heads"}},
      {"WrongType",
       Config([](Json* c) { (*c)["hidden_size"] = "64"; }),
       {file, "hidden_size", "integer"}},
      {"AnotherArchitecture",
       Config([](Json* c) { (*c)["model_type"] = "gpt2"; }),
       {file, "model_type", "gpt2"}},
      {"NotJson",
       [](const std::string& f) { WriteText(f + "/config.json", "{"); },
       {file}},
      {"NoConfig",
       [](const std::string& f) { fs::remove(f + "/config.json"); },
       {file}},
      {"NoWeights",
       [](const std::string& f) { fs::remove(Weights(f)); },
       {"model.safetensors"}},
      {"HostileIndex",
       [](const std::string& f) {
         fs::rename(Weights(f), f + "/outside.safetensors");
         WriteText(f + "/model.safetensors.index.json",
                   absl::StrCat("{\"weight_map\": {\"", kNorm,
                                "\": \"../outside.safetensors\"}}"));
       },
       {"model.safetensors.index.json", kNorm, "plain file name"}},
  };
}

class WeightsFaultTest : public ::testing::TestWithParam<Fault> {};

TEST_P(WeightsFaultTest, OneClearError) {
  const std::string folder =
      CopyFolder(Runfile("tests/golden/testdata/llama"), "model");
  GetParam().damage(folder);
  const auto before = Snapshot(folder);
  std::vector<std::string> words = GetParam().words;
  words.push_back(folder);
  const RunText run =
      RunText::Golden()
          .Set("model", absl::StrCat("[plugin/capstan.llama.Config] { "
                                     "pretrained: \"",
                                     folder, "\" }"))
          .Ddp(2)
          .Batch(4, 8)
          .Output(NewTestFolder("run") + "/out");
  const TrainerResult result = RunTrainer({"--config=" + run.File()});
  ExpectOneError(result, words);
  EXPECT_THAT(result.err, ::testing::HasSubstr("run.pbtxt:"));
  EXPECT_LT(result.seconds, kSeconds);
  EXPECT_FALSE(fs::exists(run.output()));
  EXPECT_EQ(Snapshot(folder), before);
}

std::string NameOf(const ::testing::TestParamInfo<Fault>& info) {
  return info.param.name;
}

INSTANTIATE_TEST_SUITE_P(File, WeightsFaultTest,
                         ::testing::ValuesIn(FileFaults()), NameOf);
INSTANTIATE_TEST_SUITE_P(Header, WeightsFaultTest,
                         ::testing::ValuesIn(HeaderFaults()), NameOf);
INSTANTIATE_TEST_SUITE_P(ConfigJson, WeightsFaultTest,
                         ::testing::ValuesIn(ConfigFaults()), NameOf);

TEST(PretrainedFaultTest, SizesBesideIt) {
  const RunText run = RunText::Golden().Set(
      "model", absl::StrCat("[plugin/capstan.llama.Config] { pretrained: \"",
                            Runfile("tests/golden/testdata/llama"),
                            "\" hidden_size: 64 }"));
  ExpectOneError(RunTrainer({"--config=" + run.File()}),
                 {"run.pbtxt:", "model.pretrained", "beside sizes"});
}

TEST(GenerateFaultTest, TruncatedWeights) {
  const std::string folder =
      CopyFolder(Runfile("tests/golden/testdata/llama"), "model");
  fs::resize_file(Weights(folder), fs::file_size(Weights(folder)) - 100);
  ExpectOneError(
      RunTrainer({"generate", "--model=" + folder, "--prompt_ids=1"}),
      {Weights(folder), "tensor '", "truncated"});
}

// A model's name on the Hub in place of a folder.
TEST(HubNameTest, SaysHowToDownload) {
  const std::string config = "--config=" + RunText().File();
  const TrainerResult named =
      RunTrainer({config, "--set", "model=", "--set", "model=capstan.llama",
                  "--set", "model.pretrained=HuggingFaceTB/SmolLM2-135M"});
  ExpectOneError(named, {"model.pretrained",
                         "hf download HuggingFaceTB/SmolLM2-135M --local-dir "
                         "SmolLM2-135M",
                         "--set model.pretrained=SmolLM2-135M"});
  const TrainerResult adapter =
      RunTrainer({config, "--set", "adapter.lora.pretrained=OWNER/ADAPTER"});
  ExpectOneError(adapter, {"adapter.lora.pretrained",
                           "hf download OWNER/ADAPTER --local-dir ADAPTER"});
  for (const char* path : {"/no/model", "../no/model", "model"}) {
    const TrainerResult missing =
        RunTrainer({config, "--set", "model=capstan.llada", "--set",
                    absl::StrCat("model.pretrained=", path)});
    ExpectOneError(missing, {"model.pretrained"});
    EXPECT_THAT(missing.err, ::testing::Not(::testing::HasSubstr("hf ")));
  }
}

}  // namespace
}  // namespace capstan
