// SPDX-License-Identifier: Apache-2.0
//
// What tests of imports have in common.
#ifndef CAPSTAN_DESK_IMPORT_IMPORT_TESTING_H_
#define CAPSTAN_DESK_IMPORT_IMPORT_TESTING_H_

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/files.h"
#include "base/scratch_folder.h"
#include "desk/import/draft.h"
#include "host/config/load_config.h"

namespace capstan::import {

class ImportTest : public ::testing::Test {
 protected:
  std::string Write(const std::string& name, const std::string& text) {
    const std::string path = absl::StrCat(folder_.path(), "/", name);
    EXPECT_TRUE(MakeFolder(path.substr(0, path.rfind('/'))).ok());
    EXPECT_TRUE(WriteWholeFile(path, text).ok());
    return path;
  }
  Draft Make(const std::vector<std::string>& files) {
    absl::StatusOr<Draft> draft = Import(files, folder_.path());
    EXPECT_TRUE(draft.ok()) << draft.status();
    return draft.ok() ? *std::move(draft) : Draft();
  }
  // Of one file with this text.
  Draft Of(const std::string& name, const std::string& text) {
    return Make({Write(name, text)});
  }
  std::string Error(const std::string& file) {
    return std::string(Import({file}, folder_.path()).status().message());
  }
  // The run that the written config is.
  absl::StatusOr<LoadedConfig> Load(const Draft& draft) {
    ConfigContext context;
    context.host = &host_;
    context.caller_folder = folder_.path();
    return LoadConfig({Write("run.pbtxt", ConfigText(draft, ""))}, {}, context);
  }
  static std::vector<std::string> Keys(const Draft& draft, Effect effect) {
    std::vector<std::string> keys;
    for (const TableLine& line : draft.table()) {
      if (line.effect == effect) keys.push_back(line.key);
    }
    return keys;
  }

  // What `wanted` says, with semicolons between: "train.seed: 7", "no FIELD";
  // of the table "lost KEY", "differs KEY", "default KEY", "unused KEY", each
  // also with "not" before it, and "whole" if nothing is lost or differs.
  static void Expect(const Draft& draft, absl::string_view wanted) {
    static constexpr std::pair<const char*, Effect> kEffects[] = {
        {"lost ", Effect::kLost},
        {"differs ", Effect::kDiffers},
        {"default ", Effect::kDefault},
        {"unused ", Effect::kNothing}};
    for (absl::string_view item : absl::StrSplit(wanted, ';')) {
      item = absl::StripAsciiWhitespace(item);
      SCOPED_TRACE(item);
      const bool negated = absl::ConsumePrefix(&item, "not ");
      const auto* const effect = std::find_if(
          std::begin(kEffects), std::end(kEffects), [&](const auto& effect) {
            return absl::ConsumePrefix(&item, effect.first);
          });
      const std::pair<absl::string_view, absl::string_view> field =
          absl::StrSplit(item, absl::MaxSplits(':', 1));
      if (effect != std::end(kEffects)) {
        EXPECT_EQ(::testing::Value(Keys(draft, effect->second),
                                   ::testing::Contains(std::string(item))),
                  !negated);
      } else if (item == "whole") {
        EXPECT_FALSE(draft.loses()) << TableText(draft, 80);
      } else if (absl::ConsumePrefix(&item, "no ")) {
        EXPECT_FALSE(draft.Has(std::string(item)));
      } else {
        EXPECT_TRUE(absl::StrContains(item, ':') && !negated);
        EXPECT_EQ(draft.Text(std::string(field.first)),
                  absl::StripLeadingAsciiWhitespace(field.second));
      }
    }
  }

  ScratchFolder folder_;
  PluginHost host_{
      {absl::StrCat(std::getenv("TEST_SRCDIR"), "/capstan/trainer/plugins")}};
};

}  // namespace capstan::import

#endif  // CAPSTAN_DESK_IMPORT_IMPORT_TESTING_H_
