// SPDX-License-Identifier: Apache-2.0
#include "desk/run_folder/rank_lines.h"

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "desk/run_folder/json_fields.h"

namespace capstan {
namespace {

using Json = nlohmann::ordered_json;

// The numbers of a line, by their keys.
constexpr std::pair<const char*, double RankTimes::*> kTimes[] = {
    {"steps", &RankTimes::steps},
    {"step_seconds", &RankTimes::step_seconds},
    {"data", &RankTimes::data},
    {"rollout", &RankTimes::rollout},
    {"forward", &RankTimes::forward},
    {"backward", &RankTimes::backward},
    {"optimizer", &RankTimes::optimizer},
    {"exposed", &RankTimes::exposed},
    {"rest", &RankTimes::rest},
    {"outside", &RankTimes::outside},
    {"off_core", &RankTimes::off_core},
    {"runqueue_seconds", &RankTimes::runqueue_seconds},
    {"cpu_seconds", &RankTimes::cpu_seconds},
    {"steal_seconds", &RankTimes::steal_seconds},
    {"iowait_seconds", &RankTimes::iowait_seconds},
    {"major_faults", &RankTimes::major_faults},
    {"read_bytes", &RankTimes::read_bytes}};

double Number(const Json& line, const char* key) {
  return NumberOf(line, key).value_or(0.0);
}

// A count, however large or small the number is.
int64_t Count(const Json& line, const char* key) {
  return static_cast<int64_t>(std::clamp(Number(line, key), 0.0, 1e15));
}

}  // namespace

std::map<int, std::string> RankFiles(const std::string& folder) {
  std::map<int, std::string> files;
  std::error_code error;
  for (std::filesystem::directory_iterator it(folder + "/ranks", error), end;
       !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename().string();
    absl::string_view digits = name;
    int rank = -1;
    if (absl::ConsumePrefix(&digits, "rank-") &&
        absl::ConsumeSuffix(&digits, ".jsonl") &&
        absl::SimpleAtoi(digits, &rank) && rank >= 0) {
      files.emplace(rank, it->path().string());
    }
  }
  return files;
}

void RankTimes::Add(const RankTimes& other) {
  for (const auto& [key, field] : kTimes) this->*field += other.*field;
  for (const auto& [name, seconds] : other.actions) actions[name] += seconds;
}

void RankTimes::Divide(double by) {
  for (const auto& [key, field] : kTimes) this->*field /= by;
  for (auto& [name, seconds] : actions) seconds /= by;
}

RankTimes MeanPerStep(int64_t lines, const RankTimes& all,
                      const RankTimes& without_first) {
  RankTimes mean =
      lines > 2 && without_first.steps != 0.0 ? without_first : all;
  const double steps = mean.steps;
  mean.Divide(steps);
  mean.steps = steps;
  return mean;
}

bool IsRankFacts(const Json& line) {
  return line.is_object() && line.contains("rank");
}

RankFacts RankFactsOf(const Json& line) {
  RankFacts facts;
  facts.rank =
      static_cast<int>(std::min(Count(line, "rank"), int64_t{1} << 30));
  facts.world_size =
      static_cast<int>(std::min(Count(line, "world_size"), int64_t{1} << 30));
  facts.host = TextOf(line, "host");
  facts.device = TextOf(line, "device");
  facts.cores = std::max(1.0, Number(line, "cores"));
  facts.threads = std::max(1.0, Number(line, "threads"));
  facts.bound = line.contains("bound_to");
  facts.restart = Count(line, "restart");
  facts.first_step = Count(line, "first_step");
  facts.micro_batch_size = Count(line, "micro_batch_size");
  facts.ready_seconds = Number(line, "ready_seconds");
  facts.ready_cpu_seconds = Number(line, "ready_cpu_seconds");
  facts.ready_read_bytes = Number(line, "ready_read_bytes");
  return facts;
}

RankTimes RankTimesOf(const Json& line, double missing) {
  RankTimes times;
  for (const auto& [key, field] : kTimes) {
    times.*field = NumberOf(line, key).value_or(missing);
  }
  const auto actions = line.find("actions");
  if (actions != line.end() && actions->is_object()) {
    for (const auto& [name, seconds] : actions->items()) {
      if (seconds.is_number()) times.actions[name] = seconds.get<double>();
    }
  }
  return times;
}

}  // namespace capstan
