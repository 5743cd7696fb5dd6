// SPDX-License-Identifier: Apache-2.0
//
// The conformance suite of commands. The third argument is the words of a call
// that succeeds; each test runs the command in processes of its own:
//  CAPSTAN_COMMAND_CONFORMANCE(Acme, "acme/libacme_command_words.so",
//                              "--text=acme/testdata/lines.txt --most=3");
// Where the command would train, the suite returns 0 in place of that.
#ifndef CAPSTAN_TESTS_CONFORMANCE_COMMAND_H_
#define CAPSTAN_TESTS_CONFORMANCE_COMMAND_H_

#include <string>
#include <vector>

#include "plugins/sdk/command.h"
#include "tests/conformance/plugin_under_test.h"

#define CAPSTAN_COMMAND_CONFORMANCE(name, library, words) \
  CAPSTAN_CONFORMANCE(CommandConformance, name, library, words)

namespace capstan {
namespace conformance {

class CommandConformance
    : public PluginConformance<Command, PluginCategory::kCommand> {
 protected:
  struct Outcome {
    int exit_code = -1;
    int signal = 0;         // that ended it, or 0
    bool returned = false;  // rather than having called exit
    std::string out;
    std::string err;
  };
  // `trainer NAME WORDS..`
  Outcome Call(const std::vector<std::string>& words) const;
  // Those of the test's parameter.
  std::vector<std::string> Words() const;
};

}  // namespace conformance
}  // namespace capstan

#endif  // CAPSTAN_TESTS_CONFORMANCE_COMMAND_H_
