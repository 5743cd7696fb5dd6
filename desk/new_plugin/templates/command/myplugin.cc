// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <fstream>
#include <iostream>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "plugins/sdk/command.h"

namespace myvendor::myplugin {

// `trainer mycommand --text=FILE`: the words that are most often in a text.
class MyPlugin final : public capstan::Command {
 public:
  static absl::StatusOr<std::unique_ptr<MyPlugin>> Create(
      const capstan::NoConfig&) {
    return std::make_unique<MyPlugin>();
  }

  void AddFlags(capstan::Flags& flags) override {
    flags.Add("--text", &text_, "The text to count").Type("FILE").Required();
    flags.Add("--most", &most_, "How many words to print")
        .ShowDefault()
        .Positive();
  }

  // An error is printed as one line, with its flag, and the exit code is 1.
  absl::StatusOr<int> Run(capstan::CommandHost& host) override {
    std::ifstream file(host.Path(text_));
    std::map<std::string, int64_t> counts;
    for (std::string word; file >> word;) ++counts[word];
    if (counts.empty()) {
      return capstan::FieldError("--text", text_ + " has no words to read");
    }
    std::vector<std::pair<int64_t, std::string>> words;
    for (const auto& [word, count] : counts) words.emplace_back(-count, word);
    std::sort(words.begin(), words.end());
    const auto most = static_cast<size_t>(most_);
    for (size_t i = 0; i < std::min(most, words.size()); ++i) {
      std::cout << -words[i].first << " " << words[i].second << "\n";
    }
    return 0;
  }

 private:
  std::string text_;
  int64_t most_ = 10;
};

CAPSTAN_COMMAND("myvendor.myplugin", MyPlugin, "Count the words of a text");

}  // namespace myvendor::myplugin
