// SPDX-License-Identifier: Apache-2.0
#include "trainer/session/resume_command.h"

#include <stdlib.h>

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/string_view.h"

namespace capstan {
namespace {

// As a shell's word.
std::string Quoted(const std::string& word) {
  const auto plain = [](char c) {
    return absl::ascii_isalnum(static_cast<unsigned char>(c)) ||
           absl::string_view("-_=./:,@%+").find(c) != absl::string_view::npos;
  };
  if (!word.empty() && std::all_of(word.begin(), word.end(), plain)) {
    return word;
  }
  return absl::StrCat("'", absl::StrReplaceAll(word, {{"'", "'\\''"}}), "'");
}

}  // namespace

std::string ResumeCommand(const std::vector<std::string>& words,
                          const RunConfig& config,
                          const std::string& output_dir) {
  if (words.empty()) return "";
  std::vector<std::string> all = words;
  if (config.train().resume() != Train::AUTO) {
    all.insert(all.end(), {"--set", "train.resume=AUTO"});
  }
  if (config.output_dir().empty()) {
    all.insert(all.end(), {"--set", absl::StrCat("output_dir=", output_dir)});
  }
  return ShellText(all);
}

std::string ShellText(const std::vector<std::string>& words) {
  return absl::StrJoin(words, " ",
                       [](std::string* out, const std::string& word) {
                         absl::StrAppend(out, Quoted(word));
                       });
}

std::vector<std::string> CommandWords(int argc, const char* const* argv) {
  std::vector<std::string> words(argv, argv + argc);
  if (words.empty() || getenv("BUILD_WORKSPACE_DIRECTORY") == nullptr) {
    return words;
  }
  words.erase(words.begin());
  words.insert(words.begin(), {"bazel", "run", "//trainer", "--"});
  return words;
}

}  // namespace capstan
