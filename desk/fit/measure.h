// SPDX-License-Identifier: Apache-2.0
//
// Steps of a run, taken on this machine.
#ifndef CAPSTAN_DESK_FIT_MEASURE_H_
#define CAPSTAN_DESK_FIT_MEASURE_H_

#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/scratch_folder.h"
#include "desk/fit/candidates.h"
#include "desk/fit/machine.h"
#include "desk/init/trial.h"
#include "desk/init/undo.h"
#include "trainer/commands/command.h"

namespace capstan::fit {

// Steps beside which others kept more cores busy are taken again, and a note
// says if that was in vain.
inline constexpr double kQuietCores = 0.15;

// Runs candidates for some steps each, in processes of their own, and keeps
// what came out for the next time, by config, machine and trainer. No thread
// may run that a fork would lose.
class Measurer {
 public:
  // `options` say which run it is, `config` is its whole text, and `progress`
  // is called with what is being measured. With `again` nothing is taken from
  // what was kept.
  Measurer(const RunOptions& options, const std::string& config, bool again,
           std::function<void(const std::string&)> progress);

  // Steps of the candidate for about `seconds`. An error: there was none; its
  // text is what the run printed last.
  absl::StatusOr<Measured> Measure(const Candidate& candidate, double seconds);

  // The most cores that others kept busy beside what was measured, now or when
  // what was kept was.
  double disturbed() const { return disturbed_; }
  // Whether anything was measured now, rather than kept.
  bool has_measured() const { return has_measured_; }

  // Of one candidate, measured several times: the median of what it took, and
  // the range of all.
  static Measured Together(const std::vector<Measured>& several);

 private:
  void Keep() const;

  const RunOptions options_;
  const std::function<void(const std::string&)> progress_;
  const ScratchFolder folder_;
  const init::Undo remove_folder_{[this] { init::RemoveTriedFolder(folder_); }};
  std::string kept_file_;        // "": there is no place for one
  std::vector<Measured> kept_;   // of earlier calls
  std::vector<Measured> taken_;  // of this one
  double disturbed_ = 0.0;
  bool has_measured_ = false;
};

}  // namespace capstan::fit

#endif  // CAPSTAN_DESK_FIT_MEASURE_H_
