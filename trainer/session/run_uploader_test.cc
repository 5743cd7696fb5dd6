// SPDX-License-Identifier: Apache-2.0
#include "trainer/session/run_uploader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/files.h"
#include "base/scratch_folder.h"
#include "trainer/checkpoint/manifest.h"

namespace capstan {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

// Objects in memory. `before` is called before each change, and may refuse it.
struct Objects {
  std::map<std::string, std::string> bytes;
  std::vector<std::string> changes;  // "+KEY", "-KEY"
  std::vector<std::string> removed_folders;
  std::function<StoreResult(const std::string&)> before;
};

class MemoryStore : public ObjectStore {
 public:
  explicit MemoryStore(Objects* objects) : objects_(*objects) {}

  StoreResult List(const std::string& folder,
                   std::vector<StoredObject>* objects) override {
    objects->clear();
    for (const auto& [path, bytes] : objects_.bytes) {
      if (absl::StartsWith(path, folder + "/")) {
        objects->push_back({path, static_cast<int64_t>(bytes.size()), ""});
      }
    }
    return {};
  }
  StoreResult Stat(const std::string& path, StoredObject* object) override {
    const auto found = objects_.bytes.find(path);
    if (found == objects_.bytes.end()) return {StoreResult::kMissing, ""};
    *object = {path, static_cast<int64_t>(found->second.size()), ""};
    return {};
  }
  StoreResult Read(const StoredObject& object, int64_t offset, int64_t size,
                   char* to) override {
    objects_.bytes.at(object.path).copy(to, size, offset);
    return {};
  }
  StoreResult Write(const std::string& path, const char* bytes,
                    int64_t size) override {
    const StoreResult may = Change("+" + path);
    if (may.kind == StoreResult::kOk) {
      objects_.bytes[path] = std::string(bytes, size);
    }
    return may;
  }
  StoreResult Delete(const std::string& path) override {
    const StoreResult may = Change("-" + path);
    if (may.kind == StoreResult::kOk) objects_.bytes.erase(path);
    return may;
  }
  StoreResult DeleteFolder(const std::string& folder) override {
    for (const auto& [path, bytes] : objects_.bytes) {
      EXPECT_FALSE(absl::StartsWith(path, folder + "/")) << path;
    }
    objects_.removed_folders.push_back(folder);
    return {};
  }

 private:
  StoreResult Change(const std::string& change) {
    const StoreResult may =
        objects_.before == nullptr ? StoreResult() : objects_.before(change);
    if (may.kind == StoreResult::kOk) objects_.changes.push_back(change);
    return may;
  }

  Objects& objects_;
};

class RunUploaderTest : public ::testing::Test {
 protected:
  RunUploaderTest() { Restart(); }

  // Another process of the run, with the same folder.
  void Restart(const std::string& owner = "this run") {
    storage_ =
        std::make_unique<Storage>(*ParseAddress("s3://bucket/run"),
                                  std::make_unique<MemoryStore>(&objects_),
                                  /*patience_seconds=*/0);
    RunUploader::Options options;
    options.owner = owner;
    options.ended = [this] { return ended_; };
    uploader_ = std::make_unique<RunUploader>(*storage_, folder_, options);
  }

  void Write(const std::string& path, const std::string& bytes) {
    const std::string whole = absl::StrCat(folder_, "/", path);
    ASSERT_TRUE(MakeFolder(fs::path(whole).parent_path().string()).ok());
    ASSERT_TRUE(WriteWholeFile(whole, bytes).ok());
  }
  void Save(int step, const std::string& bytes = "weights") {
    const std::string name = absl::StrFormat("checkpoints/step-%08d/", step);
    Write(name + "state-0", bytes);
    Write(name + "state-1", bytes);
    Manifest manifest;
    manifest.train_state.step = step;
    manifest.config_text = bytes;
    for (const char* file : {"state-0", "state-1"}) {
      manifest.files.push_back({file, static_cast<int64_t>(bytes.size()), {}});
    }
    Write(name + "manifest.json", ManifestToJson(manifest));
  }
  void Remove(int step) {
    fs::remove_all(absl::StrFormat("%s/checkpoints/step-%08d", folder_, step));
  }
  // Steps that have a manifest.
  std::vector<int> Whole() const {
    std::vector<int> steps;
    for (int step = 0; step < 100; ++step) {
      steps.push_back(step);
      if (objects_.bytes.count(absl::StrFormat(
              "bucket/run/checkpoints/step-%08d/manifest.json", step)) == 0) {
        steps.pop_back();
      }
    }
    return steps;
  }
  std::vector<std::string> TakeChanges() {
    std::vector<std::string> changes;  // but for the owner's
    for (std::string change : std::exchange(objects_.changes, {})) {
      change.erase(1, std::string("bucket/run/").size());
      if (change.substr(1) != kOwnerFile) changes.push_back(std::move(change));
    }
    return changes;
  }

  const ScratchFolder scratch_;
  const std::string folder_ = scratch_.path();
  bool ended_ = false;
  Objects objects_;
  std::unique_ptr<Storage> storage_;
  std::unique_ptr<RunUploader> uploader_;
};

TEST_F(RunUploaderTest, ManifestsAreLastAndNothingGoesUpTwice) {
  Write("metrics.jsonl", "{}\n{\"half");
  Write(".lock", "");
  Save(1);
  ASSERT_TRUE(uploader_->Pass().ok());
  EXPECT_THAT(
      TakeChanges(),
      ElementsAre("+checkpoints/step-00000001/state-0",
                  "+checkpoints/step-00000001/state-1", "+metrics.jsonl",
                  "+checkpoints/step-00000001/manifest.json"));
  EXPECT_EQ(objects_.bytes["bucket/run/metrics.jsonl"], "{}\n");
  Write("final/model.safetensors", "weights");
  Write("final/README.md", "card");
  ASSERT_TRUE(uploader_->Pass().ok());
  EXPECT_THAT(TakeChanges(),
              ElementsAre("+final/model.safetensors", "+final/README.md"));
  ASSERT_TRUE(uploader_->Pass().ok());
  EXPECT_THAT(TakeChanges(), IsEmpty());
  // Another process doesn't know when the files went up.
  Restart();
  ASSERT_TRUE(uploader_->Pass().ok());
  EXPECT_THAT(TakeChanges(), ElementsAre("+metrics.jsonl"));
}

TEST_F(RunUploaderTest, TheStoreKeepsWhatTheFolderKeeps) {
  Save(1);
  Save(2);
  ASSERT_TRUE(uploader_->Pass().ok());
  Save(3);
  Remove(2);  // 1 is the best
  ASSERT_TRUE(uploader_->Pass().ok());
  EXPECT_THAT(Whole(), ElementsAre(1, 3));
  // An empty disk, to which the newest was fetched.
  Remove(1);
  Restart();
  ASSERT_TRUE(uploader_->Pass().ok());
  EXPECT_THAT(Whole(), ElementsAre(1, 3));
  TakeChanges();
  Save(4);
  ASSERT_TRUE(uploader_->Pass().ok());
  EXPECT_THAT(Whole(), ElementsAre(3, 4));
  EXPECT_THAT(TakeChanges(),
              ElementsAre("+checkpoints/step-00000004/state-0",
                          "+checkpoints/step-00000004/state-1",
                          "+checkpoints/step-00000004/manifest.json",
                          "-checkpoints/step-00000001/manifest.json",
                          "-checkpoints/step-00000001/state-0",
                          "-checkpoints/step-00000001/state-1"));
  // Some clients keep an object in the place of a folder.
  EXPECT_THAT(objects_.removed_folders,
              ::testing::Contains("bucket/run/checkpoints/step-00000001"));
  // The run prunes after a pass has.
  Save(5);
  ASSERT_TRUE(uploader_->Pass().ok());
  EXPECT_THAT(Whole(), ElementsAre(3, 4, 5));
  Remove(3);
  ASSERT_TRUE(uploader_->Pass().ok());
  EXPECT_THAT(Whole(), ElementsAre(4, 5));
}

// The connection fails at each change in turn: what has a manifest is whole,
// and the next pass brings the rest.
TEST_F(RunUploaderTest, AFailureAnywhereLeavesNothingHalf) {
  for (int fails = 0;; ++fails) {
    SCOPED_TRACE(fails);
    objects_ = Objects();
    Restart();
    Remove(3);
    Save(1);
    Save(2);
    ASSERT_TRUE(uploader_->Pass().ok());
    // A killed run's.
    objects_.bytes["bucket/run/checkpoints/step-00000009/state-0"] = "half";
    Remove(1);
    Save(3);
    Restart();
    int left = fails;
    objects_.before = [&left](const std::string&) {
      return left-- > 0 ? StoreResult()
                        : StoreResult{StoreResult::kPassing, "cut"};
    };
    const absl::Status status = uploader_->Pass();
    for (const int step : Whole()) {
      for (const char* file : {"state-0", "state-1"}) {
        EXPECT_EQ(objects_.bytes.count(absl::StrFormat(
                      "bucket/run/checkpoints/step-%08d/%s", step, file)),
                  1)
            << step;
      }
    }
    EXPECT_THAT(Whole(), ::testing::Contains(2));
    objects_.before = nullptr;
    ASSERT_TRUE(uploader_->Pass().ok());
    EXPECT_THAT(Whole(), ElementsAre(2, 3));
    EXPECT_EQ(objects_.bytes.size(), 6 + 1);  // and the owner
    if (status.ok()) break;
    EXPECT_TRUE(absl::IsUnavailable(status)) << status;
    ASSERT_LT(fails, 20);
  }
}

// A step that is trained again, after its checkpoint was damaged.
TEST_F(RunUploaderTest, AnotherCheckpointOfTheSameStepReplacesIt) {
  Save(1, "weights");
  ASSERT_TRUE(uploader_->Pass().ok());
  TakeChanges();
  Save(1, "others");
  ASSERT_TRUE(uploader_->Pass().ok());
  EXPECT_THAT(TakeChanges(),
              ElementsAre("-checkpoints/step-00000001/manifest.json",
                          "+checkpoints/step-00000001/state-0",
                          "+checkpoints/step-00000001/state-1",
                          "+checkpoints/step-00000001/manifest.json"));
  EXPECT_EQ(objects_.bytes["bucket/run/checkpoints/step-00000001/state-1"],
            "others");
}

// Saves that are quicker than the store.
TEST_F(RunUploaderTest, ACheckpointThatIsRemovedMeanwhileStillGoesUpWhole) {
  Save(1);
  objects_.before = [this](const std::string& change) {
    if (absl::EndsWith(change, "state-0")) Remove(1);
    return StoreResult();
  };
  ASSERT_TRUE(uploader_->Pass().ok());
  EXPECT_THAT(Whole(), ElementsAre(1));
  EXPECT_EQ(objects_.bytes.size(), 3 + 1);  // and the owner
}

// Two runs that were given one address.
TEST_F(RunUploaderTest, AnotherRunThatTakesTheAddressStopsThisOne) {
  Save(1);
  ASSERT_TRUE(uploader_->Pass().ok());
  const std::unique_ptr<RunUploader> first = std::move(uploader_);
  const std::unique_ptr<Storage> storage = std::move(storage_);
  Restart("another");
  ASSERT_TRUE(uploader_->Pass().ok());
  Save(2);
  Remove(1);
  objects_.changes.clear();
  const absl::Status status = first->Pass();
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), "another run (another)"));
  EXPECT_TRUE(absl::IsFailedPrecondition(first->Release()));
  EXPECT_THAT(objects_.changes, IsEmpty());
  ASSERT_TRUE(uploader_->Pass().ok());
  EXPECT_THAT(Whole(), ElementsAre(1, 2));
  ASSERT_TRUE(uploader_->Release().ok());
  EXPECT_EQ(objects_.bytes.count(absl::StrCat("bucket/run/", kOwnerFile)), 0);
  // The other has come and gone.
  EXPECT_TRUE(absl::IsFailedPrecondition(first->Pass()));
}

TEST_F(RunUploaderTest, WhatAManifestListsMustBeThere) {
  Write("metrics.jsonl", "{}\n");
  Save(1);
  fs::remove(folder_ + "/checkpoints/step-00000001/state-1");
  Save(2);
  Write("checkpoints/step-00000002/state-1", "cut");
  const absl::Status status = uploader_->Pass();
  EXPECT_TRUE(absl::IsDataLoss(status)) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), "state-1")) << status;
  EXPECT_THAT(Whole(), IsEmpty());
  EXPECT_EQ(objects_.bytes["bucket/run/metrics.jsonl"], "{}\n");
}

TEST_F(RunUploaderTest, AFileThatIsThereIsNotSentAgain) {
  Save(1);
  objects_.before = [](const std::string& change) {
    return absl::EndsWith(change, "state-1")
               ? StoreResult{StoreResult::kPassing, "cut"}
               : StoreResult();
  };
  EXPECT_FALSE(uploader_->Pass().ok());
  objects_.before = nullptr;
  TakeChanges();
  ASSERT_TRUE(uploader_->Pass().ok());
  EXPECT_THAT(TakeChanges(),
              ElementsAre("+checkpoints/step-00000001/state-1",
                          "+checkpoints/step-00000001/manifest.json"));
}

// The run is stopped, and saves, while an older checkpoint goes up.
TEST_F(RunUploaderTest, AtTheEndTheNewestGoesFirst) {
  Save(1);
  objects_.before = [this](const std::string& change) {
    if (absl::EndsWith(change, "step-00000001/state-0") && !ended_) {
      Save(2);
      ended_ = true;
    }
    return StoreResult();
  };
  ASSERT_TRUE(uploader_->Pass().ok());
  TakeChanges();
  ASSERT_TRUE(uploader_->Pass().ok());
  EXPECT_THAT(TakeChanges(),
              ElementsAre("+checkpoints/step-00000002/state-0",
                          "+checkpoints/step-00000002/state-1",
                          "+checkpoints/step-00000002/manifest.json",
                          "+checkpoints/step-00000001/state-0",
                          "+checkpoints/step-00000001/state-1",
                          "+checkpoints/step-00000001/manifest.json"));
}

}  // namespace
}  // namespace capstan
