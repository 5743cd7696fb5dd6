// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include <string>
#include <vector>

#include "base/json.h"
#include "base/status.h"
#include "desk/run_folder/run_record.h"
#include "desk/why_slow/causes.h"
#include "desk/why_slow/page.h"
#include "desk/why_slow/speed_record.h"
#include "trainer/commands/command.h"
#include "trainer/metrics/console.h"

namespace capstan::why_slow {
namespace {

struct WhySlowOptions {
  std::string run;
  bool json = false;
};

absl::StatusOr<int> WhySlow(const WhySlowOptions& options) {
  CAPSTAN_ASSIGN_OR_RETURN(const std::string folder, FindRun(options.run));
  CAPSTAN_ASSIGN_OR_RETURN(const SpeedRecord run, ReadSpeedRecord(folder));
  const Summary summary = Summarize(run);
  const std::vector<Cause> causes = FindCauses(run, summary);
  const Console console(STDOUT_FILENO);
  console.Write(
      options.json
          ? JsonText(PageJson(run, summary, causes), 2) + "\n"
          : PrintableText(PageText(run, summary, causes, console.Columns())));
  return 0;
}

void AddFlags(Flags& flags, WhySlowOptions* options) {
  flags
      .Add("run", &options->run,
           "A run's folder, which may be under way (runs/NAME/latest: the "
           "newest)")
      .Type("FOLDER")
      .Required();
  flags.Add("--json", &options->json, "Print JSON, for programs");
}

const RegisterFunction<WhySlowOptions> why_slow("why-slow", AddFlags, WhySlow);

}  // namespace
}  // namespace capstan::why_slow
