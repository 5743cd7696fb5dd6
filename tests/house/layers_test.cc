// SPDX-License-Identifier: Apache-2.0
//
// Which room may include which: kRooms. A source that includes something above
// it, or a room that the table doesn't have, fails.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"

namespace capstan {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// By folder: the rooms that its sources may include, beside itself. A source
// belongs to the longest folder that it lies in.
using Rooms = std::map<std::string, std::vector<std::string>>;

const char kSdk[] = "plugins/sdk";
const char kLib[] = "plugins/sdk/lib";
const char kAd[] = "plugins/algorithm_distillation";

const Rooms& TheRooms() {
  static const Rooms* const rooms = new Rooms{
      {"base", {}},
      // What an operator knows of the run that it is in.
      {"kernels/context", {}},
      {kSdk, {"base", "kernels/context"}},
      {kLib, {"base", "kernels", "kernels/context", kSdk}},
      {"kernels", {"base", "kernels/context"}},
      // Checks what kernels compute: a part of the core.
      {"kernels/witness", {"base", "kernels", "kernels/context"}},
      {"text", {"base", kSdk}},
      {"packaging", {}},
      // Devices that aren't there: for tests, and nobody below knows of them.
      {"testing/cuda", {"base", "kernels"}},
      {"testing/ptx", {"base", "kernels", "testing/cuda"}},
      {"testing/standin", {"base", "kernels", "testing/cuda"}},
      // Plugins: what they share lies in their category's folder, or in their
      // method's.
      {kAd,
       {"base", "kernels", "kernels/context", kSdk, kLib, "plugins/model"}},
      {"plugins/llada",
       {"base", "kernels", "kernels/context", "text", kSdk, kLib,
        "plugins/model", "plugins/objective"}},
      {"plugins/dpo", {"base", "kernels", kSdk, kLib, "plugins/objective"}},
      {"plugins/grpo",
       {"base", "kernels", "text", kSdk, kLib, "plugins/objective"}},
      {"plugins/model", {"base", "kernels", "kernels/context", kSdk, kLib}},
      {"plugins/objective", {"base", kSdk, kLib}},
      {"plugins/optimizer", {"base", "kernels", kSdk, kLib}},
      {"plugins/precision", {"base", kSdk, kLib}},
      {"strategies", {"base", "kernels", "kernels/context", kSdk, kLib}},
      {"datasets", {"base", "text", kSdk, kLib}},
      // Ranks: of training or of anything else.
      {"cluster/launch", {"base"}},
      {"cluster/meet", {"base", "cluster/launch"}},
      {"cluster/members", {"base", "cluster/launch", "cluster/meet"}},
      {"cluster/watch", {"base", "cluster/meet"}},
      {"cluster/comm",
       {"base", kSdk, "cluster/launch", "cluster/meet", "cluster/watch"}},
      {"cluster/example", {"base", kSdk, "cluster/comm", "cluster/launch"}},
      // What opens plugins, and configs by them.
      {"host/plugins", {"base", kSdk}},
      {"host/storage", {"base"}},
      {"host/config", {"base", kSdk, "host/plugins", "host/storage"}},
      // Loaded models at work.
      {"inference/load",
       {"base", "text", kSdk, kLib, "host/config", "host/plugins",
        "host/storage"}},
      {"inference/decode", {"base", kSdk, kLib, "inference/load"}},
      {"inference/engine", {"base", kSdk, "inference/decode"}},
      {"inference/evaluate",
       {"base", "text", kSdk, kLib, "cluster/comm", "inference/decode",
        "inference/load"}},
      // The trainer.
      {"trainer", {"base"}},  // main.cc
      {"trainer/optimizer", {"base", kSdk}},
      {"trainer/checkpoint",
       {"base", kSdk, kLib, "cluster/comm", "cluster/launch", "cluster/meet",
        "trainer/optimizer"}},
      {"trainer/data", {"base", kSdk}},
      {"trainer/metrics", {"base", kSdk}},
      {"trainer/memory", {kSdk, "trainer/metrics", "trainer/optimizer"}},
      {"trainer/profile", {"base", kSdk, "cluster/comm", "trainer/metrics"}},
      {"trainer/session",
       {"base", "kernels/context", "kernels/witness", kSdk, kLib,
        "cluster/comm", "cluster/launch", "cluster/watch", "host/config",
        "host/plugins", "host/storage", "inference/evaluate", "inference/load",
        "trainer/checkpoint", "trainer/data", "trainer/memory",
        "trainer/metrics", "trainer/optimizer", "trainer/profile"}},
      {"trainer/commands",
       {"base", "kernels/context", kSdk, kLib, "cluster/comm", "cluster/launch",
        "cluster/members", "cluster/watch", "host/config", "host/plugins",
        "host/storage", "inference/load", "trainer/checkpoint",
        "trainer/memory", "trainer/metrics", "trainer/profile",
        "trainer/session"}},
      // What new-plugin writes: plugins.
      {"desk/new_plugin/templates", {"base", "strategies", kSdk, kLib, kAd}},
      // What stands before and after a run.
      {"desk",
       {"base",
        "kernels/context",
        "text",
        kSdk,
        kLib,
        kAd,
        "cluster/comm",
        "cluster/launch",
        "cluster/watch",
        "host/config",
        "host/plugins",
        "host/storage",
        "inference/decode",
        "inference/engine",
        "inference/evaluate",
        "inference/load",
        "trainer/checkpoint",
        "trainer/commands",
        "trainer/data",
        "trainer/memory",
        "trainer/metrics",
        "trainer/optimizer",
        "trainer/profile",
        "trainer/session"}},
      // Takes the place of functions of the core, in tests.
      {"testing/faults",
       {"base", kSdk, "cluster/comm", "host/plugins", "trainer/memory"}},
      // Takes the place of functions of libc, in tests.
      {"testing/sim", {"testing/cuda"}},
      // A tool of the repository.
      {"testing/roofline",
       {"base", "kernels/context", kSdk, "cluster/comm", "cluster/launch",
        "host/config", "host/plugins", "trainer/commands", "trainer/memory",
        "trainer/metrics", "trainer/profile", "trainer/session"}},
  };
  return *rooms;
}

// Folders that include what their rooms may not.
const std::set<std::pair<std::string, std::string>>& Exceptions() {
  static const auto* const exceptions =
      new std::set<std::pair<std::string, std::string>>{};
  return *exceptions;
}

std::string FolderOf(const std::string& path) {
  return path.substr(0, std::min(path.rfind('/'), path.size()));
}

// The room that `path` lies in; "" if none.
std::string RoomOf(const Rooms& rooms, std::string path) {
  while (absl::StrContains(path, "/")) {
    path = FolderOf(path);
    if (rooms.count(path) != 0) return path;
  }
  return "";
}

bool IsSource(const fs::path& path) {
  const std::string ending = path.extension().string();
  return ending == ".cc" || ending == ".h" || ending == ".inc" ||
         ending == ".cu";
}

// Tests, and what only they use.
bool IsForTests(const fs::path& path) {
  const std::string stem = path.stem().string();
  for (const char* end : {"test", "testing", "bench"}) {
    if (stem == end || absl::EndsWith(stem, absl::StrCat("_", end))) {
      return true;
    }
  }
  return absl::StartsWith(stem, "fake_");
}

std::vector<std::string> Includes(const fs::path& path) {
  std::vector<std::string> found;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    absl::string_view rest = line;
    if (!absl::ConsumePrefix(&rest, "#include \"")) continue;
    found.emplace_back(rest.substr(0, rest.find('"')));
  }
  return found;
}

// What is wrong with `from`, a source of `rooms`, including `to`; "" if
// nothing.
std::string Problem(const Rooms& rooms, const std::string& from,
                    const std::string& to) {
  const std::string room = RoomOf(rooms, from);
  const std::string wanted = RoomOf(rooms, to);
  if (room == wanted) return "";
  const std::vector<std::string>& may = rooms.at(room);
  if (std::find(may.begin(), may.end(), wanted) != may.end()) return "";
  if (Exceptions().count({FolderOf(from), FolderOf(to)}) != 0) return "";
  return absl::StrCat(from, " includes ", to, ": ", room, " must not know of ",
                      wanted.empty() ? to : wanted);
}

// All that is wrong in the tree below `root`.
std::vector<std::string> Problems(const Rooms& rooms, const fs::path& root) {
  std::set<std::string> tops;
  for (const auto& [room, may] : rooms) {
    tops.insert(room.substr(0, room.find('/')));
  }
  std::vector<std::string> problems;
  for (const std::string& top : tops) {
    for (const auto& entry : fs::recursive_directory_iterator(root / top)) {
      if (!IsSource(entry.path()) || IsForTests(entry.path())) continue;
      const std::string path = entry.path().lexically_relative(root).string();
      if (RoomOf(rooms, path).empty()) {
        problems.push_back(absl::StrCat(path, " is in no room of the table"));
        continue;
      }
      for (const std::string& include : Includes(entry.path())) {
        // Others are libraries'.
        if (tops.count(include.substr(0, include.find('/'))) == 0) continue;
        std::string problem = Problem(rooms, path, include);
        if (!problem.empty()) problems.push_back(std::move(problem));
      }
    }
  }
  std::sort(problems.begin(), problems.end());
  return problems;
}

// This workspace, by the real path of this file.
fs::path Workspace() {
  return fs::canonical("tests/house/layers_test.cc")
      .parent_path()
      .parent_path()
      .parent_path();
}

TEST(LayersTest, NoSourceIncludesWhatIsAboveIt) {
  const fs::path root = Workspace();
  ASSERT_TRUE(fs::exists(root / "WORKSPACE")) << root;
  EXPECT_THAT(Problems(TheRooms(), root), IsEmpty());
}

// What `room` may include, and what that may, and so on.
void Reach(const Rooms& rooms, const std::string& room,
           std::set<std::string>* reached) {
  for (const std::string& below : rooms.at(room)) {
    if (reached->insert(below).second) Reach(rooms, below, reached);
  }
}

TEST(LayersTest, TheTableHasNoCircle) {
  for (const auto& [room, may] : TheRooms()) {
    for (const std::string& below : may) {
      ASSERT_EQ(TheRooms().count(below), 1) << below;
    }
    std::set<std::string> reached;
    Reach(TheRooms(), room, &reached);
    EXPECT_EQ(reached.count(room), 0) << room;
  }
}

class MadeUpTreeTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string path = testing::TempDir() + "/layers_XXXXXX";
    ASSERT_NE(mkdtemp(path.data()), nullptr);
    root_ = path;
    Write("base/a.h", "#include \"absl/x.h\"\n#include <kernels/b.h>\n");
    Write("kernels/cuda/b.cc", "#include \"base/a.h\"\n");
    Write("trainer/c.cc", "#include \"base/a.h\"\n#include \"kernels/b.h\"\n");
  }
  void TearDown() override { fs::remove_all(root_); }
  void Write(const std::string& path, const std::string& text) {
    fs::create_directories((root_ / path).parent_path());
    std::ofstream(root_ / path) << text;
  }
  std::vector<std::string> Found() { return Problems(rooms_, root_); }

  fs::path root_;
  const Rooms rooms_ = {
      {"base", {}}, {"kernels", {"base"}}, {"trainer", {"base", "kernels"}}};
};

TEST_F(MadeUpTreeTest, ArrowsDownAreFine) { EXPECT_THAT(Found(), IsEmpty()); }

TEST_F(MadeUpTreeTest, AnArrowUpIsNamed) {
  Write("base/d.inc", "x\n#include \"kernels/cuda/b.h\"\n");
  Write("kernels/e.cu", "#include \"trainer/c.h\"  // why not\n");
  EXPECT_THAT(Found(),
              ElementsAre("base/d.inc includes kernels/cuda/b.h: base must not "
                          "know of kernels",
                          "kernels/e.cu includes trainer/c.h: kernels must not "
                          "know of trainer"));
}

TEST_F(MadeUpTreeTest, TestsMayIncludeAll) {
  for (const char* name : {"d_test.cc", "testing.h", "d_testing.h", "fake_d.h",
                           "d_for_test.h", "d_bench.cc"}) {
    Write(absl::StrCat("base/", name), "#include \"trainer/c.h\"\n");
  }
  EXPECT_THAT(Found(), IsEmpty());
  Write("base/latest.cc", "#include \"trainer/c.h\"\n");
  EXPECT_THAT(Found(), ElementsAre(HasSubstr("base/latest.cc includes")));
}

TEST(RoomsTest, APartIsARoomOfItsOwn) {
  const Rooms rooms = {{"a", {}}, {"a/lib", {"a"}}};
  EXPECT_EQ(RoomOf(rooms, "a/lib/deep/x.h"), "a/lib");
  EXPECT_EQ(RoomOf(rooms, "a/library/x.h"), "a");
  EXPECT_EQ(RoomOf(rooms, "b/x.h"), "");
  EXPECT_EQ(Problem(rooms, "a/lib/x.cc", "a/x.h"), "");
  EXPECT_EQ(Problem(rooms, "a/x.cc", "a/lib/x.h"),
            "a/x.cc includes a/lib/x.h: a must not know of a/lib");
  EXPECT_EQ(Problem(rooms, "a/x.cc", "b/x.h"),
            "a/x.cc includes b/x.h: a must not know of b/x.h");
}

TEST_F(MadeUpTreeTest, ASourceOutsideOfRoomsIsNamed) {
  const Rooms rooms = {{"base/in", {}}};
  fs::remove_all(root_ / "base");
  Write("base/in/a.cc", "");
  Write("base/out/a.cc", "");
  EXPECT_THAT(Problems(rooms, root_),
              ElementsAre("base/out/a.cc is in no room of the table"));
}

}  // namespace
}  // namespace capstan
