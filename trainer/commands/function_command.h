// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TRAINER_COMMANDS_FUNCTION_COMMAND_H_
#define CAPSTAN_TRAINER_COMMANDS_FUNCTION_COMMAND_H_

#include <memory>

#include "trainer/commands/command.h"

namespace capstan {

// A command that is a function of its options, which the flags set.
template <typename Options>
class FunctionCommand : public Command {
 public:
  using AddFlagsFunction = void (*)(Flags& flags, Options* options);
  using RunFunction = absl::StatusOr<int> (*)(const Options& options);

  FunctionCommand(AddFlagsFunction add_flags, RunFunction run)
      : add_flags_(add_flags), run_(run) {}
  void AddFlags(Flags& flags) override { add_flags_(flags, &options_); }
  absl::StatusOr<int> Run(CommandHost&) override { return run_(options_); }

 private:
  const AddFlagsFunction add_flags_;
  const RunFunction run_;
  Options options_;
};

// A static object of this type registers such a command.
template <typename Options>
struct RegisterFunction {
  RegisterFunction(
      int order, const char* name, const char* help,
      typename FunctionCommand<Options>::AddFlagsFunction add_flags,
      typename FunctionCommand<Options>::RunFunction run) {
    RegisteredCommands().push_back(
        {order, name, help, [=] {
           return std::make_shared<FunctionCommand<Options>>(add_flags, run);
         }});
  }
};

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_COMMANDS_FUNCTION_COMMAND_H_
