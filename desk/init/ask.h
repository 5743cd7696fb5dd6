// SPDX-License-Identifier: Apache-2.0
//
// Questions with a proposal each: by arrow keys on a terminal, as numbered
// lines elsewhere.
#ifndef CAPSTAN_DESK_INIT_ASK_H_
#define CAPSTAN_DESK_INIT_ASK_H_

#include <functional>
#include <string>
#include <vector>

#include "absl/types/optional.h"

namespace capstan::init {

struct Answer {
  std::string text;     // what is chosen: "1h"
  std::string meaning;  // shown beside it; may be empty
};

class Asker {
 public:
  // Reads from `in` and writes to `out`, which aren't owned. `takes_proposals`:
  // nothing is asked.
  Asker(int in, int out, bool takes_proposals);

  // The text of the answer that is chosen. `proposed` is an index. A signal
  // that ends the program restores the terminal first.
  std::string Choose(const std::string& question,
                     const std::vector<Answer>& answers, size_t proposed);

  // A line of text; an empty one is `proposed`. Asks again while `problem`
  // returns something, which is shown. Not on a proposal.
  std::string Line(
      const std::string& question, const std::string& proposed,
      const std::function<std::string(const std::string&)>& problem);

 private:
  // nullopt at the end of the input, after which proposals are taken.
  absl::optional<std::string> ReadLine();
  // -1 at the end.
  int ReadByte();
  size_t ChooseByKeys(const std::string& question,
                      const std::vector<Answer>& answers, size_t proposed);
  size_t ChooseByNumber(const std::string& question,
                        const std::vector<Answer>& answers, size_t proposed);

  const int in_;
  const int out_;
  const bool terminal_;
  bool takes_proposals_;
};

}  // namespace capstan::init

#endif  // CAPSTAN_DESK_INIT_ASK_H_
