// SPDX-License-Identifier: Apache-2.0
#include "desk/convert/weight_source.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <thread>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/scratch_folder.h"
#include "desk/convert/torch_file_for_test.h"
#include "desk/convert/write_weights.h"
#include "plugins/sdk/lib/safetensors.h"

namespace capstan {
namespace {

using namespace torch_test;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;
using ::testing::UnorderedElementsAre;

class WeightSourceTest : public ::testing::Test {
 protected:
  // Writes FOLDER/NAME, making its folder, and returns its path.
  std::string Write(const std::string& name, const std::string& bytes) {
    const std::string path = absl::StrCat(folder_.path(), "/", name);
    EXPECT_TRUE(MakeFolder(path.substr(0, path.rfind('/'))).ok());
    std::ofstream(path, std::ios::binary) << bytes;
    return path;
  }
  WeightSource Open(const std::string& path, const std::string& key = "") {
    absl::StatusOr<WeightSource> source = OpenWeightSource(path, key);
    EXPECT_TRUE(source.ok()) << key << ": " << source.status();
    return source.ok() ? *std::move(source) : WeightSource();
  }
  std::string Error(const std::string& path, const std::string& key = "") {
    return std::string(OpenWeightSource(path, key).status().message());
  }

  const ScratchFolder folder_;
};

std::vector<float> Values(const TensorView& tensor) {
  std::vector<float> values(tensor.numel());
  tensor.CopyTo(reinterpret_cast<char*>(values.data()));
  return values;
}

std::vector<std::string> Names(const WeightSource& source) {
  std::vector<std::string> names;
  for (const NamedTensor& weight : source.weights) names.push_back(weight.name);
  return names;
}

// from, from + 1, ..
std::vector<float> Count(int count, float from = 0) {
  std::vector<float> values(count);
  std::iota(values.begin(), values.end(), from);
  return values;
}

const char kOne[] = "0";
const std::map<std::string, std::string> kStorages = {
    {kOne, Floats({1, 2, 3, 4})}};

TEST_F(WeightSourceTest, FindsTheDictOfWeights) {
  const std::string weights =
      Dict({{"module._orig_mod.a", Tensor(kOne, {2}, {1})},
            {"module.b", Tensor(kOne, {2}, {1}, 2)}});
  const std::string path = Write(
      "one.pt", Saved(Dict({{"epoch", Int(3)},
                            {"ema", Dict({{"a", Tensor(kOne, {4}, {1})}})},
                            {"model", weights}}),
                      kStorages));
  const WeightSource source = Open(path);
  EXPECT_THAT(Names(source), ElementsAre("a", "b"));
  EXPECT_THAT(Values(source.weights[1].tensor), ElementsAre(3, 4));
  EXPECT_THAT(source.left_out, ElementsAre(Pair("epoch", "not weights"),
                                           Pair("ema", HasSubstr("--key"))));
  EXPECT_THAT(source.notes, ElementsAre(HasSubstr("'model'"),
                                        HasSubstr("removed from 2 names")));
  const WeightSource other = Open(path, "ema");
  EXPECT_THAT(Values(other.weights[0].tensor), ElementsAre(1, 2, 3, 4));
  EXPECT_THAT(Error(path, "emma"), HasSubstr("its dicts are ema, model"));
}

TEST_F(WeightSourceTest, DoesNotGuess) {
  const std::string one = Dict({{"a", Tensor(kOne, {2}, {1})}});
  EXPECT_THAT(
      Error(Write("two.pt", Saved(Dict({{"encoder", one}, {"decoder", one}}),
                                  kStorages))),
      HasSubstr("several dicts of tensors"));
  EXPECT_THAT(Error(Write("none.pt", Saved(Dict({{"a", Int(1)}}), {}))),
              HasSubstr("has no dict of tensors"));
  EXPECT_THAT(Error(Write("twice.pt",
                          Saved(Dict({{"a", Tensor(kOne, {2}, {1})},
                                      {"_orig_mod.a", Tensor(kOne, {2}, {1})}}),
                                kStorages))),
              HasSubstr("two of its tensors are 'a'"));
  EXPECT_THAT(Error(folder_.path()), HasSubstr("pytorch_model.bin"));
}

TEST_F(WeightSourceTest, LooksOnceAtADictThatIsThereOften) {
  constexpr int kMany = 200'000;
  // A dict without tensors, at as many keys as it has, and the weights.
  std::string inner = "}(", root = "}(";
  for (int i = 0; i < kMany; ++i) {
    absl::StrAppend(&inner, Text(absl::StrCat(i)), "N");
  }
  for (int i = 0; i < kMany; ++i) {
    absl::StrAppend(&root, Text(absl::StrCat(i)),
                    i == 0 ? inner + "uq\1" : "h\1");
  }
  absl::StrAppend(&root, Text("weights"), Dict({{"a", Tensor(kOne, {2}, {1})}}),
                  "u");
  const WeightSource source = Open(Write("often.pt", Saved(root, kStorages)));
  EXPECT_THAT(Names(source), ElementsAre("a"));
  EXPECT_EQ(source.left_out.size(), kMany);
}

TEST_F(WeightSourceTest, SaysWhyNothingCanBeConverted) {
  EXPECT_THAT(
      Error(Write("same.pt",
                  Saved(Dict({{"a", Tensor(kOne, {8}, {0})}}), kStorages))),
      AllOf(HasSubstr("has no tensors"), HasSubstr("; a: "),
            HasSubstr("contiguous()")));
}

TEST_F(WeightSourceTest, ReadsShards) {
  Write("a.bin", Saved(Dict({{"a", Tensor(kOne, {2}, {1})}}), kStorages));
  Write("b.bin", Saved(Dict({{"b", Tensor(kOne, {2}, {1}, 1)}}), kStorages));
  const std::string index =
      Write("pytorch_model.bin.index.json",
            R"({"weight_map": {"a": "a.bin", "b": "b.bin"}})");
  const WeightSource source = Open(folder_.path());
  EXPECT_THAT(Names(source), ElementsAre("a", "b"));
  Write("pytorch_model.bin.index.json",
        R"({"weight_map": {"a": "a.bin", "c": "b.bin"}})");
  EXPECT_THAT(Error(index), HasSubstr("no file has 'c'"));
  Write("pytorch_model.bin.index.json", R"({"weight_map": {"a": "../a.bin"}})");
  EXPECT_THAT(Error(index), HasSubstr("must name files beside it"));
}

// Of two ranks, with a [2, 3] of 0.., b [5] of 10.. and c [1] of 20, b in a
// group of its own. Moments are 100 and 200 more.
class ZeroTest : public WeightSourceTest {
 protected:
  void WriteModel(const std::string& file) {
    const std::string buffers =
        Saved(Dict({{"module", Dict({{"rope", Tensor(kOne, {2}, {1})}})},
                    {"buffer_names", List({Text("rope")})},
                    {"param_shapes",
                     List({Dict({{"a", Size({2, 3})}, {"c", Size({1})}}),
                           Dict({{"b", Size({5})}})})},
                    {"shared_params", Dict({{"head", Text("a")}})},
                    {"global_steps", Int(9)}}),
              kStorages);
    Write("run/global_step9/" + file, buffers);
  }

  // `flats`: by group.
  void WriteRank(int stage, int rank,
                 const std::vector<std::vector<float>>& flats, int step = 7,
                 const std::string& prefix = "") {
    std::vector<std::string> weights, moments;
    std::map<std::string, std::string> storages;
    std::string groups = "}(";
    for (size_t g = 0; g < flats.size(); ++g) {
      const auto length = static_cast<int64_t>(flats[g].size());
      const auto add = [&](const char* kind, float more) {
        std::vector<float> values = flats[g];
        for (float& value : values) value += more;
        const std::string key = absl::StrCat(kind, g);
        storages[key] = Floats(values);
        return Tensor(key, {length}, {1});
      };
      weights.push_back(add("w", 0));
      const std::string m = add("m", 100), v = add("v", 200);
      absl::StrAppend(
          &groups, Int(static_cast<int64_t>(g)),
          Dict({{"step", Int(step)}, {"exp_avg", m}, {"exp_avg_sq", v}}));
    }
    groups += "u";
    const std::string state = Dict({{"state", groups}});
    const std::string scaler =
        Object(Global("deepspeed.runtime.fp16.loss_scaler", "LossScaler"),
               {{"cur_scale", Int(1)}});
    Write(absl::StrCat("run/global_step9/", prefix, "zero_pp_rank_", rank,
                       "_mp_rank_00_optim_states.pt"),
          Saved(Dict({{"optimizer_state_dict",
                       Dict({{"loss_scaler", scaler},
                             {"zero_stage",
                              Call(Global("deepspeed.runtime.zero.config",
                                          "ZeroStageEnum"),
                                   {Int(stage)})},
                             {"partition_count", Int(2)},
                             {stage == 3 ? "fp32_flat_groups"
                                         : "single_partition_of_fp32_groups",
                              List(weights)},
                             {stage == 3 ? "optimizer_state_dict"
                                         : "base_optimizer_state",
                              state}})}}),
                storages));
  }

  void Check(const std::string& path) {
    const WeightSource source = Open(path);
    std::map<std::string, std::vector<float>> weights;
    for (const NamedTensor& weight : source.weights) {
      weights[weight.name] = Values(weight.tensor);
    }
    EXPECT_THAT(weights,
                ElementsAre(Pair("a", Count(6)), Pair("b", Count(5, 10)),
                            Pair("c", Count(1, 20)), Pair("head", Count(6)),
                            Pair("rope", Count(2, 1))));
    EXPECT_THAT(Values(source.moments.at("exp_avg").at("b")), Count(5, 110));
    EXPECT_THAT(Values(source.moments.at("exp_avg_sq").at("a")), Count(6, 200));
    EXPECT_EQ(source.updates, 7);
  }
};

TEST_F(ZeroTest, Stage2PutsRanksTogether) {
  WriteModel("mp_rank_00_model_states.pt");
  WriteRank(2, 0, {{0, 1, 2, 3}, {10, 11, 12}});
  Write("run/latest", "global_step9");
  EXPECT_THAT(Error(folder_.path() + "/run"), HasSubstr("of 1"));
  WriteRank(2, 1, {{4, 5, 20, 0}, {13, 14, 0}});
  Check(folder_.path() + "/run");
  Check(folder_.path() + "/run/global_step9");
  EXPECT_THAT(Error(folder_.path() + "/run", "module"),
              HasSubstr("leave --key out"));
  // Of another run: too long, and too short.
  WriteRank(2, 1, {std::vector<float>(40), {13, 14, 0}});
  EXPECT_THAT(Error(folder_.path() + "/run"), HasSubstr("aren't of one run"));
  WriteRank(2, 1, {{4}, {13, 14, 0}});
  EXPECT_THAT(Error(folder_.path() + "/run"), HasSubstr("end within 'a'"));
}

TEST_F(ZeroTest, RanksAreOfOneCheckpoint) {
  WriteModel("mp_rank_00_model_states.pt");
  const std::vector<std::vector<float>> first = {{0, 1, 2, 3}, {10, 11, 12}};
  const std::vector<std::vector<float>> second = {{4, 5, 20, 0}, {13, 14, 0}};
  const std::string folder = folder_.path() + "/run/global_step9";
  WriteRank(2, 0, first);
  WriteRank(2, 1, second, /*step=*/5);
  EXPECT_THAT(Error(folder), HasSubstr("rank 1's file is of step 5"));
  WriteRank(1, 1, second);
  EXPECT_THAT(Error(folder), HasSubstr("of ZeRO stage 1, rank 0's of 2"));
  WriteRank(2, 1, second);
  EXPECT_EQ(Error(folder), "");
  WriteRank(2, 1, second, 7, "bf16_");
  EXPECT_THAT(Error(folder), HasSubstr("two files of the rank of"));
}

TEST_F(ZeroTest, Stage3PutsPartsOfEachParameterTogether) {
  WriteModel("zero_pp_rank_0_mp_rank_00_model_states.pt");
  WriteRank(3, 0, {{0, 1, 2, 20}, {10, 11, 12}});
  WriteRank(3, 1, {{3, 4, 5, 0}, {13, 14, 0}});
  Check(folder_.path() + "/run/global_step9");
  WriteRank(3, 1, {{3, 4}, {}});
  EXPECT_THAT(Error(folder_.path() + "/run/global_step9"),
              HasSubstr("end within 'a'"));
}

// w [2, 6] of 0.., whose columns are on two ranks, and its moment, on one.
class DistributedTest : public WeightSourceTest {
 protected:
  static constexpr char kModule[] = "torch.distributed.checkpoint.metadata";

  std::string Class(const std::string& name) { return Global(kModule, name); }
  // Chunks of all rows: the first column and the number of columns of each.
  std::string Tensors(const std::vector<std::pair<int, int>>& columns) {
    std::vector<std::string> chunks;
    for (const auto& [first, count] : columns) {
      chunks.push_back(
          Object(Class("ChunkStorageMetadata"),
                 {{"offsets", Size({0, first})}, {"sizes", Size({2, count})}}));
    }
    return Object(Class("TensorStorageMetadata"),
                  {{"size", Size({2, 6})}, {"chunks", List(chunks)}});
  }
  std::string Place(const std::string& name, const std::vector<int64_t>& offset,
                    const std::string& file, size_t at, size_t length) {
    return Object(Class("MetadataIndex"),
                  {{"fqn", Text(name)}, {"offset", Size(offset)}}) +
           Object(Global("torch.distributed.checkpoint.filesystem",
                         "_StorageInfo"),
                  {{"relative_path", Text(file)},
                   {"offset", Int(static_cast<int64_t>(at))},
                   {"length", Int(static_cast<int64_t>(length))}});
  }
  // `keys` lead to the weight in the dict that was saved; `second` is the first
  // column of the second chunk.
  void WriteMetadata(const std::string& places,
                     const std::vector<std::string>& keys = {"model", "w"},
                     int second = 4) {
    const std::string weight = absl::StrJoin(keys, "."),
                      moment = "optim.state.w.exp_avg";
    std::vector<std::string> texts;
    for (const std::string& key : keys) texts.push_back(Text(key));
    Write(
        "dcp/.metadata",
        Pickled(Object(
            Class("Metadata"),
            {{"state_dict_metadata",
              Dict({{weight, Tensors({{0, 4}, {second, 2}})},
                    {moment, Tensors({{0, 6}})},
                    {"optim.lr", Object(Class("BytesStorageMetadata"), {})}})},
             {"planner_data", Dict({{weight, Tuple(texts)}})},
             {"storage_data", "}(" + places + "u"}})));
  }
};

TEST_F(DistributedTest, PutsChunksTogether) {
  const std::string first = Saved(Tensor("0", {2, 4}, {4, 1}),
                                  {{"0", Floats({0, 1, 2, 3, 6, 7, 8, 9})}});
  const std::string moment =
      Saved(Tensor("0", {2, 6}, {1, 2}), {{"0", Floats(Count(12))}});
  const std::string second =
      Saved(Tensor("0", {2, 2}, {2, 1}), {{"0", Floats({4, 5, 10, 11})}});
  Write("dcp/__0_0.distcp", first + moment);
  Write("dcp/__1_0.distcp", second);
  const std::string others =
      Place("model.w", {0, 0}, "__0_0.distcp", 0, first.size()) +
      Place("optim.state.w.exp_avg", {0, 0}, "__0_0.distcp", first.size(),
            moment.size());
  WriteMetadata(others +
                Place("model.w", {0, 4}, "__1_0.distcp", 0, second.size()));
  const WeightSource source = Open(folder_.path() + "/dcp");
  EXPECT_THAT(Names(source), ElementsAre("w"));
  EXPECT_THAT(Values(source.weights[0].tensor), Count(12));
  EXPECT_THAT(Values(source.moments.at("exp_avg").at("w")),
              ElementsAre(0, 2, 4, 6, 8, 10, 1, 3, 5, 7, 9, 11));
  EXPECT_THAT(source.left_out, ElementsAre(Pair("optim.lr", "not a tensor")));
  const auto error_with = [&](const std::string& place) {
    WriteMetadata(others + place);
    return Error(folder_.path() + "/dcp");
  };
  EXPECT_THAT(error_with(""), HasSubstr("in no file"));
  EXPECT_THAT(
      error_with(Place("model.w", {0, 4}, "__1_0.distcp", 8, second.size())),
      HasSubstr("beyond the end"));
  EXPECT_THAT(error_with(Place("model.w", {0, 4}, "../x", 0, 1)),
              HasSubstr("isn't a file of the folder"));
  EXPECT_THAT(
      error_with(Place("model.w", {0, 4}, "__0_0.distcp", 0, first.size())),
      HasSubstr("chunk of shape [2, 4]"));
  // As many elements as the tensor has, but not all of its.
  WriteMetadata(
      others + Place("model.w", {0, 3}, "__1_0.distcp", 0, second.size()),
      {"model", "w"}, /*second=*/3);
  EXPECT_THAT(Error(folder_.path() + "/dcp"), HasSubstr("overlap"));
}

// As an application's state (Stateful, "app") that has the model's.
TEST_F(DistributedTest, KeysLeadToTheWeights) {
  std::string places;
  for (const auto& [name, from, to] :
       {std::tuple("app.model.w", 0, 4), std::tuple("app.model.w", 4, 6),
        std::tuple("optim.state.w.exp_avg", 0, 6)}) {
    const int64_t columns = to - from;
    const std::string file = absl::StrCat(name, from, ".distcp"),
                      chunk = Saved(Tensor("0", {2, columns}, {columns, 1}),
                                    {{"0", Floats(Count(12))}});
    Write("dcp/" + file, chunk);
    places += Place(name, {0, from}, file, 0, chunk.size());
  }
  WriteMetadata(places, {"app", "model", "w"});
  const std::string folder = folder_.path() + "/dcp";
  for (const auto& [key, weight] :
       {std::pair("app.model", "w"), std::pair("app", "model.w"),
        std::pair("", "model.w")}) {
    const WeightSource source = Open(folder, key);
    EXPECT_THAT(Names(source), ElementsAre(weight));
  }
  EXPECT_THAT(Error(folder, "app.mod"), HasSubstr("has no tensors"));
}

TEST_F(WeightSourceTest, WritesAFolderOnce) {
  const std::string path =
      Write("in/pytorch_model.bin",
            Saved(Dict({{"w", Tensor(kOne, {2, 2}, {1, 2})},
                        {"tied", Tensor(kOne, {2, 2}, {1, 2})},
                        {"none", Tensor(kOne, {0, 3}, {3, 1})}}),
                  kStorages));
  Write("in/config.json", "{}");
  Write("in/tokenizer.json", "{}");
  const WeightSource source = Open(folder_.path() + "/in");
  const std::string output = folder_.path() + "/out";
  ASSERT_TRUE(WriteWeights(source, output).ok());
  EXPECT_TRUE(PathExists(output + "/config.json"));
  EXPECT_TRUE(PathExists(output + "/tokenizer.json"));
  EXPECT_FALSE(PathExists(output + "/pytorch_model.bin"));
  const auto reader = SafetensorsReader::Open(output);
  ASSERT_TRUE(reader.ok()) << reader.status();
  EXPECT_EQ((*reader)->tensors().size(), 3);
  float values[4] = {};
  ASSERT_TRUE((*reader)->ReadFloats("tied", 0, 4, values).ok());
  EXPECT_THAT(values, ElementsAre(1, 3, 2, 4));
  EXPECT_TRUE(absl::IsAlreadyExists(WriteWeights(source, output).status()));

  const std::string file = folder_.path() + "/out.safetensors";
  ASSERT_TRUE(WriteWeights(source, file).ok());
  EXPECT_TRUE(SafetensorsReader::Open(file).ok());
  EXPECT_TRUE(absl::IsAlreadyExists(WriteWeights(source, file).status()));
  const std::string link = folder_.path() + "/link";
  std::filesystem::create_symlink(folder_.path() + "/nothing", link);
  EXPECT_TRUE(absl::IsAlreadyExists(WriteWeights(source, link).status()));
  // Nothing is left of what can't be written.
  const std::string below_file = file + "/x.safetensors";
  EXPECT_FALSE(WriteWeights(source, below_file).ok());
  // What a config would have named finds this command.
  EXPECT_THAT(std::string(SafetensorsReader::Open(path).status().message()),
              HasSubstr("trainer convert "));
  EXPECT_THAT(
      std::string(
          SafetensorsReader::Open(folder_.path() + "/in").status().message()),
      HasSubstr("trainer convert "));
}

// The names of a folder's files, hidden ones, too.
std::vector<std::string> FilesIn(const std::string& folder) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    names.push_back(entry.path().filename().string());
  }
  return names;
}

TEST_F(WeightSourceTest, WritersOfOneOutputLeaveEachOtherAlone) {
  const std::string path =
      Write("in/a.pt", Saved(Dict({{"a", Tensor(kOne, {4}, {1})}}), kStorages));
  const WeightSource source = Open(path);
  // Of names that a program would choose for itself, the user's.
  Write("out/.model.tmp/mine", "");
  Write("out/.model.old/mine", "");
  Write("out/.model.safetensors.tmp/mine", "");
  for (const char* name : {"/out/model", "/out/model.safetensors"}) {
    const std::string output = folder_.path() + name;
    std::atomic<int> written{0};
    std::vector<std::thread> writers;
    for (int i = 0; i < 4; ++i) {
      writers.emplace_back(
          [&] { written += WriteWeights(source, output).ok(); });
    }
    for (std::thread& writer : writers) writer.join();
    EXPECT_EQ(written, 1) << name;
    EXPECT_TRUE(SafetensorsReader::Open(output).ok()) << name;
  }
  EXPECT_THAT(FilesIn(folder_.path() + "/out"),
              UnorderedElementsAre("model", "model.safetensors", ".model.tmp",
                                   ".model.old", ".model.safetensors.tmp"));
  for (const char* name :
       {"/.model.tmp", "/.model.old", "/.model.safetensors.tmp"}) {
    EXPECT_THAT(FilesIn(folder_.path() + "/out" + name), ElementsAre("mine"));
  }
}

}  // namespace
}  // namespace capstan
