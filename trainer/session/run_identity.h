// SPDX-License-Identifier: Apache-2.0
//
// Identifies a run by its data, models and settings. Checkpoints store that
// (RunIdentity), so that a run is not resumed as another one unnoticed.
#ifndef CAPSTAN_TRAINER_SESSION_RUN_IDENTITY_H_
#define CAPSTAN_TRAINER_SESSION_RUN_IDENTITY_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "host/config/run_config.pb.h"
#include "trainer/checkpoint/checkpoint.h"
#include "trainer/session/run_parts.h"

namespace capstan {

// The key of DigestOfWeights of a partly frozen model; absent if the model
// doesn't come from a folder.
inline constexpr char kBaseIdentity[] = "model.base";

// How the lines begin that events.jsonl has of what a resumed run changed, and
// what is in those of an end that changed the schedule.
inline constexpr char kGoesOnWithAnother[] = "goes on with another ";
inline constexpr char kChangesSchedule[] = " changes the schedule";

struct IdentifiedRun {
  // By name:
  //   train_data, eval_data, eval_sets.NAME
  //                            their readers, and the data's digests
  //   eval_tasks.NAME          a digest of what a task, or a group's tasks, ask
  //   tokenizer                a digest of its files
  //   model.KEY                config.json's keys; base: of frozen weights
  //   adapter.lora.KEY         its settings, wherever they are from
  //   strategy, strategy.FIELD if it or the objective has a curve of its own
  //   schedule, train.max_steps
  //   SLOT, SLOT.FIELD         the config's other fields that are set, without
  //                            those that may change (options.proto) and paths
  RunIdentity identity;
  // Lines for the user about what doesn't match.
  std::vector<std::string> notes;
};

// Reads data and frozen weights once, at the speed of memory. Errors name the
// file.
absl::StatusOr<IdentifiedRun> IdentifyRun(const RunConfig& config,
                                          const RunParts& parts,
                                          int64_t max_steps);

// What a run with another length has in the place of IdentifyRun's.
void SetMaxSteps(int64_t max_steps, RunIdentity* identity);

// Adds what the config's fields are that `identity` doesn't have: their
// default_value (options.proto), else protobuf's default, so that a run may
// write them out, or no longer.
absl::Status AddDefaults(const RunConfig& config, RunIdentity* identity);

// Whether train.resume_with_changes names the field or one that contains it.
bool MayHaveChanged(const Train& train, const std::string& name);

// Returns what the user can do about fields that have changed.
std::string HowToResume(const std::vector<std::string>& changed);

// How the run `mine` differs from `earlier`, a checkpoint's after
// `optimizer_steps` updates.
struct IdentityChanges {
  // What neither leaves alone what is trained nor is allowed: "NAME: EARLIER ->
  // MINE", and the names.
  std::vector<std::string> refused;
  std::vector<std::string> names;
  // Lines for the user about the others.
  std::vector<std::string> notes;
  // Whether train.max_steps alone would have made another schedule so far,
  // which a resumed run may do, with one of the notes.
  bool other_curve = false;
};
IdentityChanges ChangesOf(const RunIdentity& earlier, const RunIdentity& mine,
                          int64_t optimizer_steps, const Train& train);

// Checks that the run `earlier`, from a checkpoint after `optimizer_steps`
// updates, may continue as `mine`. Returns lines for the user about differences
// that don't change what is trained or that are allowed, and about names in
// train.resume_with_changes that nothing has. FAILED_PRECONDITION lists all
// others.
absl::StatusOr<std::vector<std::string>> CompareIdentities(
    const std::string& checkpoint, const RunIdentity& earlier,
    const RunIdentity& mine, int64_t optimizer_steps, const Train& train);

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_SESSION_RUN_IDENTITY_H_
