// SPDX-License-Identifier: Apache-2.0
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>

#include <iostream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "plugins/sdk/status.h"
#include "trainer/commands/commands.h"
#include "trainer/commands/generator.h"
#include "trainer/launcher/launcher.h"

namespace capstan {
namespace {

absl::StatusOr<std::vector<int64_t>> PromptIds(const GenerateOptions& options,
                                               const Generator& generator) {
  if (options.prompt.has_value() == !options.prompt_ids.empty()) {
    return absl::InvalidArgumentError(
        "give either --prompt=TEXT or --prompt_ids=1,2,3");
  }
  if (!options.prompt_ids.empty()) return options.prompt_ids;
  if (generator.tokenizer == nullptr) {
    return absl::FailedPreconditionError(absl::StrCat(
        "--model=", options.model, " has no tokenizer for --prompt (",
        generator.tokenizer_error.message(), "); use --prompt_ids=1,2,3"));
  }
  std::vector<int64_t> ids = generator.tokenizer->Encode(*options.prompt);
  if (ids.empty()) return absl::InvalidArgumentError("--prompt is empty");
  // As the model has seen texts begin.
  generator.tokenizer->AddEnds(&ids);
  return ids;
}

absl::Status Generate(const GenerateOptions& options) {
  if (options.max_new_tokens.has_value() && *options.max_new_tokens < 1) {
    return FieldError(
        "--max_new_tokens",
        absl::StrCat("must be greater than 0, is ", *options.max_new_tokens));
  }
  at::set_num_threads(AvailableCores());
  at::NoGradGuard no_grad;
  CAPSTAN_ASSIGN_OR_RETURN(
      Generator generator,
      LoadGenerator(options.model, options.adapter, options.plugin_path));
  CAPSTAN_ASSIGN_OR_RETURN(const std::vector<int64_t> prompt,
                           PromptIds(options, generator));
  SampleOptions sample;
  sample.max_new_tokens = options.max_new_tokens.value_or(0);
  sample.greedy = options.greedy;
  sample.temperature = options.temperature;
  sample.top_k = options.top_k;
  sample.top_p = options.top_p;
  sample.seed = options.seed;
  const bool as_text = options.prompt_ids.empty();
  TextStream stream;
  if (as_text) {
    const int64_t eos = generator.tokenizer->special_ids().eos;
    if (eos >= 0) sample.stop_tokens = {eos};
    std::cout << *options.prompt << std::flush;
    sample.on_token = [&generator, &stream](int64_t token) {
      std::cout << stream.Add(
                       generator.tokenizer->Decode(absl::MakeSpan(&token, 1)))
                << std::flush;
    };
  }
  PlainRunner runner;
  CAPSTAN_ASSIGN_OR_RETURN(
      const std::vector<int64_t> ids,
      generator.objective->Sample(*generator.model, prompt, sample, runner));
  std::cout << (as_text ? stream.Finish() : absl::StrJoin(ids, ","))
            << std::endl;
  return absl::OkStatus();
}

}  // namespace

int GenerateCommand(const GenerateOptions& options) {
  absl::Status status;
  try {
    status = Generate(options);
  } catch (...) {
    status = CurrentExceptionToStatus();
  }
  return status.ok() ? 0 : Fail(status);
}

}  // namespace capstan
