// SPDX-License-Identifier: Apache-2.0
#include "trainer/session/stored_run.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <filesystem>
#include <functional>
#include <iostream>
#include <map>
#include <mutex>
#include <new>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/error_code.h"
#include "base/files.h"
#include "base/status.h"
#include "base/subprocess.h"
#include "cluster/comm/agree.h"
#include "host/storage/cache.h"
#include "trainer/checkpoint/checkpoint.h"
#include "trainer/checkpoint/checkpoint_folders.h"
#include "trainer/checkpoint/manifest.h"
#include "trainer/checkpoint/state_file.h"
#include "trainer/session/held_folder.h"
#include "trainer/session/run_checkpoints.h"
#include "trainer/session/run_uploader.h"
#include "trainer/session/session.h"

namespace capstan {
namespace {

namespace fs = std::filesystem;

constexpr char kOutputDir[] = "output_dir";
constexpr double kSecondsBetweenPasses = 60;
constexpr std::chrono::milliseconds kLook{500};
constexpr std::chrono::seconds kAfterError{5};
constexpr int kMostDeaths = 3;  // of the process, once the run has ended
constexpr uint64_t kMostAnswer = 1 << 20;

void Say(const std::string& line) {
  std::cerr << absl::StrCat("storage: ", line, "\n");
}

// What the process that uploads shares with the run's.
struct Shared {
  std::atomic<bool> held{false};   // the run holds its folder
  std::atomic<bool> ended{false};  // as it was told
  std::atomic<bool> owns{false};   // the address is this run's
};
Shared* shared = nullptr;

// The objects of a run, divided.
struct StoredParts {
  std::vector<StoredObject> files;                           // and final/
  std::map<int64_t, std::vector<StoredObject>> checkpoints;  // whole ones
  bool holds_run = false;
};

StoredParts Divide(const std::vector<StoredObject>& objects) {
  StoredParts parts;
  std::map<int64_t, std::vector<StoredObject>> all;
  for (const StoredObject& object : objects) {
    absl::string_view rest = object.path;
    int64_t step = -1;
    if (!IsOfRun(rest)) continue;
    if (!absl::ConsumePrefix(&rest, "checkpoints/")) {
      parts.files.push_back(object);
      parts.holds_run |= rest == "metrics.jsonl" || rest == "summary.json" ||
                         absl::StartsWith(rest, "final/");
    } else if (absl::ConsumePrefix(&rest, "step-") &&
               absl::SimpleAtoi(rest.substr(0, rest.find('/')), &step)) {
      parts.holds_run = true;
      all[step].push_back(object);
    }
  }
  for (auto& [step, files] : all) {
    const bool whole =
        std::any_of(files.begin(), files.end(), [](const StoredObject& file) {
          return absl::EndsWith(file.path, absl::StrCat("/", kManifestFile));
        });
    if (whole) parts.checkpoints[step] = std::move(files);
  }
  return parts;
}

// Downloads into `part` what the run goes on with. An error if no checkpoint is
// intact: a run that began anew would replace them.
absl::Status Download(const Storage& storage, const StoredParts& stored,
                      bool keeps_best, const std::string& part) {
  CAPSTAN_RETURN_IF_ERROR(storage.Download(stored.files, part));
  absl::Status newest;  // what is wrong with it
  for (auto at = stored.checkpoints.rbegin(); at != stored.checkpoints.rend();
       ++at) {
    CAPSTAN_RETURN_IF_ERROR(storage.Download(at->second, part));
    const std::string folder = CheckpointFolder(part, at->first);
    const absl::Status intact = VerifyCheckpoint(folder);
    if (!intact.ok()) {
      newest.Update(intact);
      // Another trainer's, say, which the one before is, too.
      if (!absl::IsDataLoss(intact)) break;
      Say(absl::StrCat(intact.message(), "; the one before is fetched"));
      continue;
    }
    CAPSTAN_ASSIGN_OR_RETURN(const TrainState state, CheckpointState(folder));
    const auto best = stored.checkpoints.find(state.best_step);
    if (keeps_best && best != stored.checkpoints.end() &&
        best->first != at->first) {
      CAPSTAN_RETURN_IF_ERROR(storage.Download(best->second, part));
    }
    return absl::OkStatus();
  }
  return Annotate(
      newest, storage.address().text() + " has no checkpoint to go on from");
}

// Moves what is in `part` into `folder`; the checkpoints last, as they say that
// all is there.
absl::Status Take(const std::string& part, const std::string& folder) {
  const auto move = [&](const std::string& name) -> absl::Status {
    const std::string to = absl::StrCat(folder, "/", name);
    CAPSTAN_RETURN_IF_ERROR(RemoveTree(to));
    std::error_code error;
    fs::rename(absl::StrCat(part, "/", name), to, error);
    return error ? WriteError(to, error.value()) : absl::OkStatus();
  };
  CAPSTAN_RETURN_IF_ERROR(RemoveTree(folder + "/checkpoints"));
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator at(part, error), end; !error && at != end;
       at.increment(error)) {
    names.push_back(at->path().filename().string());
  }
  for (const std::string& name : names) {
    if (name != "checkpoints") CAPSTAN_RETURN_IF_ERROR(move(name));
  }
  CAPSTAN_RETURN_IF_ERROR(move("checkpoints"));
  CAPSTAN_RETURN_IF_ERROR(SyncPath(folder));
  return RemoveTree(part);
}

int64_t NewestStep(const std::string& folder) {
  const std::vector<StoredCheckpoint> whole = WholeCheckpoints(folder);
  return whole.empty() ? -1 : whole.front().step;
}

// In the process that talks to the store.
absl::Status Fetch(const Address& address, const Train& train,
                   const std::string& folder) {
  CAPSTAN_ASSIGN_OR_RETURN(const auto storage, Storage::Open(address));
  storage->set_note(Say);
  CAPSTAN_ASSIGN_OR_RETURN(const std::vector<StoredObject> objects,
                           storage->List(""));
  const StoredParts stored = Divide(objects);
  if (stored.holds_run && train.resume() != Train::AUTO) {
    return absl::AlreadyExistsError(absl::StrCat(
        address.text(),
        " already holds a run; continue it with train { resume: AUTO } "
        "(--set train.resume=AUTO), or name another address"));
  }
  CAPSTAN_RETURN_IF_ERROR(MakeFolder(folder));
  // Until this process ends.
  const int lock = open((folder + "/.fetch.lock").c_str(),
                        O_CREAT | O_RDWR | O_CLOEXEC, 0666);
  if (lock < 0) return WriteError(folder, errno);
  while (flock(lock, LOCK_EX) != 0) {
    if (errno != EINTR) return WriteError(folder + "/.fetch.lock", errno);
  }
  if (stored.checkpoints.empty() ||
      NewestStep(folder) >= stored.checkpoints.rbegin()->first) {
    return absl::OkStatus();
  }
  // What a live run works in isn't replaced.
  CAPSTAN_RETURN_IF_ERROR(HoldFolder(folder, "", kLockPatience).status());
  const double began = MonotonicSeconds();
  const std::string part = folder + "/.fetch";
  CAPSTAN_RETURN_IF_ERROR(RemoveTree(part));
  const absl::Status got = Download(*storage, stored, KeepsBest(train), part);
  if (!got.ok()) {
    RemoveTree(part).IgnoreError();
    return got;
  }
  CAPSTAN_RETURN_IF_ERROR(Take(part, folder));
  Say(absl::StrFormat("fetched the checkpoint of step %d of %s in %.1f s",
                      NewestStep(folder), address.text(),
                      MonotonicSeconds() - began));
  return absl::OkStatus();
}

// What decides whether there is something new to upload.
std::vector<std::string> LookAt(const std::string& folder) {
  std::vector<std::string> seen;
  for (const StoredCheckpoint& checkpoint : WholeCheckpoints(folder)) {
    seen.push_back(checkpoint.path);
  }
  return seen;
}

// The process that uploads until its parent has told it that the run ended.
class Process {
 public:
  Process(const Address& address, std::string folder, int keep,
          std::string owner)
      : address_(address), folder_(std::move(folder)) {
    options_.keep = keep;
    options_.owner = std::move(owner);
    options_.owns = shared->owns;
    options_.ended = [] { return shared->ended.load(); };
  }

  absl::Status Run(const ConfinedChild::Parent& parent) {
    std::thread listening([this, &parent] {
      char end;
      // One that died may have been told already.
      if (!shared->ended) parent.Receive(&end, 1);
      shared->ended = true;
      const std::lock_guard<std::mutex> lock(mutex_);
      ended_ = true;
      wake_.notify_all();
    });
    absl::Status status;
    for (bool last = false; !last;) {
      // What is damaged stays so.
      last = WaitForWork(status.ok() || absl::IsDataLoss(status));
      if (!shared->held) continue;
      const absl::Status before = std::exchange(status, Pass());
      if (status.ok() && last) status = uploader_->Release();
      if (!status.ok() && before.ok() && !last) {
        Say(absl::StrCat(
            "training goes on, and ",
            absl::IsFailedPrecondition(status) ? "" : "this is tried again: ",
            status.message()));
      } else if (status.ok() && !before.ok()) {
        Say(absl::StrCat(address_.text(), " has all of the run again"));
      }
    }
    listening.join();
    return status;
  }

 private:
  // Returns whether the run has ended.
  bool WaitForWork(bool well) {
    std::unique_lock<std::mutex> lock(mutex_);
    if (!well) {
      wake_.wait_for(lock, kAfterError, [this] { return ended_; });
      return ended_;
    }
    while (!ended_) {
      wake_.wait_for(lock, kLook, [this] { return ended_; });
      if (!shared->held) continue;
      std::vector<std::string> now = LookAt(folder_);
      const double time = MonotonicSeconds();
      if (now != seen_ || time - passed_ > kSecondsBetweenPasses) {
        seen_ = std::move(now);
        passed_ = time;
        break;
      }
    }
    return ended_;
  }

  absl::Status Pass() {
    if (storage_ == nullptr) {
      CAPSTAN_ASSIGN_OR_RETURN(storage_, Storage::Open(address_));
      storage_->set_note(Say);
      uploader_ = std::make_unique<RunUploader>(*storage_, folder_, options_);
    }
    if (!IsFolder(folder_)) {
      return absl::NotFoundError(folder_ + ", in which the run works, is gone");
    }
    const absl::Status status = CatchAll([this] { return uploader_->Pass(); });
    shared->owns = uploader_->owns();
    return status;
  }

  const Address address_;
  const std::string folder_;
  RunUploader::Options options_;
  std::unique_ptr<Storage> storage_;
  std::unique_ptr<RunUploader> uploader_;
  std::vector<std::string> seen_;
  double passed_ = 0;
  std::mutex mutex_;
  std::condition_variable wake_;
  bool ended_ = false;
};

// Runs `upload` in a process that is started again when it dies. This one does
// nothing else, so that nothing else ends it.
void Supervise(const std::function<void()>& upload) {
  for (int deaths = 0; deaths < kMostDeaths;) {
    const pid_t pid = Fork();
    if (pid == 0) {
      upload();
      _exit(0);  // its threads may still run
    }
    const ChildEnd end = pid < 0 ? ChildEnd() : WaitFor(pid);
    if (end.ok()) return;
    if (shared->ended) ++deaths;
    Say(absl::StrCat("the process that uploads ended with ", end.Text(),
                     "; it is started again"));
    absl::SleepFor(absl::FromChrono(kAfterError));
  }
}

// "host gpu7, process 99, since ..", which no other run has.
std::string OwnerText() {
  char host[256] = {};
  if (gethostname(host, sizeof(host) - 1) != 0) host[0] = '\0';
  return absl::StrFormat("host %s, process %d, since %s, %08x", host, getpid(),
                         absl::FormatTime("%Y-%m-%d %H:%M:%S %Ez", absl::Now(),
                                          absl::LocalTimeZone()),
                         std::random_device()());
}

}  // namespace

void LetUploadsBegin() {
  if (shared != nullptr) shared->held = true;
}

absl::optional<Address> StoredOutput(const LoadedConfig& loaded) {
  const auto found = loaded.paths.find(kOutputDir);
  if (found == loaded.paths.end() || !IsAddress(found->second.written)) {
    return absl::nullopt;
  }
  const absl::StatusOr<Address> address = ParseAddress(found->second.written);
  return address.ok() ? absl::make_optional(*address) : absl::nullopt;
}

absl::Status FetchStoredRun(const Address& address,
                            const LoadedConfig& loaded) {
  const std::string folder = loaded.config.output_dir();
  const absl::Status status =
      InStorageProcess([&]() -> absl::StatusOr<std::string> {
        CAPSTAN_RETURN_IF_ERROR(Fetch(address, loaded.config.train(), folder));
        return "";
      }).status();
  return loaded.Locate(
      WithCode(status, absl::IsAlreadyExists(status) ? "run/folder-used" : ""),
      kOutputDir);
}

absl::StatusOr<std::unique_ptr<StoredRun>> StoredRun::Start(
    const Address& address, const LoadedConfig& loaded) {
  const std::string folder = loaded.config.output_dir();
  const int keep = KeptCheckpoints(loaded.config.train());
  void* const memory = mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE,
                            MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    return absl::ErrnoToStatus(errno, "no memory for the uploads");
  }
  shared = new (memory) Shared;  // as long as the process
  const std::string owner = OwnerText();
  const auto upload = [&](const ConfinedChild::Parent& parent) {
    Process process(address, folder, keep, owner);
    const absl::Status status = process.Run(parent);
    if (status.ok()) {
      parent.Send(absl::string_view());
    } else {
      parent.Send(status);
    }
  };
  std::cout.flush();  // else the process's forks print it again
  CAPSTAN_ASSIGN_OR_RETURN(
      std::unique_ptr<ConfinedChild> child,
      StartStorageProcess([&upload](const ConfinedChild::Parent& parent) {
        Supervise([&] { upload(parent); });
      }));
  Say(absl::StrCat("the run works in ", folder, ", and is uploaded to ",
                   address.text()));
  return std::unique_ptr<StoredRun>(
      new StoredRun(address, folder, std::move(child)));
}

absl::Status StoredRun::Finish() {
  if (!shared->held) return absl::OkStatus();
  // Who doesn't want to wait may end this; nohup's SIGHUP stays ignored.
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    struct sigaction now = {};
    sigaction(signal, nullptr, &now);
    if (signal != SIGHUP || now.sa_handler != SIG_IGN) {
      ::signal(signal, SIG_DFL);
    }
  }
  const double began = MonotonicSeconds();
  Say(absl::StrCat("uploading the rest to ", address_.text()));
  absl::Status status = child_->Send("e");
  if (status.ok()) status = child_->Receive(kMostAnswer).status();
  if (status.ok()) {
    Say(absl::StrFormat("%s has all of the run, %.1f s after its end",
                        address_.text(), MonotonicSeconds() - began));
    return status;
  }
  return WithCode(
      absl::Status(status.code(),
                   absl::StrCat("not all of the run is in ", address_.text(),
                                ": ", status.message(), "; it is in ", folder_,
                                ", and the same command with train.resume=AUTO "
                                "uploads it")),
      "storage/upload");
}

}  // namespace capstan
