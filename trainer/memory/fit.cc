// SPDX-License-Identifier: Apache-2.0
#include "trainer/memory/fit.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

namespace capstan {
namespace {

// A setting and what it costs.
struct Option {
  double cost;
  void (*apply)(FitChoice* choice);
};

std::vector<Option> Strategies(const FitLimits& limits) {
  if (limits.gpus == 1) {
    return {{1.0, [](FitChoice* c) { c->strategy = "capstan.single"; }},
            {2.5, [](FitChoice* c) {
               c->strategy = "capstan.fsdp";
               c->strategy_sets = {"cpu_offload=true"};
             }}};
  }
  return {{1.0, [](FitChoice* c) { c->strategy = "capstan.ddp"; }},
          {1.01, [](FitChoice* c) { c->strategy = "capstan.zero2"; }},
          {1.05, [](FitChoice* c) { c->strategy = "capstan.fsdp"; }},
          {1.7,
           [](FitChoice* c) {
             c->strategy = "capstan.zero2";
             c->strategy_sets = {"offload_optimizer.device=CPU"};
           }},
          {2.5, [](FitChoice* c) {
             c->strategy = "capstan.fsdp";
             c->strategy_sets = {"cpu_offload=true"};
           }}};
}

// {"a.b=C", "d=E"}: "a { b: C } d: E ".
std::string FieldsOf(const std::vector<std::string>& sets) {
  std::string text;
  for (const std::string& set : sets) {
    const std::vector<std::string> sides = absl::StrSplit(set, '=');
    const std::vector<std::string> path = absl::StrSplit(sides[0], '.');
    absl::StrAppend(&text, absl::StrJoin(path, " { "), ": ", sides[1]);
    for (size_t i = 1; i < path.size(); ++i) absl::StrAppend(&text, " }");
    absl::StrAppend(&text, " ");
  }
  return text;
}

// What activations take. Recomputing is a third more work, of gate and up half
// of that; a unit's input crosses to the host and back in less time than the
// unit takes.
std::vector<Option> Checkpointing() {
  return {{1.0, [](FitChoice*) {}},
          {1.16, [](FitChoice* c) { c->recompute_mlp = true; }},
          {1.17, [](FitChoice* c) { c->checkpoint_every = 2; }},
          {1.33, [](FitChoice* c) { c->checkpoint_every = 1; }},
          {1.4, [](FitChoice* c) {
             c->checkpoint_every = 1;
             c->offload_activations = true;
           }}};
}

// Fewer bits cost hardly any time; they are tried after what changes nothing
// in the curve.
std::vector<Option> States(const FitLimits& limits) {
  std::vector<Option> states = {{1.0, [](FitChoice*) {}}};
  if (!limits.adamw || limits.few_trained) return states;
  states.push_back(
      {1.06, [](FitChoice* c) { c->optimizer_sets = {"state=BFLOAT16"}; }});
  states.push_back(
      {1.07, [](FitChoice* c) { c->optimizer_sets = {"state=EIGHT_BIT"}; }});
  states.push_back({1.3, [](FitChoice* c) { c->paged_state = true; }});
  states.push_back({1.32, [](FitChoice* c) {
                      c->paged_state = true;
                      c->optimizer_sets = {"state=EIGHT_BIT"};
                    }});
  return states;
}

std::vector<Option> Weights(const FitLimits& limits) {
  std::vector<Option> weights = {{1.0, [](FitChoice*) {}}};
  if (limits.quantizable) {
    weights.push_back({1.25, [](FitChoice* c) { c->quantize = true; }});
  }
  return weights;
}

}  // namespace

std::vector<std::string> FitChoice::Overrides() const {
  std::vector<std::string> overrides = {absl::StrCat("strategy=", strategy)};
  for (const std::string& set : strategy_sets) {
    overrides.push_back(absl::StrCat("strategy.", set));
  }
  for (const std::string& set : optimizer_sets) {
    overrides.push_back(absl::StrCat("optimizer.", set));
  }
  if (quantize) overrides.push_back("adapter.lora.quantize=NF4_DOUBLE");
  return overrides;
}

std::string FitChoice::Checkpointing() const {
  if (recompute_mlp) return "MLP";
  if (checkpoint_every == 0) return "NONE";
  if (checkpoint_every == 1) return "EVERY_UNIT";
  return absl::StrCat("EVERY_N\n  activation_checkpointing_n: ",
                      checkpoint_every);
}

std::string FitChoice::ConfigText() const {
  std::string text =
      absl::StrCat("strategy { [plugin/", strategy, ".Config] { ",
                   FieldsOf(strategy_sets), "} }\n");
  if (!optimizer_sets.empty()) {
    absl::StrAppend(&text, "optimizer { [plugin/capstan.adamw.Config] { ",
                    FieldsOf(optimizer_sets), "} }\n");
  }
  absl::StrAppend(&text, "batch { micro_batch_size: ", micro_batch,
                  " global_batch_size: ", global_batch, " }\n");
  absl::StrAppend(
      &text, "train {\n  activation_checkpointing: ", Checkpointing(), "\n");
  if (offload_activations || paged_state) {
    absl::StrAppend(&text, "  offload {",
                    paged_state ? " optimizer_state: true" : "",
                    offload_activations ? " activations: true" : "", " }\n");
  }
  absl::StrAppend(&text, "}\n");
  if (quantize) {
    absl::StrAppend(&text, "adapter { lora { quantize: NF4_DOUBLE } }\n");
  }
  return text;
}

std::vector<FitChoice> FitChoices(const FitLimits& limits) {
  std::vector<FitChoice> choices;
  for (const Option& weights : Weights(limits)) {
    for (const Option& strategy : Strategies(limits)) {
      for (const Option& state : States(limits)) {
        for (const Option& checkpointing : Checkpointing()) {
          for (const int64_t micro_batch : limits.micro_batches) {
            FitChoice choice;
            choice.micro_batch = micro_batch;
            choice.global_batch = limits.global_batch;
            // Small products and many launches.
            choice.cost = weights.cost * strategy.cost * state.cost *
                          checkpointing.cost *
                          (1.0 + 0.3 / static_cast<double>(micro_batch));
            for (const Option* option :
                 {&weights, &strategy, &state, &checkpointing}) {
              option->apply(&choice);
            }
            // State on the host is there already.
            if (choice.paged_state && !choice.strategy_sets.empty()) continue;
            choices.push_back(std::move(choice));
          }
        }
      }
    }
  }
  std::stable_sort(
      choices.begin(), choices.end(),
      [](const FitChoice& a, const FitChoice& b) { return a.cost < b.cost; });
  return choices;
}

}  // namespace capstan
