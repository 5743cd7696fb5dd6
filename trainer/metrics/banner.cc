// SPDX-License-Identifier: Apache-2.0
#include "trainer/metrics/banner.h"

#include "absl/strings/str_cat.h"
#include "trainer/metrics/number_text.h"

namespace capstan {
namespace {

std::string Parameters(int64_t parameters) {
  if (parameters < 1000) return absl::StrCat(parameters);
  return absl::StrCat(ShortCount(static_cast<double>(parameters)), " (",
                      WithCommas(parameters), ")");
}

std::string Steps(const RunFacts& facts) {
  std::string text = WithCommas(facts.max_steps);
  if (facts.first_step > 0) {
    absl::StrAppend(&text, ", resumed at step ", WithCommas(facts.first_step));
  }
  return text;
}

}  // namespace

std::string BannerText(const RunFacts& facts, bool bold) {
  const std::string batch = absl::StrCat(
      facts.global_batch_size, " = micro ", facts.micro_batch_size, " x ",
      facts.world_size, facts.world_size == 1 ? " rank" : " ranks",
      " x accumulation ", facts.accumulation);
  return absl::StrCat(bold ? "\x1b[1m" : "", "Capstan: ", facts.name,
                      bold ? "\x1b[0m\n" : "\n",
                      TableText({
                          {"ranks", absl::StrCat(facts.world_size)},
                          {"devices", facts.device},
                          {"strategy", facts.strategy},
                          {"precision", facts.precision},
                          {"parameters", Parameters(facts.parameters)},
                          {"global batch", batch},
                          {"steps", Steps(facts)},
                          {"output", facts.output_dir},
                      }),
                      "\n");
}

}  // namespace capstan
