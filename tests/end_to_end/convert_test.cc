// SPDX-License-Identifier: Apache-2.0
//
// Others' files, as a user converts them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "desk/convert/torch_file_for_test.h"
#include "tests/testing/run_folder.h"
#include "tests/testing/run_text.h"

namespace capstan {
namespace {

using ::testing::HasSubstr;
namespace torch = torch_test;

constexpr int kSteps = 6;
constexpr int kSavedStep = 3;

RunText RunOf(int steps) {
  return RunText().Train(absl::StrCat("max_steps: ", steps));
}

// A parameter in a checkpoint of ours: its state's bytes by kind.
struct Saved {
  std::vector<int64_t> shape;
  std::map<std::string, std::string> kinds;
};

// Of a run of one rank.
std::map<std::string, Saved> ReadCheckpoint(const std::string& output_dir) {
  const std::string folder =
      absl::StrCat(output_dir, "/checkpoints/step-0000000", kSavedStep, "/");
  std::map<std::string, Saved> parameters;
  const nlohmann::json manifest = ReadJson(folder + "manifest.json");
  for (const auto& parameter : manifest["parameters"]) {
    parameters[parameter["name"]].shape =
        parameter["shape"].get<std::vector<int64_t>>();
  }
  const std::string file = folder + "state-00000-of-00001.safetensors";
  const std::string bytes = ReadText(file);
  uint64_t header = 0;
  std::memcpy(&header, bytes.data(), sizeof(header));
  const nlohmann::json entries = SafetensorsHeader(file);
  for (const auto& [key, entry] : entries.items()) {
    const std::vector<std::string> parts = absl::StrSplit(key, '/');
    if (parts.size() != 3) continue;  // KIND/PARAMETER/BEGIN
    const size_t begin = entry["data_offsets"][0],
                 end = entry["data_offsets"][1];
    parameters[parts[1]].kinds[parts[0]] =
        bytes.substr(sizeof(header) + header + begin, end - begin);
  }
  return parameters;
}

// The same as a rank's file of DeepSpeed's ZeRO-2.
void WriteZero(const std::map<std::string, Saved>& parameters,
               const std::string& folder) {
  torch::Items shapes;
  std::map<std::string, std::string> flat;
  for (const auto& [name, saved] : parameters) {
    shapes.emplace_back(name, torch::Size(saved.shape));
    for (const auto& [kind, bytes] : saved.kinds) flat[kind] += bytes;
  }
  const auto vector = [&flat](const std::string& kind) {
    return torch::Tensor(
        kind, {static_cast<int64_t>(flat[kind].size() / sizeof(float))}, {1});
  };
  const std::string moments =
      torch::Dict({{"step", torch::Int(kSavedStep)},
                   {"exp_avg", vector("exp_avg")},
                   {"exp_avg_sq", vector("exp_avg_sq")}});
  const std::string optimizer = torch::Dict(
      {{"zero_stage", torch::Int(2)},
       {"partition_count", torch::Int(1)},
       {"single_partition_of_fp32_groups", torch::List({vector("master")})},
       {"base_optimizer_state", torch::List({moments})}});
  WriteText(
      folder + "/zero_pp_rank_0_mp_rank_00_optim_states.pt",
      torch::Saved(torch::Dict({{"optimizer_state_dict", optimizer}}), flat));
  WriteText(
      folder + "/mp_rank_00_model_states.pt",
      torch::Saved(
          torch::Dict({{"param_shapes", torch::List({torch::Dict(shapes)})}}),
          {}));
}

TEST(ConvertTest, ARunGoesOnBitForBitFromZero) {
  const std::string straight = MustTrain(RunOf(kSteps));
  const std::string zero = NewTestFolder("zero");
  WriteZero(ReadCheckpoint(MustTrain(RunOf(kSavedStep))), zero);

  const std::string output = NewTestFolder("converted") + "/run";
  const TrainerResult result =
      RunTrainer({"convert", zero, "--checkpoint", "--output=" + output,
                  "--config=" + RunOf(kSteps).File()});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("ZeRO-2 checkpoint of 1 rank"));
  EXPECT_THAT(result.out, HasSubstr("train.resume=AUTO"));

  MustTrain(RunOf(kSteps).Output(output).Train("resume: AUTO"));
  const std::vector<double> losses = ReadMetrics(straight).losses();
  EXPECT_EQ(ReadMetrics(output).losses(),
            std::vector<double>(losses.begin() + kSavedStep, losses.end()));
  EXPECT_TRUE(ReadText(output + "/final/model.safetensors") ==
              ReadText(straight + "/final/model.safetensors"));

  // What would overwrite a run is refused, and so are other models' weights.
  ExpectOneError(
      RunTrainer({"convert", zero, "--checkpoint", "--output=" + output,
                  "--config=" + RunOf(kSteps).File()}),
      {output, "is there already"});
  ExpectOneError(
      RunTrainer({"convert", zero, "--checkpoint", "--output=" + output + "2",
                  "--config=" + RunOf(kSteps).File(), "--set",
                  "model.num_hidden_layers=3"}),
      {"the input has no weight of", "name the config of the model"});
  EXPECT_FALSE(std::filesystem::exists(output + "2/checkpoints"));
}

TEST(ConvertTest, OfTwoIntoOneFolderOneWritesAndTheOtherLeavesItAlone) {
  const std::string zero = NewTestFolder("zero_twice");
  WriteZero(ReadCheckpoint(MustTrain(RunOf(kSavedStep))), zero);
  const std::string output = NewTestFolder("twice") + "/run";
  const std::vector<std::string> words = {"convert", zero, "--checkpoint",
                                          "--output=" + output,
                                          "--config=" + RunOf(kSteps).File()};
  TrainerProcess one(words), other(words);
  EXPECT_EQ(one.Wait().exit_code + other.Wait().exit_code, 1);
  MustTrain(RunOf(kSteps).Output(output).Train("resume: AUTO"));
}

TEST(ConvertTest, AHostileFileIsOneError) {
  const std::string folder = NewTestFolder("hostile");
  const std::string mark = folder + "/was_run";
  const std::string path =
      WriteText(folder + "/model.pt",
                torch::Saved(torch::Call(torch::Global("posix", "system"),
                                         {torch::Text("touch " + mark)}),
                             {}));
  ExpectOneError(RunTrainer({"convert", path, "--output=" + folder + "/out"}),
                 {path, "posix.system", "not run"});
  EXPECT_FALSE(std::filesystem::exists(mark));
  EXPECT_FALSE(std::filesystem::exists(folder + "/out"));
}

}  // namespace
}  // namespace capstan
