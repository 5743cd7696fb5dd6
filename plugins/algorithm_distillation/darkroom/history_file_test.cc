// SPDX-License-Identifier: Apache-2.0
#include "plugins/algorithm_distillation/darkroom/history_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <hdf5/serial/hdf5.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <functional>
#include <numeric>

#include "plugins/algorithm_distillation/darkroom.h"

namespace capstan::darkroom {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

const Darkroom kRooms(Variant::kGoals, {});
const EnvironmentSpec kSpec = kRooms.spec();
// Written by h5py: 81 tasks, 160 steps of 3 streams with random actions.
constexpr char kGolden[] =
    "plugins/algorithm_distillation/darkroom/testdata/history_small.hdf5";

// Unlike any of the same shape.
History Example(int64_t steps, int64_t streams, int salt) {
  History h;
  h.steps = steps;
  h.streams = streams;
  const auto values = [&](int64_t each, int below) {
    std::vector<uint8_t> v(steps * streams * each);
    for (size_t i = 0; i < v.size(); ++i) v[i] = (i * 7 + i / 5 + salt) % below;
    return v;
  };
  h.states = values(2, 9);
  h.next_states = values(2, 8);
  h.actions = values(1, 5);
  h.rewards = values(1, 2);
  h.dones = values(1, 2);
  h.compress_markers = values(1, 3);
  return h;
}

class HistoryFileTest : public testing::Test {
 protected:
  HistoryFileTest() {
    path_ = fs::path(testing::TempDir()) /
            testing::UnitTest::GetInstance()->current_test_info()->name();
    fs::remove(path_);
  }

  // A file with one group, "0", modified by `change`.
  void Make(const std::function<void(hid_t)>& change) {
    auto writer = HistoryWriter::Create(path_);
    ASSERT_TRUE(writer.ok()) << writer.status();
    ASSERT_TRUE((*writer)->Write(0, Example(40, 3, 0)).ok());
    ASSERT_TRUE((*writer)->Commit().ok());
    const hid_t file = H5Fopen(path_.c_str(), H5F_ACC_RDWR, H5P_DEFAULT);
    change(file);
    H5Fclose(file);
  }

  // Replaces a dataset by one full of `value`.
  static void Replace(hid_t file, const char* name, hid_t type,
                      const std::vector<hsize_t>& sizes, double value = 0) {
    H5Ldelete(file, name, H5P_DEFAULT);
    const hid_t space = H5Screate_simple(sizes.size(), sizes.data(), nullptr);
    const hid_t set = H5Dcreate2(file, name, type, space, H5P_DEFAULT,
                                 H5P_DEFAULT, H5P_DEFAULT);
    hsize_t count = 1;
    for (const hsize_t size : sizes) count *= size;
    const std::vector<double> values(count, value);
    H5Dwrite(set, H5T_NATIVE_DOUBLE, H5S_ALL, H5S_ALL, H5P_DEFAULT,
             values.data());
    H5Dclose(set);
    H5Sclose(space);
  }

  absl::Status OpenAndRead(int task = 0, int64_t steps = -1,
                           int64_t streams = -1) {
    auto reader = HistoryReader::Open(path_);
    if (!reader.ok()) return reader.status();
    return (*reader)->Read(task, kSpec, steps, streams).status();
  }

  // Expects that reading fails with all of these words and the file's name, and
  // that HDF5 prints nothing.
  void ExpectRefused(const std::vector<std::string>& words) {
    testing::internal::CaptureStderr();
    const absl::Status status = OpenAndRead();
    EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    const std::string message(status.message());
    EXPECT_THAT(message, HasSubstr(path_));
    for (const std::string& word : words) {
      EXPECT_THAT(message, HasSubstr(word));
    }
    EXPECT_EQ(message.find('\n'), std::string::npos);
  }

  std::string path_;
};

TEST_F(HistoryFileTest, ReadsH5pysFiles) {
  auto reader = HistoryReader::Open(kGolden);
  ASSERT_TRUE(reader.ok()) << reader.status();
  std::vector<int> all(81);
  std::iota(all.begin(), all.end(), 0);
  EXPECT_EQ((*reader)->tasks(), all);
  EXPECT_TRUE((*reader)->CheckTasks(kRooms).ok());
  EXPECT_FALSE((*reader)->origin().has_value());
  for (const int task : all) {
    auto history = (*reader)->Read(task, kSpec);
    ASSERT_TRUE(history.ok()) << history.status();
    ASSERT_EQ(history->steps, 160);
    ASSERT_EQ(history->streams, 3);
    for (int64_t i = 0; i < 160 * 3; ++i) {
      const int64_t t = i / 3;
      ASSERT_EQ(history->dones[i], t % 20 == 19);
      ASSERT_EQ(history->compress_markers[i], t % 80 == 0    ? 1
                                              : t % 80 == 79 ? 2
                                                             : 0);
    }
  }
}

TEST_F(HistoryFileTest, ReadsAPart) {
  auto reader = HistoryReader::Open(kGolden);
  ASSERT_TRUE(reader.ok()) << reader.status();
  const auto whole = (*reader)->Read(17, kSpec);
  const auto part = (*reader)->Read(17, kSpec, 90, 2);
  ASSERT_TRUE(whole.ok() && part.ok());
  ASSERT_EQ(part->steps, 90);
  ASSERT_EQ(part->streams, 2);
  for (int t = 0; t < 90; ++t) {
    for (int s = 0; s < 2; ++s) {
      ASSERT_EQ(part->actions[t * 2 + s], whole->actions[t * 3 + s]);
      for (int i = 0; i < 2; ++i) {
        ASSERT_EQ(part->states[(t * 2 + s) * 2 + i],
                  whole->states[(t * 3 + s) * 2 + i]);
      }
    }
  }
}

TEST_F(HistoryFileTest, ReadsWhatItWrote) {
  // More than one chunk.
  const History first = Example(3000, 100, 1);
  History second = Example(40, 1, 2);
  second.compress_markers.clear();
  auto writer = HistoryWriter::Create(path_);
  ASSERT_TRUE(writer.ok()) << writer.status();
  ASSERT_TRUE((*writer)->Write(12, first).ok());
  ASSERT_TRUE((*writer)->Write(3, second).ok());
  EXPECT_FALSE(fs::exists(path_));
  ASSERT_TRUE((*writer)->Commit().ok());

  auto reader = HistoryReader::Open(path_);
  ASSERT_TRUE(reader.ok()) << reader.status();
  EXPECT_THAT((*reader)->tasks(), ElementsAre(3, 12));
  for (const auto& [task, wanted] : {std::pair(12, first), {3, second}}) {
    const auto shape = (*reader)->Shape(task);
    ASSERT_TRUE(shape.ok()) << shape.status();
    EXPECT_EQ(shape->steps, wanted.steps);
    EXPECT_EQ(shape->streams, wanted.streams);
    const auto read = (*reader)->Read(task, kSpec);
    ASSERT_TRUE(read.ok()) << read.status();
    EXPECT_EQ(read->states, wanted.states);
    EXPECT_EQ(read->actions, wanted.actions);
    EXPECT_EQ(read->rewards, wanted.rewards);
    EXPECT_EQ(read->next_states, wanted.next_states);
    EXPECT_EQ(read->dones, wanted.dones);
    EXPECT_EQ(read->compress_markers, wanted.compress_markers);
  }
}

TEST_F(HistoryFileTest, NothingIsLeftOfAnIncompleteFile) {
  const fs::path folder = path_ + ".folder";
  fs::remove_all(folder);
  fs::create_directory(folder);
  {
    auto writer = HistoryWriter::Create(folder / "x.hdf5");
    ASSERT_TRUE(writer.ok()) << writer.status();
    ASSERT_TRUE((*writer)->Write(0, Example(40, 3, 0)).ok());
    EXPECT_FALSE(fs::is_empty(folder));
  }
  EXPECT_TRUE(fs::is_empty(folder));
}

TEST_F(HistoryFileTest, ATaskIsWrittenOnce) {
  auto writer = HistoryWriter::Create(path_);
  ASSERT_TRUE(writer.ok()) << writer.status();
  ASSERT_TRUE((*writer)->Write(7, Example(40, 3, 0)).ok());
  EXPECT_THAT((*writer)->Write(7, Example(40, 3, 0)).message(),
              HasSubstr("task 7"));
}

TEST_F(HistoryFileTest, NoFolderToWriteTo) {
  EXPECT_EQ(HistoryWriter::Create(path_ + "/no/x.hdf5").status().code(),
            absl::StatusCode::kNotFound);
}

TEST_F(HistoryFileTest, NoFile) {
  EXPECT_EQ(OpenAndRead().code(), absl::StatusCode::kNotFound);
}

TEST_F(HistoryFileTest, NotHdf5) {
  std::ofstream(path_) << "states,actions\n";
  ExpectRefused({"not an HDF5 file"});
}

TEST_F(HistoryFileTest, CutShort) {
  Make([](hid_t) {});
  fs::resize_file(path_, fs::file_size(path_) / 2);
  ExpectRefused({"cut short"});
}

TEST_F(HistoryFileTest, AnotherLayout) {
  Make([](hid_t file) { Replace(file, "mode", H5T_NATIVE_INT32, {3}); });
  ExpectRefused({"\"mode\"", "a group for each task"});
}

TEST_F(HistoryFileTest, Empty) {
  Make([](hid_t file) { H5Ldelete(file, "0", H5P_DEFAULT); });
  ExpectRefused({"has no group"});
}

TEST_F(HistoryFileTest, ADatasetForATask) {
  Make([](hid_t file) { Replace(file, "0", H5T_NATIVE_INT32, {3}); });
  ExpectRefused({": 0 must be a group"});
}

TEST_F(HistoryFileTest, TasksMissing) {
  Make([](hid_t) {});
  auto reader = HistoryReader::Open(path_);
  ASSERT_TRUE(reader.ok()) << reader.status();
  EXPECT_TRUE((*reader)->Shape(0).ok());
  EXPECT_THAT((*reader)->Shape(5).status().message(),
              AllOf(HasSubstr(path_), HasSubstr("no history of task 5")));
}

TEST_F(HistoryFileTest, ATaskThatIsNone) {
  Make([](hid_t file) {
    H5Lmove(file, "0", file, "81", H5P_DEFAULT, H5P_DEFAULT);
  });
  auto reader = HistoryReader::Open(path_);
  ASSERT_TRUE(reader.ok()) << reader.status();
  EXPECT_THAT((*reader)->CheckTasks(kRooms).message(),
              HasSubstr("has a group 81, but the environment has only the "
                        "tasks 0 to 80"));
  const Darkroom larger(Variant::kGoals, {10, 20});
  EXPECT_TRUE((*reader)->CheckTasks(larger).ok());
}

TEST_F(HistoryFileTest, ObservationsAndRewardsOfOtherSizes) {
  EnvironmentSpec spec;
  spec.actions = 3;
  spec.numbers = 3;
  spec.bounds[0] = 2;
  spec.bounds[1] = 3;
  spec.bounds[2] = 255;
  spec.least_reward = -7;
  spec.most_reward = 2;
  History wanted;
  wanted.steps = 2;
  wanted.streams = 1;
  wanted.numbers = 3;
  wanted.least_reward = -7;
  wanted.states = {1, 2, 254, 0, 0, 0};
  wanted.next_states = {0, 0, 0, 1, 1, 1};
  wanted.actions = {2, 0};
  wanted.rewards = {0, 9};  // -7 and 2
  wanted.dones = {0, 1};
  auto writer = HistoryWriter::Create(path_);
  ASSERT_TRUE(writer.ok()) << writer.status();
  ASSERT_TRUE((*writer)->Write(0, wanted).ok());
  ASSERT_TRUE((*writer)->Commit().ok());
  auto reader = HistoryReader::Open(path_);
  ASSERT_TRUE(reader.ok()) << reader.status();
  const auto read = (*reader)->Read(0, spec);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->states, wanted.states);
  EXPECT_EQ(read->next_states, wanted.next_states);
  EXPECT_EQ(read->rewards, wanted.rewards);
  spec.least_reward = -6;
  EXPECT_THAT((*reader)->Read(0, spec).status().message(),
              HasSubstr("0/rewards has -7 at [0, 0], but a reward is one of "
                        "the whole numbers -6 to 2"));
  spec.bounds[1] = 2;
  EXPECT_THAT((*reader)->Read(0, spec).status().message(),
              HasSubstr("0/states has 2 at [0, 0, 1], but a state has there "
                        "one of the whole numbers 0 to 1"));
  EXPECT_THAT((*reader)->Read(0, kSpec).status().message(),
              HasSubstr("observations of 3 numbers; the environment's have 2"));
}

TEST_F(HistoryFileTest, SaysWhatItIs) {
  const auto again = [&](const HistoryOrigin& origin) {
    auto writer = HistoryWriter::Create(path_);
    EXPECT_TRUE(writer.ok()) << writer.status();
    EXPECT_TRUE((*writer)->Describe(origin).ok());
    EXPECT_TRUE((*writer)->Write(0, Example(40, 3, 0)).ok());
    EXPECT_TRUE((*writer)->Commit().ok());
    auto reader = HistoryReader::Open(path_);
    EXPECT_TRUE(reader.ok()) << reader.status();
    return (*reader)->origin().value_or(HistoryOrigin());
  };
  HistoryOrigin origin;
  origin.environment = "darkroom";
  origin.permuted = true;
  origin.grid = 13;
  origin.horizon = 30;
  origin.seed = -5;
  HistoryOrigin got = again(origin);
  EXPECT_EQ(got.environment, "darkroom");
  EXPECT_TRUE(got.permuted);
  EXPECT_EQ(got.grid, 13);
  EXPECT_EQ(got.horizon, 30);
  EXPECT_EQ(got.seed, -5);
  origin.environment = "acme.maze.Config";
  origin.config = std::string("\x08\0\xff", 3);
  got = again(origin);
  EXPECT_EQ(got.environment, origin.environment);
  EXPECT_EQ(got.config, origin.config);
  EXPECT_EQ(got.horizon, 30);
}

// Replaces the attribute's text: of a fixed length, or as h5py writes it.
void Say(hid_t file, const std::string& text, bool fixed = true) {
  if (H5Aexists(file, "capstan") > 0) H5Adelete(file, "capstan");
  const hid_t type = H5Tcopy(H5T_C_S1);
  H5Tset_size(type, fixed ? text.size() : H5T_VARIABLE);
  const hid_t space = H5Screate(H5S_SCALAR);
  const hid_t attribute =
      H5Acreate2(file, "capstan", type, space, H5P_DEFAULT, H5P_DEFAULT);
  const char* const variable = text.c_str();
  H5Awrite(attribute, type,
           fixed ? static_cast<const void*>(variable) : &variable);
  H5Aclose(attribute);
  H5Sclose(space);
  H5Tclose(type);
}

TEST_F(HistoryFileTest, WhatItSaysMayComeFromH5py) {
  Make([](hid_t file) {
    Say(file,
        "{\"version\": 1, \"environment\": \"darkroom\", \"tasks\": "
        "\"goals\", \"grid\": 13, \"horizon\": 30}",
        /*fixed=*/false);
  });
  auto reader = HistoryReader::Open(path_);
  ASSERT_TRUE(reader.ok()) << reader.status();
  ASSERT_TRUE((*reader)->origin().has_value());
  EXPECT_EQ((*reader)->origin()->grid, 13);
}

TEST_F(HistoryFileTest, SaysWhatNobodyUnderstands) {
  const std::pair<const char*, const char*> kCases[] = {
      {"darkroom", "not a JSON object"},
      {"{\"version\": 2}", "\"version\" must be 1"},
      {"{\"version\": 1}", "\"environment\" must be a name"},
      {"{\"version\": 1, \"environment\": \"darkroom\"}", "\"tasks\" must"},
      {"{\"version\": 1, \"environment\": \"darkroom\", \"tasks\": "
       "\"goals\", \"grid\": 256}",
       "\"grid\" must be 1 to 255"},
      {"{\"version\": 1, \"environment\": \"a.b.Config\", \"config\": "
       "\"0g\"}",
       "\"config\" must be hexadecimal"},
      {"{\"version\": 1, \"environment\": \"a.b.Config\", \"config\": \"\","
       " \"horizon\": 0}",
       "\"horizon\" must be 1 or more"},
  };
  for (const auto& [text, words] : kCases) {
    Make([text = text](hid_t file) { Say(file, text); });
    ExpectRefused({"attribute \"capstan\"", words});
  }
}

TEST_F(HistoryFileTest, DatasetMissing) {
  Make([](hid_t file) { H5Ldelete(file, "0/rewards", H5P_DEFAULT); });
  ExpectRefused({"group 0 has no dataset \"rewards\""});
}

TEST_F(HistoryFileTest, OtherType) {
  Make([](hid_t file) {
    H5Ldelete(file, "0/actions", H5P_DEFAULT);
    const hsize_t sizes[] = {40, 3};
    const hid_t space = H5Screate_simple(2, sizes, nullptr);
    H5Dclose(H5Dcreate2(file, "0/actions", H5T_C_S1, space, H5P_DEFAULT,
                        H5P_DEFAULT, H5P_DEFAULT));
    H5Sclose(space);
  });
  ExpectRefused({"0/actions must be of numbers, and isn't"});
}

TEST_F(HistoryFileTest, OtherNumbersWillDo) {
  Make([](hid_t file) {
    Replace(file, "0/states", H5T_IEEE_F32BE, {40, 3, 2}, 8);
    Replace(file, "0/actions", H5T_STD_I64BE, {40, 3}, 4);
    Replace(file, "0/rewards", H5T_NATIVE_DOUBLE, {40, 3}, 1);
    Replace(file, "0/next_states", H5T_NATIVE_INT16, {40, 3, 2}, 3);
    Replace(file, "0/dones", H5T_NATIVE_UINT8, {40, 3}, 1);
    Replace(file, "0/compress_markers", H5T_NATIVE_FLOAT, {40, 3}, 2);
  });
  auto reader = HistoryReader::Open(path_);
  ASSERT_TRUE(reader.ok()) << reader.status();
  const auto history = (*reader)->Read(0, kSpec);
  ASSERT_TRUE(history.ok()) << history.status();
  EXPECT_EQ(history->states, std::vector<uint8_t>(240, 8));
  EXPECT_EQ(history->actions, std::vector<uint8_t>(120, 4));
  EXPECT_EQ(history->rewards, std::vector<uint8_t>(120, 1));
  EXPECT_EQ(history->next_states, std::vector<uint8_t>(240, 3));
  EXPECT_EQ(history->dones, std::vector<uint8_t>(120, 1));
  EXPECT_EQ(history->compress_markers, std::vector<uint8_t>(120, 2));
}

TEST_F(HistoryFileTest, NumbersThatArentWhole) {
  Make([](hid_t file) {
    Replace(file, "0/rewards", H5T_NATIVE_FLOAT, {40, 3}, 0.5);
  });
  ExpectRefused({"0/rewards has 0.5 at [0, 0]", "whole numbers 0 to 1"});
}

TEST_F(HistoryFileTest, NotANumber) {
  Make([](hid_t file) {
    Replace(file, "0/states", H5T_NATIVE_DOUBLE, {40, 3, 2}, std::nan(""));
  });
  ExpectRefused({"0/states has nan at [0, 0, 0]"});
}

TEST_F(HistoryFileTest, AFloatBeyondAllIntegers) {
  Make([](hid_t file) {
    Replace(file, "0/actions", H5T_NATIVE_DOUBLE, {40, 3}, 1e300);
  });
  ExpectRefused({"0/actions has 1e+300"});
}

TEST_F(HistoryFileTest, OtherShape) {
  Make([](hid_t file) {
    Replace(file, "0/states", H5T_NATIVE_INT32, {40, 3});
  });
  ExpectRefused({"0/states must be [steps, streams, numbers of an observation]",
                 "is [40, 3]"});
}

TEST_F(HistoryFileTest, ShapesThatDiffer) {
  Make([](hid_t file) { Replace(file, "0/dones", H5T_NATIVE_INT8, {39, 3}); });
  ExpectRefused({"0/dones is of 39 steps and 3 streams"});
}

TEST_F(HistoryFileTest, NoSteps) {
  Make([](hid_t file) {
    Replace(file, "0/states", H5T_NATIVE_INT32, {0, 3, 2});
  });
  ExpectRefused({"none of them 0"});
}

TEST_F(HistoryFileTest, AStateOutsideOfTheRoom) {
  Make([](hid_t file) {
    Replace(file, "0/next_states", H5T_NATIVE_INT32, {40, 3, 2}, 9);
  });
  ExpectRefused({"0/next_states has 9 at [0, 0, 0]", "0 to 8"});
}

TEST_F(HistoryFileTest, ANegativeAction) {
  Make([](hid_t file) {
    Replace(file, "0/actions", H5T_NATIVE_INT32, {40, 3}, -1);
  });
  ExpectRefused({"0/actions has -1 at [0, 0]", "0 to 4"});
}

TEST_F(HistoryFileTest, AnActionThatOnlyFitsAfterWrapping) {
  Make([](hid_t file) {
    Replace(file, "0/actions", H5T_NATIVE_INT64, {40, 3}, 4294967297.0);
  });
  ExpectRefused({"0/actions has 2147483647"});
}

TEST_F(HistoryFileTest, MoreThanThereIs) {
  Make([](hid_t) {});
  EXPECT_THAT(OpenAndRead(0, 41).message(),
              HasSubstr("has 40 steps of 3 streams; 41"));
  EXPECT_THAT(OpenAndRead(0, -1, 4).message(), HasSubstr("3 streams"));
  EXPECT_TRUE(OpenAndRead(0, 40, 3).ok());
}

// A dataset of [steps, streams] int32 without any data.
hid_t MakeHuge(hid_t file, const char* name, std::vector<hsize_t> sizes) {
  H5Ldelete(file, name, H5P_DEFAULT);
  const hid_t layout = H5Pcreate(H5P_DATASET_CREATE);
  const hsize_t chunk[3] = {1, 1, 1};
  H5Pset_chunk(layout, sizes.size(), chunk);
  const hid_t space = H5Screate_simple(sizes.size(), sizes.data(), nullptr);
  const hid_t set = H5Dcreate2(file, name, H5T_NATIVE_INT32, space, H5P_DEFAULT,
                               layout, H5P_DEFAULT);
  H5Pclose(layout);
  H5Sclose(space);
  return set;
}

TEST_F(HistoryFileTest, SizesThatNoFileHolds) {
  const hsize_t streams = hsize_t{1} << 61;
  Make([&](hid_t file) {
    H5Dclose(MakeHuge(file, "0/states", {8, streams, 2}));
  });
  ExpectRefused(
      {"0/states says that it is [8, 2305843009213693952, 2], but "
       "has only 0 bytes of data"});
  Make([&](hid_t file) {
    H5Dclose(MakeHuge(file, "0/actions", {4000, 1000000}));
  });
  ExpectRefused({"0/actions says that it is [4000, 1000000]"});
}

TEST_F(HistoryFileTest, DataOfAnotherFile) {
  const std::string other = path_ + ".raw";
  std::ofstream(other) << std::string(480, '\0');
  Make([&](hid_t file) {
    H5Ldelete(file, "0/actions", H5P_DEFAULT);
    const hid_t made = H5Pcreate(H5P_DATASET_CREATE);
    H5Pset_external(made, other.c_str(), 0, 480);
    const hsize_t sizes[] = {40, 3};
    const hid_t space = H5Screate_simple(2, sizes, nullptr);
    H5Dclose(H5Dcreate2(file, "0/actions", H5T_NATIVE_INT32, space, H5P_DEFAULT,
                        made, H5P_DEFAULT));
    H5Sclose(space);
    H5Pclose(made);
  });
  ExpectRefused({"0/actions has its data in other files or datasets"});
}

TEST_F(HistoryFileTest, AVirtualDatasetOfItself) {
  Make([](hid_t file) {
    H5Ldelete(file, "0/actions", H5P_DEFAULT);
    const hid_t made = H5Pcreate(H5P_DATASET_CREATE);
    const hsize_t sizes[] = {40, 3};
    const hid_t space = H5Screate_simple(2, sizes, nullptr);
    H5Pset_virtual(made, space, ".", "/0/actions", space);
    H5Dclose(H5Dcreate2(file, "0/actions", H5T_NATIVE_INT32, space, H5P_DEFAULT,
                        made, H5P_DEFAULT));
    H5Sclose(space);
    H5Pclose(made);
  });
  ExpectRefused({"0/actions has its data in other files or datasets"});
}

TEST_F(HistoryFileTest, LinksToElsewhere) {
  Make([](hid_t file) {
    H5Ldelete(file, "0/actions", H5P_DEFAULT);
    H5Lcreate_external("other.hdf5", "/0/actions", file, "0/actions",
                       H5P_DEFAULT, H5P_DEFAULT);
  });
  ExpectRefused({"0/actions is a link to something else"});
  Make([](hid_t file) {
    H5Lcreate_soft("/0", file, "1", H5P_DEFAULT, H5P_DEFAULT);
  });
  ExpectRefused({": 1 is a link to something else"});
}

// More than is read at a time, with one wrong value near its end.
TEST_F(HistoryFileTest, LongHistoriesAreReadInPieces) {
  Make([](hid_t file) {
    for (const char* name : {"0/actions", "0/rewards", "0/dones"}) {
      Replace(file, name, H5T_NATIVE_INT8, {3000, 3000});
    }
    for (const char* name : {"0/states", "0/next_states"}) {
      Replace(file, name, H5T_NATIVE_INT8, {3000, 3000, 2}, 1);
    }
    H5Ldelete(file, "0/compress_markers", H5P_DEFAULT);
    const hid_t set = H5Dopen2(file, "0/next_states", H5P_DEFAULT);
    const hid_t space = H5Dget_space(set);
    const hsize_t place[] = {2998, 7, 1};
    H5Sselect_elements(space, H5S_SELECT_SET, 1, place);
    const hsize_t one = 1;
    const hid_t memory = H5Screate_simple(1, &one, nullptr);
    const int32_t wrong = 17;
    H5Dwrite(set, H5T_NATIVE_INT32, memory, space, H5P_DEFAULT, &wrong);
    H5Sclose(memory);
    H5Sclose(space);
    H5Dclose(set);
  });
  ExpectRefused({"0/next_states has 17 at [2998, 7, 1]"});
}

}  // namespace
}  // namespace capstan::darkroom
