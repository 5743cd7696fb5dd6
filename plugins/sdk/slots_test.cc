// SPDX-License-Identifier: Apache-2.0
//
// What a plugin of an older SDK takes for granted of the headers: where the
// vtables have which function (slots.txt), that former Rooms have their
// symbols, and how large the structs are that plugins make.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <regex>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "kernels/context/gradient_sink.h"
#include "plugins/sdk/chat_template.h"
#include "plugins/sdk/command.h"
#include "plugins/sdk/dataset.h"
#include "plugins/sdk/model.h"
#include "plugins/sdk/model_tokenizer.h"
#include "plugins/sdk/objective.h"
#include "plugins/sdk/optimizer.h"
#include "plugins/sdk/plan.h"
#include "plugins/sdk/plugin.h"
#include "plugins/sdk/precision.h"
#include "plugins/sdk/process_group.h"
#include "plugins/sdk/strategy.h"
#include "plugins/sdk/token_model.h"
#include "plugins/sdk/tokenizer.h"

namespace capstan {
namespace {

namespace fs = std::filesystem;

// The functions of each interface, in order.
using Slots = std::map<std::string, std::vector<std::string>>;

std::string Runfile(const std::string& path) {
  return absl::StrCat(std::getenv("TEST_SRCDIR"), "/capstan/", path);
}

std::string ReadText(const std::string& path) {
  std::ifstream file(path);
  EXPECT_TRUE(file.is_open()) << path;
  return std::string((std::istreambuf_iterator<char>(file)), {});
}

// The function that `text` declares, without "= 0" or a body, in the form of
// slots.txt: "Room7", or behind "Room1: " if it has the comment "// Room1".
std::string Declaration(const std::string& text) {
  int depth = 0;
  size_t end = 0;
  for (; end < text.size(); ++end) {
    const char c = text[end];
    if (c == '(') ++depth;
    if (c == ')') --depth;
    if (depth == 0 && (c == ';' || c == '{' || c == '=')) break;
  }
  std::string line =
      std::regex_replace(text.substr(0, end), std::regex("\\s+"), " ");
  const std::string function =
      absl::StrReplaceAll(absl::StripSuffix(line, " "), {{"( ", "("}});
  std::smatch room;
  if (std::regex_match(function, room, std::regex("void (Room\\d+)\\(\\)"))) {
    return room.str(1);
  }
  if (std::regex_search(text.cbegin() + end, text.cend(), room,
                        std::regex("^; *// (Room\\d+)\n"))) {
    return absl::StrCat(room.str(1), ": ", function);
  }
  return function;
}

void AddSlots(std::string header, Slots* slots) {
  header =
      std::regex_replace(header, std::regex("//(?! Room\\d+\n)[^\n]*"), "");
  // Interfaces begin in the first column, classes within them don't.
  const std::regex word("(?:^|\n)(?:class|struct) (\\w+)[^;{]*\\{|\\bvirtual ");
  std::string name;
  for (std::sregex_iterator at(header.begin(), header.end(), word), end;
       at != end; ++at) {
    if ((*at)[1].matched) {
      name = (*at)[1];
    } else {
      (*slots)[name].push_back(
          Declaration(header.substr(at->position() + at->length())));
    }
  }
}

Slots SlotsOfHeaders() {
  Slots slots;
  for (const char* folder : {"plugins/sdk", "kernels/context"}) {
    for (const auto& entry : fs::directory_iterator(Runfile(folder))) {
      if (entry.path().extension() != ".h") continue;
      AddSlots(ReadText(entry.path().string()), &slots);
    }
  }
  return slots;
}

Slots SlotsOfFile() {
  Slots slots;
  std::string name;
  const std::string text = ReadText(Runfile("plugins/sdk/slots.txt"));
  for (absl::string_view line : absl::StrSplit(text, '\n', absl::SkipEmpty())) {
    if (absl::StartsWith(line, "#")) continue;
    if (absl::ConsumePrefix(&line, "  ")) {
      slots[name].emplace_back(line);
    } else {
      name = std::string(line);
    }
  }
  return slots;
}

std::string Text(const Slots& slots) {
  std::string text;
  for (const auto& [name, functions] : slots) {
    absl::StrAppend(&text, name, "\n");
    for (const std::string& function : functions) {
      absl::StrAppend(&text, "  ", function, "\n");
    }
  }
  return text;
}

TEST(SlotsTest, HeadersHaveThoseOfTheFile) {
  const Slots file = SlotsOfFile();
  const Slots headers = SlotsOfHeaders();
  EXPECT_GE(file.size(), 20);
  for (const auto& [name, functions] : file) {
    const auto found = headers.find(name);
    ASSERT_TRUE(found != headers.end()) << name;
    EXPECT_EQ(found->second, functions)
        << "Plugins of an older SDK have the former vtable of " << name
        << ": plugins/sdk/slots.txt says what may change.";
  }
  EXPECT_EQ(Text(headers), Text(file));
}

TEST(SlotsTest, DeclarationsAreRead) {
  Slots slots;
  AddSlots(R"(
class Other;
struct Plain {
  int x;
};
// A virtual class Comment {
class Interface final : public Base {
 public:
  struct Inner {
    int x;
  };
  virtual ~Interface();
  // One with a virtual default; and
  virtual std::vector<int> Get(const F& f = {},
                               int x = 0) const {
    return {};
  }
  virtual int Pure(int a) = 0;
  virtual void Late(
      int a,
      int b);  // Room12
  virtual void Next();     // Room13

 private:
  virtual void Room14();
};
)",
           &slots);
  EXPECT_EQ(Text(slots),
            "Interface\n"
            "  ~Interface()\n"
            "  std::vector<int> Get(const F& f = {}, int x = 0) const\n"
            "  int Pure(int a)\n"
            "  Room12: void Late(int a, int b)\n"
            "  Room13: void Next()\n"
            "  Room14\n");
}

// An older plugin's vtable has the Room's symbol, taken or not.
TEST(SlotsTest, EachRoomHasItsSymbol) {
  EXPECT_GT(LoraSpec().scale(), 0.0) << "uses the core, for it to be linked";
  int rooms = 0;
  for (const auto& [name, functions] : SlotsOfFile()) {
    for (const std::string& function : functions) {
      std::smatch room;
      if (!std::regex_search(function, room, std::regex("^(Room\\d+)\\b"))) {
        continue;
      }
      ++rooms;
      const std::string symbol = absl::StrCat(
          "_ZN7capstan", name.size(), name, room.length(1), room.str(1), "Ev");
      EXPECT_NE(dlsym(RTLD_DEFAULT, symbol.c_str()), nullptr)
          << symbol << " is missing in plugins/sdk/interfaces.cc";
    }
  }
  EXPECT_GE(rooms, 60);
}

// Of structs that a plugin makes and the core, or a newer plugin, reads; that
// lie in arrays; or that are returned by value.
TEST(SlotsTest, WhatPluginsMakeKeepsItsSize) {
  EXPECT_EQ(sizeof(ChatText), 56);
  EXPECT_EQ(sizeof(RenderedChat), 64);
  EXPECT_EQ(sizeof(CountedFile), 80);
  EXPECT_EQ(sizeof(UnitMemory), 48);
  EXPECT_EQ(sizeof(TokenShare), 16);
  EXPECT_EQ(sizeof(ParameterSpec), 96);
  EXPECT_EQ(sizeof(LossSum), 48);
  EXPECT_EQ(sizeof(MeasuredCurve), 120);
  EXPECT_EQ(sizeof(MeasuredArray), 80);
  EXPECT_EQ(sizeof(Measurement), 72);
  EXPECT_EQ(sizeof(MetricTags), 64);
  EXPECT_EQ(sizeof(Beam), 32);
  EXPECT_EQ(sizeof(OwnCurve), 40);
  EXPECT_EQ(sizeof(StrategyPlan), 160);
  EXPECT_EQ(sizeof(OwnedSlice), 24);
  EXPECT_EQ(sizeof(ParameterRange), 32);
  EXPECT_EQ(sizeof(OptimizerShard), 48);
  EXPECT_EQ(sizeof(OptimizerStateSpec), 56);
  EXPECT_EQ(sizeof(LossScaling), 40);
  EXPECT_EQ(sizeof(PrecisionPolicy), 56);
  EXPECT_EQ(sizeof(TokenInput), 32);
  EXPECT_EQ(sizeof(TokenTargets), 16);
  EXPECT_EQ(sizeof(Encoding), 72);
  EXPECT_EQ(sizeof(Tokenizer::SpecialIds), 24);
  EXPECT_EQ(sizeof(GradientSink::Place), 16);
  EXPECT_EQ(sizeof(PluginDescriptor), 48);
  EXPECT_EQ(sizeof(BatchPrompt), 56);
  EXPECT_EQ(sizeof(ChatMessage), 64);
  EXPECT_EQ(sizeof(ChatTurn), 24);
  EXPECT_EQ(sizeof(ChatInput), 104);
  EXPECT_EQ(sizeof(CommunicationStats), 24);
  EXPECT_EQ(sizeof(CommandHost::Ranks), 8);
  EXPECT_EQ(sizeof(TokenTotals), 16);
  EXPECT_EQ(sizeof(ModelTokenizer), 48);
}

}  // namespace
}  // namespace capstan
