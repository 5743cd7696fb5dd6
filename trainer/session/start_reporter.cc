// SPDX-License-Identifier: Apache-2.0
#include "trainer/session/start_reporter.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "base/files.h"
#include "base/status.h"
#include "cluster/comm/agree.h"
#include "cluster/comm/gpu_tools.h"
#include "cluster/launch/place.h"
#include "trainer/metrics/reporter.h"

namespace capstan {
namespace {

std::string DeviceText(const ProcessGroup& group, int threads) {
  if (group.device().is_cuda()) {
    return absl::StrCat(group.size(),
                        " x GPU: ", TheGpuTools()->name(group.device().index()),
                        group.size() > 1 ? ", " + group.backend() : "");
  }
  return absl::StrCat(group.size(), " x CPU (", threads,
                      threads == 1 ? " thread" : " threads", " each)");
}

absl::Status OpenReporter(Session* session, const std::string& note) {
  const TrainJob& job = session->job;
  const RunParts& parts = session->parts;
  const RunConfig& config = session->config;
  CAPSTAN_RETURN_IF_ERROR(
      WriteWholeFile(absl::StrCat(session->output_dir, "/config.pbtxt"),
                     session->config_text));
  RunFacts facts;
  facts.name = config.name();
  facts.output_dir = session->output_dir;
  facts.world_size = session->group->size();
  facts.device = DeviceText(*session->group, session->rank.threads);
  facts.placed_by = PlaceText(session->rank);
  facts.cores = session->rank.cores;
  facts.strategy = parts.strategy_name;
  facts.precision = parts.precision_name;
  facts.parameters = ParameterCount(*parts.model);
  facts.micro_batch_size = job.batch.micro_batch_size;
  facts.global_batch_size = job.batch.global_batch_size;
  facts.accumulation = job.batch.accumulation;
  facts.first_step = session->first_step;
  facts.max_steps = session->max_steps;
  facts.log_every = LogEvery(config.train());
  facts.unit = parts.objective->unit();
  facts.eval_every =
      parts.eval_data != nullptr ? config.train().eval_every() : 0;
  facts.save_every = config.train().save_every();
  // A run that has all steps evaluates once more at its end.
  facts.evaluate_again = session->evaluate_again || !session->GoesOn();
  CAPSTAN_ASSIGN_OR_RETURN(session->reporter, Reporter::Create(facts));
  if (session->Restarted()) {
    // The user knows the rest.
    session->reporter->Note(
        session->first_step > 0
            ? absl::StrCat("restarted from step ", session->first_step)
            : "restarted from the beginning: there was no checkpoint yet");
    for (size_t i = job.known_notes; i < job.notes.size(); ++i) {
      session->reporter->Note(job.notes[i]);
    }
    return absl::OkStatus();
  }
  session->reporter->Banner();
  for (const std::string& line : job.loaded.notes) {
    session->reporter->Note(line);
  }
  for (const DatasetReader* data :
       {parts.train_data.get(), parts.eval_data.get()}) {
    if (data == nullptr) continue;
    for (const std::string& line : data->notes()) session->reporter->Note(line);
  }
  for (const std::string& line : job.notes) session->reporter->Note(line);
  if (!note.empty()) session->reporter->Note(note);
  return absl::OkStatus();
}

}  // namespace

absl::Status StartReporter(Session* session, const std::string& note) {
  return Agree(*session->group,
               session->group->rank() == 0 ? OpenReporter(session, note)
                                           : absl::OkStatus(),
               "open its output");
}

}  // namespace capstan
