// SPDX-License-Identifier: Apache-2.0
//
// A test that sleeps until another has surely got somewhere fails on a busy
// machine, or wastes time on an idle one: it polls, with a limit. What else
// sleeps says why, on its line or on the one before: "sleeps: a slow save".
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace capstan {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;

// Sleeps without a reason, by file.
using Sleeps = std::map<std::string, int>;

// Those that are still to be mended: the numbers only fall.
const Sleeps& ToMend() {
  static const Sleeps* const sleeps = new Sleeps{
      {"cluster/comm/agree_test.cc", 2},
      {"cluster/comm/hosts/hosts_group_test.cc", 2},
      {"cluster/comm/process_group_test.cc", 1},
      {"cluster/comm/shm/shm_group_test.cc", 3},
      {"cluster/launch/launch_for_test.h", 2},
      {"cluster/launch/launcher_test.cc", 4},
      {"cluster/launch/restarts_test.cc", 1},
      {"cluster/launch/signals_test.cc", 2},
      {"cluster/meet/rendezvous_test.cc", 4},
      {"cluster/meet/server_test.cc", 1},
      {"cluster/watch/watchdog_test.cc", 1},
      {"host/plugins/probe_test.cc", 1},
      {"testing/standin/nccl/nccl_test.cc", 2},
      {"tests/clusters/hosts_test.sh", 2},
      {"tests/clusters/slurm_cluster.sh", 2},
      {"tests/end_to_end/collect_test.cc", 1},
      {"tests/end_to_end/kill_test.cc", 3},
      {"tests/end_to_end/stop_test.cc", 3},
      {"tests/end_to_end/torchrun_test.cc", 1},
      {"tests/faults/hang_test.cc", 1},
      {"tests/faults/mirror_test.cc", 1},
      {"tests/faults/restart_test.cc", 2},
      {"tests/faults/soak.sh", 1},
      {"tests/plugins/acme/broken.cc", 2},
      {"trainer/checkpoint/mirror_link_test.cc", 4},
      {"desk/compare/trainer_child_test.cc", 2},
      {"trainer/session/output_folder_test.cc", 1},
  };
  return *sleeps;
}

bool IsForTests(const fs::path& path) {
  const std::string ending = path.extension().string();
  if (ending != ".cc" && ending != ".h" && ending != ".sh") return false;
  return absl::StartsWith(path.string(), "tests/") ||
         absl::EndsWith(path.stem().string(), "_test");
}

bool IsSleep(absl::string_view line, bool shell) {
  if (shell) {
    for (const char* before : {" ", ";"}) {
      for (const char digit : absl::string_view("0123456789$\"")) {
        const std::string call =
            absl::StrCat(before, "sleep ", std::string(1, digit));
        if (absl::StrContains(absl::StrCat(" ", line), call)) return true;
      }
    }
    return false;
  }
  for (const char* call : {"sleep", "usleep", "nanosleep", "sleep_for",
                           "sleep_until", "SleepFor"}) {
    if (absl::StrContains(line, absl::StrCat(call, "("))) return true;
  }
  return false;
}

int SleepsWithoutReason(const fs::path& path) {
  const bool shell = path.extension() == ".sh";
  std::ifstream file(path);
  int count = 0;
  std::string before;
  for (std::string line; std::getline(file, line); before = line) {
    if (IsSleep(line, shell) && !absl::StrContains(line, " sleeps: ") &&
        !absl::StrContains(before, " sleeps: ")) {
      ++count;
    }
  }
  return count;
}

Sleeps Found(const fs::path& root) {
  Sleeps found;
  for (auto it = fs::recursive_directory_iterator(root);
       it != fs::recursive_directory_iterator(); ++it) {
    const std::string name = it->path().filename().string();
    // bazel-bin and others, .git.
    if (it.depth() == 0 &&
        (absl::StartsWith(name, "bazel-") || absl::StartsWith(name, "."))) {
      it.disable_recursion_pending();
      continue;
    }
    const fs::path path = it->path().lexically_relative(root);
    if (!it->is_regular_file() || !IsForTests(path)) continue;
    const int count = SleepsWithoutReason(it->path());
    if (count > 0) found[path.string()] = count;
  }
  return found;
}

TEST(SleepsTest, NoTestSleepsForAnothersProgress) {
  // This workspace, by the real path of this file.
  const fs::path root = fs::canonical("tests/house/sleeps_test.cc")
                            .parent_path()
                            .parent_path()
                            .parent_path();
  ASSERT_TRUE(fs::exists(root / "WORKSPACE")) << root;
  EXPECT_EQ(Found(root), ToMend())
      << "poll with a limit, or say why: // sleeps: a slow save";
}

TEST(SleepsTest, ASleepWithoutReasonIsFound) {
  std::string made = testing::TempDir() + "/sleeps_XXXXXX";
  ASSERT_NE(mkdtemp(made.data()), nullptr);
  const fs::path root = made;
  const auto write = [&root](const std::string& path, const std::string& text) {
    fs::create_directories((root / path).parent_path());
    std::ofstream(root / path) << text;
  };
  const std::string call = absl::StrCat("usleep", "(1);\n");
  write("base/a.cc", call);
  write("base/b_test.cc", absl::StrCat("// sleeps: late\n", call));
  write("tests/c/c.sh", "sleep 1  # sleeps: polls\n");
  EXPECT_THAT(Found(root), IsEmpty());
  write("base/a_test.cc", call);
  write("tests/c/d.h", absl::StrCat("// sleeps: late\n", call, call));
  write("tests/c/d.sh", "sleep 1\n");
  EXPECT_THAT(Found(root),
              ElementsAre(Pair("base/a_test.cc", 1), Pair("tests/c/d.h", 1),
                          Pair("tests/c/d.sh", 1)));
  fs::remove_all(root);
}

}  // namespace
}  // namespace capstan
