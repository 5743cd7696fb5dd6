// SPDX-License-Identifier: Apache-2.0
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <unistd.h>

#include <iostream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "plugins/sdk/status.h"
#include "trainer/commands/commands.h"
#include "trainer/commands/generator.h"
#include "trainer/commands/masked_text_view.h"
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

// Each token as it is chosen.
absl::Status WriteInOrder(const std::string& prompt,
                          const std::vector<int64_t>& ids,
                          const Generator& generator, SampleOptions sample) {
  TextStream stream;
  std::cout << prompt << std::flush;
  sample.on_token = [&generator, &stream](int64_t token) {
    std::cout << stream.Add(
                     generator.tokenizer->Decode(absl::MakeSpan(&token, 1)))
              << std::flush;
  };
  PlainRunner runner;
  CAPSTAN_RETURN_IF_ERROR(
      generator.objective->Sample(*generator.model, ids, sample, runner)
          .status());
  std::cout << stream.Finish() << std::endl;
  return absl::OkStatus();
}

// The whole text as it comes out of its masks.
absl::Status WriteInAnyOrder(const std::string& prompt,
                             const std::vector<int64_t>& ids,
                             const Generator& generator, SampleOptions sample) {
  const TokenModel* const model = generator.model->token_model();
  std::vector<int64_t> stops = sample.stop_tokens;
  stops.push_back(model->eos_token());
  MaskedTextView view(STDOUT_FILENO, generator.tokenizer, model->mask_token(),
                      std::move(stops), prompt);
  view.Show({});
  sample.on_text = [&view, &ids](absl::Span<const int64_t> text) {
    view.Show(text.subspan(ids.size()));
  };
  PlainRunner runner;
  const absl::StatusOr<std::vector<int64_t>> text =
      generator.objective->Sample(*generator.model, ids, sample, runner);
  view.Finish(text.ok() ? absl::MakeConstSpan(*text).subspan(ids.size())
                        : absl::Span<const int64_t>());
  return text.status();
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
      LoadGenerator(options.model, options.adapter, options.plugin_path,
                    options.overrides));
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
  if (as_text) {
    const int64_t eos = generator.tokenizer->special_ids().eos;
    if (eos >= 0) sample.stop_tokens = {eos};
    const TokenModel* const tokens = generator.model->token_model();
    return tokens == nullptr || tokens->causal()
               ? WriteInOrder(*options.prompt, prompt, generator, sample)
               : WriteInAnyOrder(*options.prompt, prompt, generator, sample);
  }
  PlainRunner runner;
  CAPSTAN_ASSIGN_OR_RETURN(
      const std::vector<int64_t> ids,
      generator.objective->Sample(*generator.model, prompt, sample, runner));
  std::cout << absl::StrJoin(ids, ",") << std::endl;
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
