// SPDX-License-Identifier: Apache-2.0
//
// A command that isn't the trainer's: `trainer --plugin_path=FOLDER greet`.
#include <iostream>
#include <memory>
#include <string>

#include "base/status.h"
#include "plugins/sdk/command.h"

namespace acme {

class Greet : public capstan::Command {
 public:
  static absl::StatusOr<std::unique_ptr<Greet>> Create(
      const capstan::NoConfig&) {
    return std::make_unique<Greet>();
  }

  void AddFlags(capstan::Flags& flags) override {
    flags.Add("--name", &name_, "Who is greeted").Required();
    flags.Add("--times", &times_, "How often").ShowDefault().Positive();
  }

  absl::StatusOr<int> Run(capstan::CommandHost& host) override {
    if (name_ == "nobody") {
      return capstan::FieldError("--name", "must be somebody");
    }
    for (int i = 0; i < times_; ++i) std::cout << "Hello " << name_ << "\n";
    std::cout << host.Path("here") << "\n";
    return 3;
  }

 private:
  std::string name_;
  int times_ = 1;
};

CAPSTAN_COMMAND("acme.command_greet", Greet, "Greet somebody");

}  // namespace acme
