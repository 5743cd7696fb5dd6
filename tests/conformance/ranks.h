// SPDX-License-Identifier: Apache-2.0
//
// Ranks as real processes, joined as the trainer joins them, that report to
// the test which has forked them.
#ifndef CAPSTAN_TESTS_CONFORMANCE_RANKS_H_
#define CAPSTAN_TESTS_CONFORMANCE_RANKS_H_

#include <cstdio>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "plugins/sdk/process_group.h"

namespace capstan {
namespace conformance {

// A rank's side: what it writes outlives it, however it ends.
class RankReport {
 public:
  explicit RankReport(const std::string& path);
  ~RankReport();
  RankReport(const RankReport&) = delete;
  RankReport& operator=(const RankReport&) = delete;

  // From here on the rank is busy with that.
  void Begin(const std::string& what);
  // May be called several times for a key.
  void Add(const std::string& key, const std::vector<double>& values);
  // Something that the test `topic` has to fail for.
  void Problem(const std::string& topic, const std::string& text);
  void Error(absl::string_view text);
  void Done();

 private:
  void Write(char kind, absl::string_view key, absl::string_view payload);

  std::FILE* const file_;
};

// The test's side.
struct RankResult {
  std::map<std::string, std::vector<std::vector<double>>> values;
  std::multimap<std::string, std::string> problems;  // by topic
  std::string busy_with;                             // the last Begin
  std::string error;                                 // the last Error
  bool done = false;
};

struct WorldResult {
  std::vector<RankResult> ranks;
  // Why not all ranks have come to their end; "" if they have.
  std::string failure;
};

using RankFunction =
    std::function<absl::Status(ProcessGroup* group, RankReport* report)>;

// Forks `world` ranks that join over Gloo on the loopback (a rank alone needs
// no group), each with one thread, and call `function`. They are killed when
// none of them has reported anything for `silence` seconds.
WorldResult RunRanks(int world, double silence, const RankFunction& function);

// A new folder of the test's own.
std::string NewConformanceFolder();

}  // namespace conformance
}  // namespace capstan

#endif  // CAPSTAN_TESTS_CONFORMANCE_RANKS_H_
