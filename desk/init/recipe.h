// SPDX-License-Identifier: Apache-2.0
//
// What `init` proposes, and the config that says it.
#ifndef CAPSTAN_DESK_INIT_RECIPE_H_
#define CAPSTAN_DESK_INIT_RECIPE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "desk/init/look.h"
#include "trainer/memory/fit.h"

namespace capstan::init {

// A Llama of random weights whose tokens are bytes.
struct ScratchSize {
  int64_t hidden;
  int64_t intermediate;
  int64_t layers;
  int64_t heads;
  int64_t kv_heads;
  int64_t sequence;      // tokens
  int64_t global_batch;  // sequences
  double learning_rate;

  int64_t Parameters() const;
};

// Ascending.
const std::vector<ScratchSize>& ScratchSizes();

// How rows are written as a conversation.
enum class ChatFormat {
  kTokenizers,  // by the tokenizer's template, or none is needed
  kChatMl,      // the tokenizer has no template, but ChatML's tokens
  kAddChatMl,   // nor these: they are added
};

struct Recipe {
  DataKind kind = DataKind::kText;
  std::string data;   // absolute
  std::string model;  // as the config names it if it isn't a path; "": none
  bool hub_model = false;  // `model` is hf:OWNER/NAME
  ScratchSize size = {};   // kText without a model
  bool lora = false;
  double learning_rate = 0.0;
  // kRows, kPairs, kLabels.
  ChatFormat format = ChatFormat::kTokenizers;
  bool plain_texts = false;
  bool packed = false;
  bool skip_bad = false;   // rows that can't be read
  int64_t max_length = 0;  // tokens; of texts that a model reads, too
  // kPairs and kLabels without `lora`: the file that dpo-reference writes; ""
  // in drafts.
  std::string reference;
  // kHistories.
  int64_t transitions = 0;  // of a sample
  int64_t actions = 0;
  std::vector<int64_t> observation;  // bounds of its numbers

  double held_back = 0.0;   // fraction of the data; 0: no evaluation
  std::string opening;      // sampled from while training; may be empty
  int processes = 0;        // launch.processes; 0: AUTO
  FitChoice fit;            // strategy, batches, what is recomputed
  int64_t max_steps = 0;    // 0: max_epochs
  double max_epochs = 0.0;  // 0: max_steps
  int64_t all_steps = 0;    // what either is in steps; 0: unknown
};

// The config as a commented text. Paths are relative to `folder`, that of the
// config's file, or absolute where they lead far away from it. `command` is
// what makes it ("trainer init ..").
std::string ConfigText(const Recipe& recipe, const std::string& folder,
                       const std::string& command);

}  // namespace capstan::init

#endif  // CAPSTAN_DESK_INIT_RECIPE_H_
