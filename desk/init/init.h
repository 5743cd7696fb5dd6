// SPDX-License-Identifier: Apache-2.0
//
// `trainer init` in its steps: questions (questions.cc), what follows from the
// answers (propose.cc), files and words (init_command.cc).
#ifndef CAPSTAN_DESK_INIT_INIT_H_
#define CAPSTAN_DESK_INIT_INIT_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "desk/init/ask.h"
#include "desk/init/look.h"
#include "desk/init/recipe.h"
#include "desk/init/trial.h"

namespace capstan::init {

// The flags: each is an answer.
struct InitOptions {
  std::string data;
  std::string model;
  std::string output;
  std::string where;  // "here", or a launcher
  int64_t nodes = 0;
  int gpus = 0;
  std::string gpu_memory;
  std::string time;
  std::string prefer;
  std::string bad_rows;  // "stop" or "skip"
  bool yes = false;
  bool force = false;
};

// In the order in which it comes about.
struct Init {
  InitOptions options;
  Asker asker;
  DataLook look;
  std::string model;  // its folder; "": from scratch
  Target target;
  double seconds = 0.0;  // that training may take
  std::string output;    // absolute
  std::string joined;    // the text that a folder's files become; "": none
  std::string joining;   // what it is called until the config is written
  Recipe recipe;
  std::vector<std::pair<std::string, std::string>> told;

  void Tell(const char* name, std::string text) {
    told.emplace_back(name, std::move(text));
  }
};

// Ask for what the flags don't say. Errors: what is said can't be used, or is
// missing where nothing is asked. AskForData returns false if there is none.
absl::StatusOr<bool> AskForData(Init* init);
absl::Status AskTheRest(Init* init);

// Whether `samples` rows are enough where others can't be read, for `why`,
// which is returned if not.
absl::Status AskAboutBadRows(const absl::Status& why, int64_t samples,
                             Init* init);

// Fills in init->recipe, and tells why; runs a few steps of it. Errors: the
// data's, the model's, and RESOURCE_EXHAUSTED if nothing fits into memory.
absl::Status MakeRecipe(Init* init);

// An absolute path without "..".
std::string Normal(const std::string& path);
// A path as the caller would type it.
std::string Typed(const std::string& path);

}  // namespace capstan::init

#endif  // CAPSTAN_DESK_INIT_INIT_H_
