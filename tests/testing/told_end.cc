// SPDX-License-Identifier: Apache-2.0
#include "tests/testing/told_end.h"

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace capstan {
namespace {

// What events.jsonl answers to the request; "" as long as there is nothing.
std::string AnswerTo(const std::string& id, const std::string& folder) {
  std::ifstream events(folder + "/events.jsonl");
  for (std::string line; std::getline(events, line);) {
    // The last line may not be whole yet.
    const auto event = nlohmann::json::parse(line, nullptr, false);
    if (event.is_object() && event.value("id", "") == id) {
      return event.value("text", "");
    }
  }
  return "";
}

}  // namespace

int64_t EndAfter(int64_t step, const std::string& folder,
                 TrainerProcess* process) {
  for (;; step *= 2) {
    const std::string id = absl::StrCat("end", step);
    std::ofstream(folder + "/control.jsonl", std::ios::app)
        << absl::StrCat("{\"id\": \"", id,
                        "\", \"do\": \"max_steps\", \"value\": ", step, "}\n");
    std::string answer;
    const auto answered = [&] {
      answer = AnswerTo(id, folder);
      return !answer.empty();
    };
    if (!process->WaitUntil(answered)) {
      ADD_FAILURE() << "the run isn't told its end: " << process->Err();
      return 0;
    }
    if (!absl::StartsWith(answer, "refused: ")) return step;
  }
}

}  // namespace capstan
