// SPDX-License-Identifier: Apache-2.0
//
// Ranks as real processes, forked by a test, that join as the trainer's do and
// report to the test.
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

// A rank's side. What it writes survives the process, however that ends.
class RankReport {
 public:
  explicit RankReport(const std::string& path);
  ~RankReport();
  RankReport(const RankReport&) = delete;
  RankReport& operator=(const RankReport&) = delete;

  // Sets what the rank is busy with.
  void Begin(const std::string& what);
  // May be called several times per key.
  void Add(const std::string& key, const std::vector<double>& values);
  // Fails the test `topic`.
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
  // Why a rank didn't finish; "" if all did.
  std::string failure;
};

using RankFunction =
    std::function<absl::Status(ProcessGroup* group, RankReport* report)>;

// Forks `world` ranks, each with one thread, that join over Gloo on the
// loopback (a single rank has no group) and call `function`. Kills them if none
// reports anything for `silence` seconds.
WorldResult RunRanks(int world, double silence, const RankFunction& function);

// Creates a new folder for the test.
std::string NewConformanceFolder();

}  // namespace conformance
}  // namespace capstan

#endif  // CAPSTAN_TESTS_CONFORMANCE_RANKS_H_
