// SPDX-License-Identifier: Apache-2.0
#include "desk/init/trial.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <numeric>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/error_code.h"
#include "base/files.h"
#include "base/json.h"
#include "base/machine.h"
#include "base/status.h"
#include "base/subprocess.h"
#include "desk/run_folder/rank_lines.h"
#include "host/config/load_config.h"
#include "host/plugins/plugin_host.h"
#include "inference/load/run_tokenizer.h"
#include "kernels/context/run_device.h"
#include "plugins/algorithm_distillation/history_source.h"
#include "plugins/sdk/dataset.h"
#include "trainer/commands/fit_run.h"
#include "trainer/commands/prepare.h"
#include "trainer/metrics/console.h"
#include "trainer/session/micro_batch.h"
#include "trainer/session/run_parts.h"

namespace capstan::init {
namespace {

// Of which lengths are looked up.
constexpr int64_t kMostLengths = 1000000;

// The data of a draft, and the plugins that read it.
struct Opened {
  std::unique_ptr<PluginHost> host;
  std::unique_ptr<DatasetReader> reader;
};

absl::StatusOr<Opened> Open(const std::string& draft) {
  Opened opened;
  opened.host = std::make_unique<PluginHost>(std::vector<std::string>());
  CAPSTAN_ASSIGN_OR_RETURN(
      const LoadedConfig loaded,
      LoadConfig({draft}, {}, DefaultConfigContext(opened.host.get())));
  RunTokenizer tokenizer(TokenizerFolders(loaded.config));
  CAPSTAN_RETURN_IF_ERROR(tokenizer.AddTokens(loaded).status());
  CAPSTAN_ASSIGN_OR_RETURN(
      opened.reader,
      OpenReader(loaded, "train_data",
                 tokenizer.WithNewTokens(loaded.config.train_data()), tokenizer,
                 *opened.host));
  return opened;
}

// An error of a draft is told without the draft's place, which is gone by then.
absl::Status WithoutPlace(const absl::Status& status,
                          const std::string& draft) {
  const std::string message(status.message());
  const size_t place = message.find(draft);
  if (place != 0) return status;
  const size_t end = message.find(": ");
  if (end == std::string::npos) return status;
  return WithMessage(status, message.substr(end + 2));
}

// The lines of a run's metrics so far. The first step allocates; the next ones
// are the rule.
TriedSteps ReadSteps(const std::string& folder) {
  TriedSteps tried;
  const absl::StatusOr<std::string> text =
      ReadWholeFile(folder + "/metrics.jsonl");
  if (!text.ok()) return tried;
  bool first = true;
  std::vector<double> exposed;
  const auto number = [](const nlohmann::json& json, const char* key) {
    return json.contains(key) && json[key].is_number() ? json[key].get<double>()
                                                       : 0.0;
  };
  for (const absl::string_view line : absl::StrSplit(*text, '\n')) {
    const auto json = ParseJson<nlohmann::json>(line);
    if (!json.is_object() || !json.contains("step_seconds") ||
        !json["step_seconds"].is_number()) {
      continue;
    }
    if (!first) {
      tried.seconds.push_back(json["step_seconds"].get<double>());
      exposed.push_back(number(json, "exposed_seconds"));
      tried.bytes_sent = number(json, "bytes_sent");
    }
    first = false;
  }
  if (!exposed.empty()) {
    tried.exposed = *std::min_element(exposed.begin(), exposed.end());
  }
  return tried;
}

// The processes of a run's ranks.
std::vector<int64_t> RankProcesses(const std::string& folder) {
  std::vector<int64_t> processes;
  for (const auto& [rank, path] : RankFiles(folder)) {
    const absl::StatusOr<std::string> text = ReadWholeFile(path);
    if (!text.ok()) continue;
    const auto json =
        ParseJson<nlohmann::json>(text->substr(0, text->find('\n')));
    if (!json.is_object() || !json.contains("pid")) continue;
    processes.push_back(json["pid"].get<int64_t>());
  }
  return processes;
}

// The peak of the largest of the processes.
int64_t LargestOf(const std::vector<int64_t>& processes) {
  int64_t largest = 0;
  for (const int64_t process : processes) {
    largest = std::max(
        largest, 1024 * NumberAfter(absl::StrCat("/proc/", process, "/status"),
                                    "VmHWM:"));
  }
  return largest;
}

// The sum of a line's words from `first` on, `count` of them, as seconds.
double SecondsIn(const std::string& line, size_t first, size_t count) {
  const std::vector<std::string> words =
      absl::StrSplit(line, ' ', absl::SkipWhitespace());
  double ticks = 0.0;
  for (size_t i = first; i < std::min(first + count, words.size()); ++i) {
    double number = 0.0;
    if (absl::SimpleAtod(words[i], &number)) ticks += number;
  }
  return ticks / static_cast<double>(sysconf(_SC_CLK_TCK));
}

// CPU time that the machine has given to all but these processes.
double SecondsOfOthers(const std::vector<int64_t>& processes) {
  // user nice system, then idle and iowait, then irq softirq steal.
  const std::string all = FirstLineIn("/proc/stat");
  double seconds = SecondsIn(all, 1, 3) + SecondsIn(all, 6, 3);
  for (const int64_t process : processes) {
    const std::string line =
        FirstLineIn(absl::StrCat("/proc/", process, "/stat"));
    // utime and stime are the twelfth and thirteenth behind the name.
    const size_t name = line.rfind(')');
    if (name != line.npos) seconds -= SecondsIn(line.substr(name + 1), 11, 2);
  }
  return seconds;
}

}  // namespace

void RemoveTriedFolder(const ScratchFolder& folder) {
  if (!folder.status().ok()) return;
  for (int i = 0; i < 100 && !RemoveTree(folder.path()).ok(); ++i) {
    absl::SleepFor(absl::Milliseconds(10));
  }
}

absl::StatusOr<std::string> Trial::Draft(const Recipe& recipe) {
  CAPSTAN_RETURN_IF_ERROR(folder_.status());
  const std::string path = folder_.path() + "/draft.pbtxt";
  // No path is below this folder: all become absolute.
  CAPSTAN_RETURN_IF_ERROR(
      WriteWholeFile(path, ConfigText(recipe, "/draft/of/init", "init")));
  return path;
}

absl::StatusOr<DataFacts> Trial::Read(const Recipe& recipe) {
  CAPSTAN_ASSIGN_OR_RETURN(const std::string draft, Draft(recipe));
  const absl::StatusOr<Opened> opened = Open(draft);
  CAPSTAN_RETURN_IF_ERROR(WithoutPlace(opened.status(), draft));
  const DatasetReader& reader = *opened->reader;
  DataFacts facts;
  facts.samples = reader.size();
  std::vector<int64_t> lengths;
  for (int64_t i = 0; i < std::min(kMostLengths, reader.size()); ++i) {
    lengths.push_back(reader.sample_length(i));
  }
  std::sort(lengths.begin(), lengths.end());
  const auto at = [&lengths](double part) {
    return lengths[static_cast<size_t>(part * (lengths.size() - 1))];
  };
  facts.median = at(0.5);
  facts.almost_all = at(0.99);
  facts.longest = at(1.0);
  return facts;
}

absl::Status Trial::FillEnvironment(Recipe* recipe) {
  CAPSTAN_ASSIGN_OR_RETURN(const std::string draft, Draft(*recipe));
  const absl::StatusOr<Opened> opened = Open(draft);
  CAPSTAN_RETURN_IF_ERROR(WithoutPlace(opened.status(), draft));
  const auto* source = dynamic_cast<const HistorySource*>(opened->reader.get());
  if (source == nullptr) {
    return absl::InternalError("the reader of histories has none");
  }
  const EnvironmentSpec spec = source->history_form().environment->spec();
  recipe->actions = spec.actions;
  recipe->observation.assign(spec.bounds, spec.bounds + spec.numbers);
  return absl::OkStatus();
}

absl::StatusOr<std::string> Trial::Fit(bool may_adapt, Recipe* recipe) {
  const int ranks = target_.ranks();
  RunOptions options;
  if (target_.on_gpus()) {
    SetRunDevice({true, target_.gpu_memory});
    options.planned_gpus = ranks;
  }
  const int64_t room = target_.on_gpus()
                           ? RoomOfGpu(target_.gpu_memory, ranks).for_tensors()
                           : MemoryBudget(/*on_gpu=*/false, ranks);
  recipe->fit.micro_batch = 1;  // until it is chosen
  CAPSTAN_ASSIGN_OR_RETURN(const std::string draft, Draft(*recipe));
  options.configs = {draft};
  const auto prepared = Prepare(options);
  CAPSTAN_RETURN_IF_ERROR(WithoutPlace(prepared.status(), draft));
  bool fits = false;
  const absl::StatusOr<Fitted> fitted =
      FitRun(options, **prepared, room, &fits);
  if (absl::IsFailedPrecondition(fitted.status())) {
    // Its activations aren't known.
    recipe->fit.strategy = "capstan.ddp";
    return std::string("not planned: this model doesn't tell what it takes");
  }
  CAPSTAN_RETURN_IF_ERROR(WithoutPlace(fitted.status(), draft));
  const int64_t needed = Total(fitted->plan.at_peak);
  if (fits) {
    recipe->fit = fitted->choice;
    return absl::StrCat(ShortBytes(needed), " of the ", ShortBytes(room),
                        " that each of ", ranks,
                        ranks == 1 ? " rank" : " ranks", " has on its ",
                        target_.on_gpus() ? "GPU" : "CPU");
  }
  if (may_adapt && !recipe->lora) {
    recipe->lora = true;
    return Fit(may_adapt, recipe);
  }
  return WithCode(
      absl::ResourceExhaustedError(absl::StrCat(
          "nothing fits: the run needs ", ShortBytes(needed), " for each of ",
          ranks, " ranks, which have ", ShortBytes(room),
          " each; take a smaller model, or more or larger GPUs")),
      "memory/plan");
}

absl::optional<double> Trial::MeasureStep(const Recipe& recipe,
                                          double limit_seconds) {
  if (!target_.here()) return absl::nullopt;
  Recipe tried = recipe;
  tried.max_steps = 1000000;
  tried.opening.clear();  // it would be sampled from first
  const absl::StatusOr<std::string> draft = Draft(tried);
  if (!draft.ok()) return absl::nullopt;
  return StepSecondsOf({"trainer", "--config=" + *draft}, folder_.path(),
                       limit_seconds);
}

TriedSteps TrySteps(std::vector<std::string> words, const std::string& folder,
                    const TrialLimits& limits) {
  TriedSteps tried;
  const std::string output = folder + "/run";
  if (!RemoveTree(output).ok()) return tried;
  const int log = open((folder + "/log").c_str(),
                       O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  Program program;
  program.words = std::move(words);
  for (const std::string& set :
       {"output_dir=" + output, std::string("train.log_every=1"),
        // Steps alone; on the disk, too.
        std::string("train.save_every=0"), std::string("train.eval_every=0"),
        std::string("train.keep_best=false")}) {
    program.words.insert(program.words.end(), {"--set", set});
  }
  program.path = "/proc/self/exe";
  program.variables = {"TMPDIR=" + folder};  // it is killed
  program.input = Program::kNull;
  program.output = program.errors = log;
  program.own_group = program.dies_with_parent = true;
  const absl::StatusOr<pid_t> child = StartProgram(program);
  if (log >= 0) close(log);
  if (!child.ok()) return tried;
  const auto end = std::chrono::steady_clock::now() +
                   std::chrono::duration<double>(limits.all_seconds);
  const auto enough = [&limits, &tried] {
    return tried.seconds.size() >= limits.steps &&
           std::accumulate(tried.seconds.begin(), tried.seconds.end(), 0.0) >=
               limits.seconds;
  };
  bool ended = false;
  {
    const Undo stop([group = *child] { kill(-group, SIGKILL); });
    double others = -1.0;  // when the first step was done
    auto begin = end;
    while (!ended && !enough() && std::chrono::steady_clock::now() < end) {
      ended = WaitFor(*child, 0.05).has_value();
      tried = ReadSteps(output);
      if (others < 0.0 && !tried.seconds.empty()) {
        begin = std::chrono::steady_clock::now();
        others = SecondsOfOthers(RankProcesses(output));
      }
    }
    if (!ended) {
      const std::vector<int64_t> processes = RankProcesses(output);
      tried.process = LargestOf(processes);
      const double elapsed = std::chrono::duration<double>(
                                 std::chrono::steady_clock::now() - begin)
                                 .count();
      if (elapsed > 0.0) {
        tried.others =
            std::max(0.0, SecondsOfOthers(processes) - others) / elapsed;
      }
    }
  }
  if (!ended) WaitFor(*child);
  return tried;
}

absl::optional<double> StepSecondsOf(std::vector<std::string> words,
                                     const std::string& folder,
                                     double limit_seconds) {
  TrialLimits limits;
  limits.all_seconds = limit_seconds;
  std::vector<double> seconds =
      TrySteps(std::move(words), folder, limits).seconds;
  if (seconds.empty()) return absl::nullopt;
  std::sort(seconds.begin(), seconds.end());
  return seconds[seconds.size() / 2];
}

}  // namespace capstan::init
