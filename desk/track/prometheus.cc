// SPDX-License-Identifier: Apache-2.0
#include <map>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "desk/track/sink.h"

namespace capstan::track {
namespace {

std::string Label(const std::string& text) {
  return absl::StrReplaceAll(text,
                             {{"\\", "\\\\"}, {"\"", "\\\""}, {"\n", "\\n"}});
}

}  // namespace

std::string PrometheusText(const std::vector<Measures>& runs) {
  std::vector<std::string> names;  // in the order of the runs' lists
  std::map<std::string, std::string> families;
  for (const Measures& run : runs) {
    for (const Measure& measure : run.list) {
      std::string& text = families[measure.name];
      if (text.empty()) {
        names.emplace_back(measure.name);
        absl::StrAppend(&text, "# HELP capstan_", measure.name, " ",
                        measure.help, "\n# TYPE capstan_", measure.name,
                        measure.counter ? " counter\n" : " gauge\n");
      }
      for (const Measure::Value& value : measure.values) {
        absl::StrAppend(&text, "capstan_", measure.name, "{run=\"",
                        Label(run.run), "\",folder=\"", Label(run.folder),
                        "\"");
        if (value.rank >= 0) {
          absl::StrAppend(&text, ",rank=\"", value.rank, "\"");
        }
        absl::StrAppend(&text, "} ", NumberText(value.value), "\n");
      }
    }
  }
  std::string all;
  for (const std::string& name : names) all += families[name];
  return all;
}

}  // namespace capstan::track
