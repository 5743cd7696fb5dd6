// SPDX-License-Identifier: Apache-2.0
#include "trainer/session/compare_ranks.h"

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <set>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/crc32c.h"
#include "base/status.h"
#include "cluster/comm/agree.h"
#include "host/config/load_config.h"
#include "host/plugins/plugin_host.h"
#include "inference/evaluate/task_suite.h"
#include "trainer/data/data_loader.h"

namespace capstan {
namespace {

// A value to compare, and its name as the object of "rank 1 has".
struct RankFact {
  std::string what;   // "another model"
  std::string value;  // "": unknown, as good as any
};

std::string Hex(uint32_t crc) { return absl::StrFormat("%08x", crc); }

// Whether later samples may be found only by reading all before them: those
// that draw in an order of their own.
bool IsSequence(const DatasetReader& data) {
  return data.draws_anew() && !data.shuffle();
}

// Of the first, the middle and the last sample: enough to tell another file of
// the same length. Of a sequence the first three, which aren't: AddData
// compares its digest, too. "" if one can't be read: training will say so.
std::string SampleChecksum(const DatasetReader& data) {
  std::string all;
  const absl::Status read = CatchAll([&]() -> absl::Status {
    const std::set<int64_t> samples =
        IsSequence(data)
            ? std::set<int64_t>{0, 1, 2}
            : std::set<int64_t>{0, data.size() / 2, data.size() - 1};
    for (const int64_t sample : samples) {
      CAPSTAN_ASSIGN_OR_RETURN(const Batch batch,
                               ReadBatch(data, {sample}, at::kCPU));
      for (const auto& [name, tensor] : batch) {
        const at::Tensor whole = tensor.contiguous();
        const absl::string_view bytes(
            static_cast<const char*>(whole.const_data_ptr()), whole.nbytes());
        absl::StrAppend(&all, name, " ", Crc32c(bytes), "\n");
      }
    }
    return absl::OkStatus();
  });
  return read.ok() ? absl::StrCat("checksum ", Hex(Crc32c(all))) : "";
}

void AddData(const DatasetReader* data, const std::string& which,
             std::vector<RankFact>* facts) {
  facts->push_back({absl::StrCat("another number of ", which, " samples"),
                    data == nullptr ? "none" : absl::StrCat(data->size())});
  facts->push_back({absl::StrCat("other ", which, " samples"),
                    data == nullptr ? "" : SampleChecksum(*data)});
  std::string digest;
  if (data != nullptr && IsSequence(*data)) {
    digest = data->Digest().value_or("");
  }
  facts->push_back({absl::StrCat("other ", which, " data"), digest});
}

std::string TasksText(const evaluate::TaskSuite* suite) {
  if (suite == nullptr) return "none";
  return absl::StrJoin(suite->tasks(), ", ",
                       [](std::string* out, const evaluate::SuiteTask& task) {
                         absl::StrAppend(out, task.name, " (", task.requests,
                                         " requests, digest ", task.digest,
                                         ")");
                       });
}

std::string ModelText(const Model& model) {
  std::string all;
  for (const ParameterSpec& spec : model.parameters()) {
    absl::StrAppend(&all, spec.name, " ", absl::StrJoin(spec.shape, "x"),
                    spec.trainable ? "" : " frozen", "\n");
  }
  return absl::StrCat(model.parameters().size(), " parameters, ",
                      ParameterCount(model), " numbers, names and shapes ",
                      Hex(Crc32c(all)));
}

// The fingerprint's lines are facts for errors about plugins; here they are
// one.
std::string BuildText() {
  const std::string fingerprint = CoreFingerprint();
  for (const absl::string_view line : absl::StrSplit(fingerprint, '\n')) {
    if (!absl::StartsWith(line, "headers=")) continue;
    return absl::StrCat(line, ", fingerprint ", Hex(Crc32c(fingerprint)));
  }
  return Hex(Crc32c(fingerprint));
}

// Compares this rank's facts with rank 0's, of the same kinds in the same
// order. If they differ: FAILED_PRECONDITION on the ranks that differ, "rank 1
// has WHAT than rank 0: VALUE, where rank 0 has VALUE; HINT". Collective.
absl::Status CompareFacts(ProcessGroup& group,
                          const std::vector<RankFact>& facts,
                          const std::string& hint) {
  // Names that plugins and files give may have any character.
  std::vector<std::string> ours;
  for (const RankFact& fact : facts) {
    ours.push_back(absl::Utf8SafeCEscape(fact.value));
  }
  const std::string all = absl::StrJoin(ours, "\n");
  CAPSTAN_ASSIGN_OR_RETURN(const std::string rank0s, FromRank0(group, all));
  const std::vector<std::string> theirs = absl::StrSplit(rank0s, '\n');
  absl::Status same;
  for (size_t i = 0; i < facts.size() && same.ok(); ++i) {
    const std::string& other = i < theirs.size() ? theirs[i] : "";
    const std::string& mine = ours[i];
    if (mine == other || mine.empty() || other.empty()) continue;
    same = absl::FailedPreconditionError(absl::StrCat(
        "rank ", group.rank(), " has ", facts[i].what, " than rank 0: ", mine,
        ", where rank 0 has ", other, "; ", hint));
  }
  return Agree(group, same, "start with what rank 0 has");
}

}  // namespace

absl::Status CompareConfigs(const RunPlan& plan) {
  RunConfig config = plan.config;
  config.clear_launch();
  config.clear_output_dir();
  const std::string mine = PrintConfig(config);
  CAPSTAN_ASSIGN_OR_RETURN(const std::string rank0s,
                           FromRank0(*plan.group, mine));
  absl::Status same;
  if (mine != rank0s) {
    const std::vector<std::string> here = absl::StrSplit(mine, '\n');
    const std::vector<std::string> there = absl::StrSplit(rank0s, '\n');
    size_t i = 0;
    while (i < here.size() && i < there.size() && here[i] == there[i]) ++i;
    const auto at = [](const std::vector<std::string>& lines, size_t k) {
      return k < lines.size() ? absl::StripAsciiWhitespace(lines[k]) : "";
    };
    // Where the other has a line more: "nothing".
    const auto line = [i, &at](const std::vector<std::string>& lines,
                               const std::vector<std::string>& others) {
      const bool lacks =
          at(lines, i).empty() || (at(lines, i) == at(others, i + 1) &&
                                   at(lines, i + 1) != at(others, i));
      return lacks ? "nothing" : at(lines, i);
    };
    same = absl::FailedPreconditionError(absl::StrCat(
        "rank ", plan.group->rank(), " has another config than rank 0: `",
        line(here, there), "` where rank 0 has `", line(there, here),
        "`; start all hosts with the same files and flags"));
  }
  return Agree(*plan.group, same, "start with rank 0's config");
}

absl::Status CompareParts(const RunPlan& plan) {
  if (plan.group->size() == 1) return absl::OkStatus();
  const RunParts& parts = plan.parts;
  std::vector<RankFact> facts = {{"another build of the trainer", BuildText()},
                                 {"another model", ModelText(*parts.model)}};
  AddData(parts.train_data.get(), "training", &facts);
  AddData(parts.eval_data.get(), "evaluation", &facts);
  for (const EvalSetData& set : parts.eval_sets) {
    AddData(set.reader.get(), set.name, &facts);
  }
  facts.push_back({"other eval_tasks", TasksText(parts.eval_tasks.get())});
  return CompareFacts(
      *plan.group, facts,
      "all hosts must have the same trainer and see the same files");
}

absl::Status CompareStart(const Session& session) {
  const TrainState& state = session.state;
  return CompareFacts(
      *session.group,
      {{"another point to go on from",
        absl::StrCat("step ", state.step, ", sample ", state.samples, ", ",
                     state.optimizer_steps, " updates")},
       {"other frozen weights", Hex(state.frozen_crc32c)}},
      "all hosts must see the same files");
}

}  // namespace capstan
