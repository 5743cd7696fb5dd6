// SPDX-License-Identifier: Apache-2.0
//
// Runs on shards in object storage, of which they read parts while they go on.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "tests/storage/store_server.h"
#include "tests/testing/run_folder.h"
#include "tests/testing/run_text.h"

namespace capstan {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

class StreamedRunTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!StoreServer::Available()) {
      GTEST_SKIP()
          << "no server could be fetched (third_party/store_servers.bzl)";
    }
    server_ = std::make_unique<StoreServer>(StoreKind::kS3);
    host_.environment = server_->Environment(NewTestFolder("storage"));
  }

  static RunText RunOn(const std::string& path) {
    return RunText()
        .Set("train_data",
             absl::StrCat("[plugin/capstan.stream.Config] { path: \"", path,
                          "\" sequence_length: 32 shuffle: true }"))
        .Ddp(2)
        .Batch(2, 8)
        .Train("max_steps: 40 receipts: true");
  }

  // The digest of each step's rows.
  std::vector<std::string> Rows(RunText run) const {
    const std::string folder = MustTrain(run, host_);
    const std::vector<std::string> lines =
        absl::StrSplit(ReadText(folder + "/receipts.jsonl"), '\n');
    std::vector<std::string> rows;
    for (const std::string& line : lines) {
      const auto receipt = nlohmann::json::parse(line, nullptr, false);
      if (receipt.contains("rows")) rows.push_back(receipt["rows"]);
    }
    EXPECT_EQ(rows.size(), 40);
    return rows;
  }

  // A folder with shards, and the same in the store.
  std::string Put(const std::string& name, const std::string& bytes) {
    const std::string folder = NewTestFolder("shards");
    for (const char* shard : {"a", "b"}) {
      const std::string file = absl::StrCat(shard, name);
      WriteText(absl::StrCat(folder, "/", file), bytes);
      server_->Put(absl::StrCat("data/", file), bytes);
    }
    return folder;
  }

  std::unique_ptr<StoreServer> server_;
  TrainerOptions host_;
};

std::string JsonLines(int64_t bytes) {
  std::string rows;
  for (int row = 0; static_cast<int64_t>(rows.size()) < bytes; ++row) {
    absl::StrAppend(&rows, "{\"text\": \"", row, " ",
                    std::string((row * 37) % 400, 'a' + row % 26), "\"}\n");
  }
  return rows;
}

TEST_F(StreamedRunTest, AllFormatsAreReadAsFromTheDisk) {
  const std::string data = "datasets/stream/testdata/";
  const std::vector<std::pair<std::string, std::string>> shards = {
      {".jsonl", JsonLines(3 << 20)},
      {".parquet", ReadText(Runfile(data + "rows.parquet"))},
      {".tar", ReadText(Runfile(data + "samples.tar"))},
  };
  for (const auto& [ending, bytes] : shards) {
    const std::string folder = Put(ending, bytes);
    const auto local = Rows(RunOn(absl::StrCat(folder, "/*", ending)));
    server_->proxy().set_faults({/*cut=*/0.1, /*busy=*/0.1, /*slow=*/0});
    EXPECT_EQ(Rows(RunOn(absl::StrCat("s3://bucket/data/*", ending))), local)
        << ending;
    server_->proxy().set_faults({});
  }
}

// Of much data a run fetches what it reads.
TEST_F(StreamedRunTest, OnlyWhatIsReadIsFetched) {
  Put(".jsonl", JsonLines(80 << 20));
  Rows(RunOn("s3://bucket/data/*.jsonl"));
  int64_t fetched = 0;
  for (const auto& entry : fs::recursive_directory_iterator(
           host_.environment.at("CAPSTAN_STORAGE_FOLDER"))) {
    struct stat info;
    const std::string folder = entry.path().parent_path().filename().string();
    if (absl::StartsWith(folder, "shards-") &&
        stat(entry.path().c_str(), &info) == 0) {
      fetched += int64_t{info.st_blocks} * 512;
    }
  }
  EXPECT_GT(fetched, 1 << 20);
  EXPECT_LT(fetched, 100 << 20);  // of 160 MiB
}

// Also by one of the same size.
TEST_F(StreamedRunTest, AnObjectThatIsReplacedStopsTheRun) {
  const std::string bytes = JsonLines(80 << 20);
  Put(".jsonl", bytes);
  const RunText run =
      RunText()
          .Set("train_data",
               "[plugin/capstan.stream.Config] { "
               "path: \"s3://bucket/data/*.jsonl\" sequence_length: 32 "
               "lanes: 1 }")
          .Batch(64, 512)
          .Train("max_steps: 1000000")
          .Output(NewTestFolder("run") + "/out");
  TrainerProcess process({"--config=" + run.File()}, host_);
  ASSERT_TRUE(process.WaitForFile(run.output() + "/metrics.jsonl"))
      << process.Wait().err;
  std::string other = bytes;
  for (char& byte : other) byte = byte == 'a' ? 'b' : byte;
  server_->Put("data/a.jsonl", other);
  const TrainerResult result = process.Wait();
  ExpectOneError(result, {"s3://bucket/data/a.jsonl has changed since the run "
                          "began",
                          "begin a new run"});
}

TEST_F(StreamedRunTest, WhatIsWrongIsToldOfTheAddress) {
  const auto error = [&](const std::string& address) {
    const TrainerResult result = RunTrainer(
        {"--config=" +
         RunOn(address).Output(NewTestFolder("run") + "/out").File()},
        host_);
    EXPECT_NE(result.exit_code, 0);
    return result.err;
  };
  EXPECT_THAT(error("s3://bucket/none/*.jsonl"), HasSubstr("s3://bucket/none"));
  server_->Put("bad/a.parquet", "PAR1 and nothing else");
  EXPECT_THAT(error("s3://bucket/bad/*.parquet"),
              HasSubstr("s3://bucket/bad/a.parquet is cut off"));
  server_->Put("rows/a.jsonl", "{\"text\": \"a\"}\n{\"words\": \"b\"}\n");
  EXPECT_THAT(error("s3://bucket/rows/"),
              HasSubstr("s3://bucket/rows/a.jsonl:2 has no \"text\""));
}

}  // namespace
}  // namespace capstan
