// SPDX-License-Identifier: Apache-2.0
//
// Learning from rewards: what TRL's GRPOConfig and trl/scripts/grpo.py say.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "desk/import/resolve.h"

namespace capstan::import {
namespace {

constexpr char kRewards[] = "@reward_funcs";

std::vector<std::string> Items(const std::string& list) {
  return absl::StrSplit(list, absl::ByAnyChar("[,\" ]"), absl::SkipEmpty());
}

// The reward number `i` of the config, of one of TRL's names. False: it isn't
// here.
bool AddReward(const std::string& name, const std::string& at, Draft* draft) {
  if (name == "accuracy_reward") {
    draft->SetQuoted(at + "math_answer.field", "solution", name);
    draft->Differ(kRewards,
                  "accuracy_reward compares by math_verify there, here "
                  "math_answer by Minerva's rules (docs/grpo.md)");
  } else if (name == "think_format_reward") {
    draft->SetQuoted(at + "regex.pattern",
                     "(?s)^<think>(?!.*<think>)(.*?)</think>.*$", name);
  } else if (name == "get_soft_overlong_punishment") {
    draft->Set(at + "length.max_tokens", "1280", name);
    draft->Set(at + "length.buffer", "256", name);
  } else {
    return false;
  }
  return true;
}

void ResolveRewards(Draft* draft) {
  const std::vector<std::string> weights =
      Items(draft->Text("@reward_weights"));
  size_t rewards = 0;  // of the config
  size_t names = 0;    // of the peer
  const auto place = [&rewards] {
    return absl::StrCat("objective.reward#", rewards, ".");
  };
  const auto weigh = [&] {
    if (names < weights.size()) {
      draft->Set(place() + "weight", weights[names], "reward_weights");
    }
    ++rewards;
    ++names;
  };
  if (draft->Has("@reward_model")) {
    draft->SetQuoted(place() + "model.path",
                     draft->Path(draft->Text("@reward_model")),
                     draft->Origin("@reward_model"));
    weigh();
  }
  for (const std::string& name : Items(draft->Text(kRewards))) {
    if (AddReward(name, place(), draft)) {
      weigh();
      continue;
    }
    ++names;
    draft->Lose(kRewards,
                absl::StrCat(name,
                             " isn't here: ask it as a reward { program "
                             "{ .. } } of objective (docs/grpo.md)"));
  }
  if (rewards > 0) return;
  draft->Note(Effect::kLost, "the rewards", "", "objective.reward",
              "no file names one that is here: set objective.reward");
}

}  // namespace

void ResolveGrpo(const std::string& origin, Draft* draft) {
  draft->Set("objective", "capstan.grpo", origin);
  draft->EraseAll("objective",
                  "label_smoothing simpo_gamma desirable_weight "
                  "undesirable_weight");
  draft->CopyAll("objective",
                 "@num_generations @max_new_tokens @advantage @clip_low "
                 "@clip_high @clip_most @updates_per_rollout @sequence_ratios "
                 "@mask_truncated @unbiased_kl @temperature @top_k @top_p "
                 "@min_p @repetition_penalty");
  draft->Copy("@loss_type", "objective.loss");
  if (draft->Raw("@loss_type") == "bnpo") {
    draft->Differ(
        "@loss_type",
        "the mean is over the tokens of a step, not of a micro-batch");
  }
  if (draft->Has("@max_prompt")) {
    draft->Copy("@max_prompt", "train_data.max_length");
    draft->Differ("@max_prompt",
                  "longer prompts lose their beginnings there; here one is an "
                  "error, or left out with train_data.bad_rows: SKIP");
  }
  ResolveRewards(draft);
}

void ResolveGenerations(double ranks, Draft* draft) {
  const bool rewards = draft->Text("objective") == "capstan.grpo";
  const double step = draft->Number("batch.global_batch_size", 0);
  const std::pair<const char*, double> kAnswers[] = {
      {"@steps_per_generation", draft->Number("@steps_per_generation", 1) *
                                    draft->Number("@micro", 1) * ranks},
      {"@generation_batch", draft->Number("@generation_batch", 1)}};
  for (const auto& [fact, answers] : kAnswers) {
    if (!draft->Has(fact)) continue;
    if (!rewards) {
      draft->NoteUnused(fact, "no answers are sampled");
    } else if (step > 0 && std::fmod(step, answers) == 0) {
      // All of a step's are of the same weights.
      draft->NoteUnused(fact, "objective.rollout_batch changes no answer");
    } else {
      std::string note =
          "answers may be older there than the step that trains on them; here "
          "each step samples its own: leave it out";
      if (step > 0 && answers < 1e9) {
        absl::StrAppend(&note, ", or set batch.global_batch_size to ",
                        static_cast<int64_t>(answers));
      }
      draft->Lose(fact, note);
    }
  }
}

}  // namespace capstan::import
