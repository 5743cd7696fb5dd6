// SPDX-License-Identifier: Apache-2.0
//
// Runs whose data, model and output are in object storage, against servers
// that speak S3, GCS and Azure's protocol. CAPSTAN_KILLS: how often the killed
// run is killed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "tests/storage/store_server.h"
#include "tests/testing/placed_ranks.h"
#include "tests/testing/run_folder.h"
#include "tests/testing/run_text.h"
#include "tests/testing/told_end.h"

namespace capstan {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

constexpr char kSecret[] = "verysecretsecret0123456789";

class StoredRunTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!StoreServer::Available()) {
      GTEST_SKIP()
          << "no server could be fetched (third_party/store_servers.bzl)";
    }
    server_ = std::make_unique<StoreServer>(kind());
  }
  virtual StoreKind kind() const { return StoreKind::kS3; }
  std::string Address() const { return server_->address() + "runs/a"; }
  RunText SmallRun() const {
    return RunText()
        .Set("train_data", TextData(CorpusPiece(40 * 32), 32, "shuffle: true"))
        .Output(Address());
  }

  // A host with an empty disk.
  TrainerOptions NewHost() const {
    TrainerOptions options;
    options.environment = server_->Environment(NewTestFolder("storage"));
    return options;
  }

  TrainerResult Train(const RunText& run, const TrainerOptions& options) const {
    return RunTrainer({"--config=" + run.File()}, options);
  }

  // Where the server keeps the run of Address().
  std::string Stored() const { return server_->Objects() + "/runs/a"; }

  // Where a host that has trained one run keeps it.
  static std::string OnDisk(const TrainerOptions& host) {
    const fs::path runs =
        host.environment.at("CAPSTAN_STORAGE_FOLDER") + "/runs";
    return fs::directory_iterator(runs)->path().string();
  }

  // What is wrong with the store's checkpoints: nothing may be, at any time.
  std::vector<std::string> Broken() const {
    std::vector<std::string> broken;
    for (const int64_t step : CheckpointSteps(Stored())) {
      const std::string folder = absl::StrCat(Stored(), "/checkpoints/step-",
                                              absl::Dec(step, absl::kZeroPad8));
      const nlohmann::json manifest = ReadJson(folder + "/manifest.json");
      for (const auto& file : manifest["files"]) {
        const std::string path =
            absl::StrCat(folder, "/", file["file"].get<std::string>());
        std::error_code error;
        if (fs::file_size(path, error) != file["bytes"].get<uint64_t>()) {
          broken.push_back(path);
        }
      }
    }
    return broken;
  }

  std::unique_ptr<StoreServer> server_;
};

// What holds of every store.
class AnyStoreRunTest : public StoredRunTest,
                        public ::testing::WithParamInterface<StoreKind> {
 protected:
  StoreKind kind() const override { return GetParam(); }
};
INSTANTIATE_TEST_SUITE_P(, AnyStoreRunTest,
                         ::testing::Values(StoreKind::kS3, StoreKind::kGcs,
                                           StoreKind::kAzure),
                         ::testing::PrintToStringParamName());

TEST_P(AnyStoreRunTest, AllOfARunIsInTheStore) {
  const TrainerOptions host = NewHost();
  const RunText run = SmallRun().Train("save_every: 2");
  const TrainerResult result = Train(run, host);
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_TRUE(result.all_gone);
  EXPECT_THAT(result.err, HasSubstr(Address() + " has all of the run"));
  EXPECT_THAT(result.err + result.out, Not(HasSubstr(kSecret)));
  EXPECT_THAT(CheckpointSteps(Stored()), ElementsAre(4, 6));
  EXPECT_THAT(Broken(), IsEmpty());
  // Bit by bit what the run has left on its disk.
  const std::string local = OnDisk(host);
  EXPECT_THAT(fs::path(local).filename().string(),
              ::testing::HasSubstr("-bucket-runs-a-"));
  std::map<std::string, std::string> left = Snapshot(local);
  left.erase(".lock");
  left.erase(".fetch.lock");
  EXPECT_EQ(Snapshot(Stored()), left);
  // Another host reads its model there, and no more than that.
  const TrainerOptions other = NewHost();
  const TrainerResult generated =
      RunTrainer({"generate", "--model=" + Address(), "--prompt=The",
                  "--max_new_tokens=4"},
                 other);
  EXPECT_EQ(generated.exit_code, 0) << generated.err;
  for (const auto& [path, bytes] :
       Snapshot(other.environment.at("CAPSTAN_STORAGE_FOLDER"))) {
    EXPECT_THAT(path, Not(HasSubstr("checkpoints")));
  }
  const TrainerResult verified = RunTrainer({"verify", Address()}, other);
  EXPECT_EQ(verified.exit_code, 0) << verified.err;
  EXPECT_THAT(verified.out, HasSubstr("step-00000006"));
  const TrainerResult why = RunTrainer({"why-slow", Address()}, other);
  EXPECT_EQ(why.exit_code, 0) << why.err;
  // What runs tell of themselves, without what they have made.
  const TrainerOptions desk = NewHost();
  const TrainerResult listed =
      RunTrainer({"runs", server_->address() + "runs"}, desk);
  EXPECT_EQ(listed.exit_code, 0) << listed.err;
  EXPECT_THAT(listed.out, HasSubstr("completed"));
  const std::string page = NewTestFolder("page") + "/run.html";
  const TrainerResult watched =
      RunTrainer({"watch", Address(), "--html=" + page}, desk);
  EXPECT_EQ(watched.exit_code, 0) << watched.err;
  EXPECT_TRUE(fs::exists(page));
  for (const auto& [path, bytes] :
       Snapshot(desk.environment.at("CAPSTAN_STORAGE_FOLDER"))) {
    EXPECT_THAT(path, Not(HasSubstr("safetensors")));
  }
  ExpectOneError(RunTrainer({"runs", "gc", server_->address() + "runs"}, desk),
                 {"is read from a copy"});
  // A second run there is refused before anything starts.
  ExpectOneError(Train(run, NewHost()),
                 {Address() + " already holds a run", "resume=AUTO"});
  // A finished one is left as it is.
  const auto before = Snapshot(Stored());
  const TrainerResult again =
      Train(RunText(run).Train("resume: AUTO"), NewHost());
  EXPECT_EQ(again.exit_code, 0) << again.err;
  EXPECT_THAT(again.out, HasSubstr("is finished after 6 steps"));
  EXPECT_EQ(Snapshot(Stored()), before);
}

// One address below another, and a start that is refused.
TEST_F(StoredRunTest, RunsDontTouchEachOthersFolders) {
  const TrainerOptions host = NewHost();
  const RunText inner =
      SmallRun().Output(Address() + "/b").Train("save_every: 2");
  ASSERT_EQ(Train(inner, host).exit_code, 0);
  const auto before = Snapshot(Stored() + "/b");
  const RunText outer =
      SmallRun().Train("max_steps: 1000000 save_every: 100 resume: AUTO");
  TrainerProcess process({"--config=" + outer.File()}, host);
  ASSERT_TRUE(process.WaitUntil([&] { return NewestStep(Stored()) > 0; }))
      << process.Err();
  // A second start there uploads nothing.
  const TrainerResult second = Train(outer, host);
  ExpectOneError(second, {"is in use by a run that is still going"});
  EXPECT_THAT(second.err, Not(HasSubstr("uploading the rest")));
  process.Signal(SIGTERM);
  const TrainerResult stopped = process.Wait();
  EXPECT_THAT(stopped.err, HasSubstr("has all of the run"));
  EXPECT_EQ(Snapshot(Stored() + "/b"), before);
  // The outer one on an empty disk has nothing of the inner one.
  const TrainerOptions other = NewHost();
  const int64_t newest = NewestStep(Stored());
  const TrainerResult again = Train(
      RunText(outer).Train(absl::StrCat("max_steps: ", newest + 10)), other);
  EXPECT_EQ(again.exit_code, 0) << again.err;
  for (const auto& [path, bytes] :
       Snapshot(other.environment.at("CAPSTAN_STORAGE_FOLDER") + "/runs")) {
    EXPECT_THAT(path, Not(HasSubstr("/b/")));
  }
  EXPECT_EQ(Snapshot(Stored() + "/b"), before);
}

// Processes that descend from `pid`.
std::vector<pid_t> Descendants(pid_t pid) {
  std::ifstream list(absl::StrCat("/proc/", pid, "/task/", pid, "/children"));
  std::vector<pid_t> all;
  for (pid_t child; list >> child;) {
    all.push_back(child);
    for (const pid_t below : Descendants(child)) all.push_back(below);
  }
  return all;
}

TEST_P(AnyStoreRunTest, AnUploaderThatDiesIsStartedAgain) {
  const RunText run =
      SmallRun().Train("max_steps: 2000 save_every: 100 resume: AUTO");
  TrainerProcess process({"--config=" + run.File()}, NewHost());
  ASSERT_TRUE(process.WaitUntil([&] { return NewestStep(Stored()) > 0; }))
      << process.Err();
  // Of the launcher's children it is the one that has a child.
  int killed = 0;
  for (const pid_t child : process.Children()) {
    for (const pid_t below : Descendants(child)) {
      killed += kill(below, SIGBUS) == 0;
    }
  }
  EXPECT_EQ(killed, 1);
  const TrainerResult result = process.Wait();
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.err,
              AllOf(HasSubstr("the process that uploads ended with signal 7; "
                              "it is started again"),
                    HasSubstr("has all of the run")));
  EXPECT_THAT(CheckpointSteps(Stored()), ElementsAre(1900, 2000));
  EXPECT_THAT(Broken(), IsEmpty());
}

// Each rank is a process of its own, as under srun, on two hosts that share the
// folder in which they work.
TEST_F(StoredRunTest, RanksOfTwoHostsShareWhatIsFetched) {
  server_->Put("corpus.txt", ReadText(CorpusPiece(40 * 32)));
  const RunText run =
      SmallRun()
          .Set("train_data", TextData("s3://bucket/corpus.txt", 32))
          .Ddp(2)
          .Batch(4, 8)
          .Train("max_steps: 8 save_every: 4 resume: AUTO");
  for (const TrainerOptions& host : {NewHost(), NewHost()}) {
    int fetched = 0;
    int uploaders = 0;
    for (const TrainerResult& rank :
         RunPlacedRanks(2, run.File(), host, /*hosts=*/2)) {
      EXPECT_EQ(rank.exit_code, 0) << rank.err;
      fetched += absl::StrContains(rank.err, "corpus.txt: fetched");
      uploaders += absl::StrContains(rank.err, "has all of the run");
    }
    EXPECT_EQ(fetched, 1);
    EXPECT_EQ(uploaders, 1);
    EXPECT_THAT(CheckpointSteps(Stored()), ElementsAre(4, 8));
    EXPECT_THAT(Broken(), IsEmpty());
  }
}

TEST_F(StoredRunTest, DataAndModelAreReadByAddress) {
  const std::string model = Runfile("tests/golden/testdata/llama");
  for (const auto& file : fs::directory_iterator(model)) {
    server_->Put("models/llama/" + file.path().filename().string(),
                 ReadText(file.path().string()));
  }
  const std::string corpus = ReadText(Runfile("tests/testdata/corpus.txt"));
  server_->Put("corpus.txt", corpus);
  const std::string undisturbed = MustTrain(RunText::Golden());
  RunText run = RunText::Golden();
  run.Set("model",
          "[plugin/capstan.llama.Config] { pretrained: "
          "\"s3://bucket/models/llama\" }");
  run.Set("train_data", TextData("s3://bucket/corpus.txt", 64));
  const TrainerOptions host = NewHost();
  const std::string first = NewTestFolder("a") + "/o";
  const TrainerResult result = Train(run.Output(first), host);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.err, HasSubstr("s3://bucket/models/llama: fetched"));
  EXPECT_EQ(ReadMetrics(first).losses(), ReadMetrics(undisturbed).losses());
  // What is in the cache isn't fetched again.
  const TrainerResult second =
      Train(run.Output(NewTestFolder("b") + "/o"), host);
  EXPECT_EQ(second.exit_code, 0) << second.err;
  EXPECT_THAT(second.err, Not(HasSubstr("fetched")));
  // What has changed is.
  server_->Put("corpus.txt", corpus.substr(64 * 20));
  const TrainerResult third =
      Train(run.Output(NewTestFolder("c") + "/o"), host);
  EXPECT_EQ(third.exit_code, 0) << third.err;
  EXPECT_THAT(third.err, AllOf(HasSubstr("s3://bucket/corpus.txt: fetched"),
                               Not(HasSubstr("models/llama: fetched"))));
}

TEST_F(StoredRunTest, WrongAddressesAreToldAtOnce) {
  const TrainerOptions host = NewHost();
  RunText nobody = SmallRun().Output("s3://nobody/a");
  ExpectOneError(Train(nobody, host),
                 {"run.pbtxt:1:1: output_dir: s3://nobody/a can't be listed",
                  "bucket does not exist", "storage/refused"});
  RunText missing = SmallRun().Output("").Set(
      "train_data", TextData("s3://bucket/none.txt", 32));
  ExpectOneError(Train(missing, host), {"train_data.path",
                                        "s3://bucket/none.txt: there is no "
                                        "such object or folder",
                                        "storage/missing"});
  TrainerOptions wrong_key = host;
  wrong_key.environment["AWS_ACCESS_KEY_ID"] = "AKNOBODY";
  wrong_key.environment["AWS_SECRET_ACCESS_KEY"] = kSecret;
  const TrainerResult refused = Train(SmallRun(), wrong_key);
  ExpectOneError(refused, {"s3://bucket/runs/a can't be listed",
                           "check the bucket's name, the credentials"});
  EXPECT_THAT(refused.err, Not(HasSubstr(kSecret)));
  ExpectOneError(Train(SmallRun().Output("s3://key:secret@bucket/a"), host),
                 {"output_dir", "an address has no credentials"});
  RunText changing = SmallRun().Set(
      "launch", "max_processes: 2 max_restarts: 3 rendezvous: \"127.0.0.1:1\"");
  ExpectOneError(
      Train(changing, host),
      {"launch.max_processes", "needs an output_dir that all hosts share"});
  server_->Kill();
  TrainerOptions hasty = host;
  hasty.environment["CAPSTAN_STORAGE_SECONDS"] = "1";
  const TrainerResult down = Train(SmallRun(), hasty);
  EXPECT_EQ(down.exit_code, 1);
  EXPECT_THAT(down.err, AllOf(HasSubstr("ERROR: "),
                              HasSubstr("s3://bucket/runs/a can't be listed"),
                              HasSubstr("is the store up and reachable")));
}

// It would replace what is there.
TEST_F(StoredRunTest, ARunOfWhichNoCheckpointIsIntactIsNotBegunAnew) {
  ASSERT_EQ(Train(SmallRun().Train("save_every: 2"), NewHost()).exit_code, 0);
  server_->Kill();
  ASSERT_THAT(CheckpointSteps(Stored()), ElementsAre(4, 6));
  for (const auto& file :
       fs::recursive_directory_iterator(Stored() + "/checkpoints")) {
    if (file.path().extension() != ".safetensors") continue;
    std::string bytes = ReadText(file.path());
    bytes.back() = static_cast<char>(bytes.back() ^ 1);
    WriteText(file.path(), bytes);
  }
  server_->Start();
  const auto before = Snapshot(Stored());
  const TrainerResult result = Train(
      SmallRun().Train("max_steps: 8 save_every: 2 resume: AUTO"), NewHost());
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.err, AllOf(HasSubstr("ERROR: "), HasSubstr("damaged")));
  EXPECT_EQ(Snapshot(Stored()), before);
}

TEST_F(StoredRunTest, AStoreThatGoesAwayDoesNotStopTheRun) {
  TrainerOptions host = NewHost();
  host.environment["CAPSTAN_STORAGE_SECONDS"] = "1";
  const RunText run = SmallRun().Train("save_every: 20 resume: AUTO");
  int64_t end = 0;
  {
    TrainerProcess process(
        {"--config=" + RunText(run).Train(kUntilTold).File()}, host);
    ASSERT_TRUE(process.WaitUntil([&] { return NewestStep(Stored()) > 0; }))
        << process.Err();
    server_->Kill();
    end = EndAfter(100, OnDisk(host), &process);
    const TrainerResult result = process.Wait();
    EXPECT_EQ(result.exit_code, 1);
    EXPECT_THAT(result.err, AllOf(HasSubstr("ERROR: not all of the run is in "
                                            "s3://bucket/runs/a: "),
                                  HasSubstr("train.resume=AUTO uploads it"),
                                  Not(HasSubstr(kSecret))));
    EXPECT_THAT(result.out, HasSubstr("completed"));
  }
  EXPECT_THAT(Broken(), IsEmpty());
  EXPECT_FALSE(fs::exists(Stored() + "/final"));
  server_->Start();
  const TrainerResult again =
      Train(RunText(run).Train(absl::StrCat("max_steps: ", end)), host);
  EXPECT_EQ(again.exit_code, 0) << again.err;
  EXPECT_THAT(CheckpointSteps(Stored()), ElementsAre(end - 20, end));
  EXPECT_TRUE(fs::exists(Stored() + "/final/model.safetensors"));
  EXPECT_THAT(Broken(), IsEmpty());
}

// The run is killed again and again, in any phase, on hosts whose disks are
// empty, while the store's connections are cut and its server is busy.
TEST_P(AnyStoreRunTest, KilledAtAnyMomentItLosesNothing) {
  const char* const asked = std::getenv("CAPSTAN_KILLS");
  int kills = 4;
  ASSERT_TRUE(asked == nullptr || absl::SimpleAtoi(asked, &kills));
  // Of the steps between two kills most are trained anew after the next.
  const RunText run = SmallRun().Ddp(2).Batch(4, 8).Train(absl::StrCat(
      "max_steps: ", 100 + 8 * kills, " save_every: 4 resume: AUTO"));
  const std::string undisturbed =
      MustTrain(RunText(run).Output(NewTestFolder("alone") + "/o"));
  // The emulator of GCS doesn't know how far an upload came that failed.
  const double fails = kind() == StoreKind::kGcs ? 0.0 : 0.05;
  server_->proxy().set_faults({/*cut=*/fails, /*busy=*/fails, /*slow=*/0.02});
  std::mt19937 random(11);
  int64_t newest = 0;
  int in_uploads = 0;
  int with_a_checkpoint = 0;
  for (int i = 0; i < kills; ++i) {
    SCOPED_TRACE(absl::StrCat("kill ", i));
    TrainerProcess process({"--config=" + run.File()}, NewHost());
    // Some die before they have begun, some in an upload, some at their end.
    const int64_t uploads = std::uniform_int_distribution<int>(0, 3)(random);
    process.WaitUntil(
        [&] { return NewestStep(Stored()) >= newest + 4 * uploads; });
    // sleeps: the moment under test
    std::this_thread::sleep_for(std::chrono::milliseconds(
        std::uniform_int_distribution<int>(0, 400)(random)));
    const std::vector<pid_t> children = process.Children();
    process.Signal(SIGKILL);
    for (const pid_t child : children) kill(child, SIGKILL);
    EXPECT_TRUE(process.Wait().all_gone);
    EXPECT_THAT(Broken(), IsEmpty());
    const int64_t now = NewestStep(Stored());
    EXPECT_GE(now, newest) << "a checkpoint is lost";
    newest = now;
    with_a_checkpoint += newest > 0;
    std::error_code none;  // there is no folder yet
    for (const auto& entry :
         fs::directory_iterator(Stored() + "/checkpoints", none)) {
      in_uploads += !fs::exists(entry.path() / "manifest.json");
    }
  }
  std::cout << kills << " kills, " << in_uploads
            << " of them in an upload of a checkpoint, " << with_a_checkpoint
            << " with a checkpoint in the store; " << server_->proxy().faults()
            << " of " << server_->proxy().requests()
            << " requests were disturbed\n";
  EXPECT_GE(with_a_checkpoint, kills / 4);
  const TrainerResult result = Train(run, NewHost());
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(Broken(), IsEmpty());
  // The newest goes up first: a kill after the last one leaves it alone.
  EXPECT_EQ(NewestStep(Stored()), 100 + 8 * kills);
  EXPECT_LE(CheckpointSteps(Stored()).size(), 2);
  EXPECT_EQ(ReadMetrics(Stored()).losses(), ReadMetrics(undisturbed).losses());
  EXPECT_EQ(ReadText(Stored() + "/final/model.safetensors"),
            ReadText(undisturbed + "/final/model.safetensors"));
}

}  // namespace
}  // namespace capstan
