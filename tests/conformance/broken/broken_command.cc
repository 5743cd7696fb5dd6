// SPDX-License-Identifier: Apache-2.0
//
// Says numbers, with the bug that ACME_BROKEN_COMMAND names: commands have no
// config, and some bugs are at work before there are flags.
#include <cstdlib>
#include <iostream>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "plugins/sdk/command.h"

namespace acme {
namespace {

class BrokenCommand final : public capstan::Command {
 public:
  static absl::StatusOr<std::unique_ptr<BrokenCommand>> Create(
      const capstan::NoConfig&) {
    return std::make_unique<BrokenCommand>();
  }

  void AddFlags(capstan::Flags& flags) override {
    static int shared = 3;
    if (Bug("CHATTERS")) std::cout << "adding flags" << std::endl;
    if (Bug("ADDS_ONCE") && added_) return;
    added_ = true;
    flags.Add("--count", Bug("SHARED_FLAGS") ? &shared : &count_, "How far")
        .ShowDefault();
  }

  absl::StatusOr<int> Run(capstan::CommandHost&) override {
    if (count_ < 0) {
      if (Bug("CRASHES")) std::abort();
      if (Bug("LONG_ERROR")) {
        return absl::InvalidArgumentError("the count\nis negative");
      }
      return capstan::FieldError(Bug("STRANGE_FLAG") ? "--number" : "--count",
                                 "must not be negative");
    }
    for (int i = 0; i < count_; ++i) std::cout << i << "\n";
    if (Bug("EXITS")) std::_Exit(0);
    return 0;
  }

 private:
  static bool Bug(const std::string& name) {
    const char* const bug = std::getenv("ACME_BROKEN_COMMAND");
    return bug != nullptr && name == bug;
  }

  int count_ = 3;
  bool added_ = false;
};

CAPSTAN_COMMAND("acme.command_broken", BrokenCommand, "Say numbers");

}  // namespace
}  // namespace acme
