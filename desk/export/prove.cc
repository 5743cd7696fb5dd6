// SPDX-License-Identifier: Apache-2.0
#include "desk/export/prove.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/log_softmax.h>

#include <algorithm>
#include <cmath>
#include <memory>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "base/error_code.h"
#include "base/machine.h"
#include "base/status.h"
#include "desk/export/peers.h"
#include "desk/export/write_gguf.h"
#include "inference/load/sample_logits.h"
#include "plugins/sdk/chat_template.h"
#include "plugins/sdk/token_model.h"

namespace capstan {
namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t kTextTokens = 256;   // to compare on
constexpr int64_t kPromptTokens = 16;  // for llama.cpp
constexpr int64_t kGreedyTokens = 64;  // that it writes
// Types that only round may not move a distribution by more nats a token.
constexpr double kMostDivergence = 1e-2;
// How far below the likeliest token's logit llama.cpp's may be, as a share of
// the largest: with F16 weights it rounds activations, too.
constexpr double kTie = 2e-2;

constexpr char kText[] =
    "The river had risen in the night, and by morning the lower meadow was "
    "under water. Anna counted the sheep on the hill: thirty-one, and a lamb "
    "that hadn't been there the day before. \"We'll need the boat,\" she "
    "said.\n"
    "\n"
    "1. Take 250 g of flour, 2 eggs and 0.5 l of milk.\n"
    "2. Stir; wait for 20 minutes; fry until it's brown.\n"
    "\n"
    "def mean(values):\n"
    "    return sum(values) / max(1, len(values))\n"
    "\n"
    "Übermorgen fährt der Zug um 7:45 Uhr nach Zürich. 明日は雨です。 ¿Dónde "
    "está la biblioteca? The answer, as always, is 42 - or so they say...\n";

// That llama.cpp must make the same tokens of.
const std::vector<std::string>& Texts() {
  static const auto* const texts = new std::vector<std::string>{
      kText,
      "Hello, world!",
      " leading and trailing ",
      "two  spaces,   three, and\ttabs\t\t.",
      "lines\nand\n\nmore\n\n\n lines \r\n",
      "I'm you're he'll SHE'D we've IT'S",
      "0 12 345 6789 1234567890 3.14159 1,000,000",
      "x=y+z; if (a[i] != b->c) { return 0x1F; } // !!!",
      "naïve café Straße Привет мир שלום العربية 你好世界 こんにちは 한국어",
      "emoji: \U0001F600\U0001F680 \u2764\uFE0F",
      "http://example.com/a_b?c=d&e=%20#f",
      "CamelCase snake_case kebab-case UPPER lower123",
  };
  return *texts;
}

// A chat by the tokenizer's template, which has special tokens; "": none.
std::string ChatOf(const Tokenizer& tokenizer) {
  const absl::StatusOr<std::unique_ptr<ChatTemplate>> chat =
      ChatTemplate::Recognise(tokenizer);
  if (!chat.ok()) return "";
  const std::vector<ChatMessage> messages = {
      {"user", "Hello, world!"}, {"assistant", "Hi."}, {"user", " And now?"}};
  const absl::StatusOr<ChatText> text =
      (*chat)->Render(messages, /*generation_prompt=*/true);
  return text.ok() ? text->text : "";
}

std::vector<int64_t> IdsOf(const Tokenizer& tokenizer,
                           const std::string& text) {
  std::vector<int64_t> ids = tokenizer.Encode(text);
  tokenizer.AddEnds(&ids);
  return ids;
}

absl::Status Unlike(const std::string& problem) {
  return WithCode(absl::DataLossError(problem), "export/unlike");
}

// Kullback and Leibler's divergence of `got` from `wanted`, a token, and how
// often the same token is the likeliest. Of logits [T, V].
struct Divergence {
  double nats = 0.0;
  double same = 0.0;
};

Divergence DivergenceOf(const at::Tensor& wanted, const at::Tensor& got) {
  const at::Tensor p = at::log_softmax(wanted.to(at::kDouble), -1);
  const at::Tensor q = at::log_softmax(got.to(at::kDouble), -1);
  return {(p.exp() * (p - q)).sum(-1).mean().item<double>(),
          wanted.argmax(-1)
              .eq(got.argmax(-1))
              .to(at::kDouble)
              .mean()
              .item<double>()};
}

// The prompt and what llama.cpp writes, by the model with the file's weights:
// each token is the likeliest, but for what rounding turns. Returns how many
// are.
absl::StatusOr<int64_t> CompareGreedy(Model& model, std::vector<int64_t> prompt,
                                      const std::vector<int64_t>& greedy) {
  const auto begin = static_cast<int64_t>(prompt.size()) - 1;
  prompt.insert(prompt.end(), greedy.begin(), greedy.end() - 1);
  const at::Tensor logits = LogitsOf(model, prompt);
  const double size = logits.abs().max().item<double>();
  int64_t equal = 0;
  for (size_t i = 0; i < greedy.size(); ++i) {
    const at::Tensor row = logits[begin + static_cast<int64_t>(i)];
    const double gap = (row.max() - row[greedy[i]]).item<double>();
    equal += gap == 0.0;
    if (!(gap <= kTie * size)) {
      return Unlike(absl::StrFormat(
          "llama.cpp writes another text: its token %d, %d, is %.3f less "
          "likely (of logits up to %.1f) than the model's",
          i, greedy[i], gap, size));
    }
  }
  return equal;
}

// "5 6 7", up to eight; "nothing".
std::string FewIds(std::vector<int64_t>::const_iterator begin,
                   std::vector<int64_t>::const_iterator end) {
  if (begin == end) return "nothing";
  return absl::StrJoin(begin, begin + std::min<int64_t>(end - begin, 8), " ");
}

absl::Status CompareWithLlama(const std::string& path, bool compares_greedy,
                              const Generator& generator,
                              ExportReport* report) {
  const Tokenizer& tokenizer = *generator.tokenizer;
  const int64_t positions = generator.model->token_model()->max_positions();
  std::vector<int64_t> prompt = IdsOf(tokenizer, kText);
  prompt.resize(std::min<int64_t>(
      {kPromptTokens, positions / 2, static_cast<int64_t>(prompt.size())}));
  const int64_t count =
      std::min(kGreedyTokens, positions - static_cast<int64_t>(prompt.size()));
  std::vector<std::string> texts = Texts();
  const std::string chat = ChatOf(tokenizer);
  if (!chat.empty()) texts.push_back(chat);
  const absl::StatusOr<LlamaAnswer> answer =
      AskLlama(path, texts, prompt, count);
  if (!answer.ok()) {
    report->NotCompared("llama.cpp", answer.status().message());
    return absl::OkStatus();
  }
  for (size_t i = 0; i < texts.size(); ++i) {
    const std::vector<int64_t> wanted = IdsOf(tokenizer, texts[i]);
    if (wanted == answer->ids[i]) continue;
    const auto [theirs, ours] =
        std::mismatch(answer->ids[i].begin(), answer->ids[i].end(),
                      wanted.begin(), wanted.end());
    const std::string problem = absl::StrCat(
        "llama.cpp makes other tokens of \"",
        absl::Utf8SafeCEscape(texts[i].substr(0, 60)), "\": from token ",
        ours - wanted.begin(), " on ", FewIds(theirs, answer->ids[i].end()),
        " in place of ", FewIds(ours, wanted.end()));
    if (i < Texts().size()) return Unlike(problem);
    // Of a chat: its tokens may strip spaces, which llama.cpp's don't.
    report->Note(problem + ": chats differ there");
  }
  std::string row = absl::StrCat("tokens of ", Texts().size(), " texts equal");
  Json fact = {{"compared", true}, {"texts", Texts().size()}};
  if (compares_greedy && !answer->greedy.empty()) {
    CAPSTAN_ASSIGN_OR_RETURN(
        const int64_t equal,
        CompareGreedy(*generator.model, prompt, answer->greedy));
    absl::StrAppend(&row, ", ", equal, " of ", answer->greedy.size(),
                    " greedy tokens equal");
    fact["greedy_tokens"] = answer->greedy.size();
    fact["greedy_equal"] = equal;
  }
  report->Tell("llama.cpp", row, std::move(fact));
  return absl::OkStatus();
}

// Binds the file's weights, and compares.
absl::Status CompareOnText(std::vector<at::Tensor> weights, bool quantized,
                           const Generator& generator, const std::string& text,
                           ExportReport* report) {
  Model& model = *generator.model;
  std::vector<int64_t> ids =
      IdsOf(*generator.tokenizer, text.empty() ? kText : text);
  ids.resize(std::min<int64_t>({kTextTokens, static_cast<int64_t>(ids.size()),
                                model.token_model()->max_positions()}));
  if (ids.empty()) return FieldError("--text", "the text has no tokens");
  const at::Tensor wanted = LogitsOf(model, ids);
  if (InferenceWeights* const inference = model.inference_weights()) {
    CAPSTAN_RETURN_IF_ERROR(
        inference->BindForInference(std::move(weights), WeightForm::kFloat32));
  } else {
    model.Bind(std::move(weights));
  }
  const Divergence divergence = DivergenceOf(wanted, LogitsOf(model, ids));
  if (!std::isfinite(divergence.nats) ||
      (!quantized && divergence.nats > kMostDivergence)) {
    return Unlike(absl::StrFormat(
        "the file's model isn't the source's: they diverge by %g nats a token",
        divergence.nats));
  }
  const double nats = std::max(divergence.nats, 0.0);
  report->Tell(
      "divergence",
      absl::StrFormat("%.2e nats a token (KL, %d tokens); the same token is "
                      "the likeliest in %.1f%%",
                      nats, ids.size(), 100 * divergence.same),
      {{"kl", nats}, {"tokens", ids.size()}, {"likeliest", divergence.same}});
  return absl::OkStatus();
}

}  // namespace

void ExportReport::Tell(const std::string& name, const std::string& text,
                        Json fact) {
  rows.emplace_back(name, text);
  facts[absl::StrReplaceAll(name, {{" ", "_"}})] = std::move(fact);
}

void ExportReport::Note(const std::string& text) {
  rows.emplace_back("note", text);
  facts["notes"].push_back(text);
}

void ExportReport::NotCompared(const std::string& name, absl::string_view why) {
  Tell(name, absl::StrCat("not compared: ", why),
       {{"compared", false}, {"why", why}});
}

bool FitsInFloat32(const Model& model) {
  int64_t bytes = 0;
  for (const ParameterSpec& spec : model.parameters()) {
    bytes += spec.numel() * 4;
  }
  return bytes < AvailableHostMemory() / 10 * 9;
}

absl::Status CompareLogits(const at::Tensor& wanted, const at::Tensor& got,
                           double share, const std::string& name,
                           const std::string& who, ExportReport* report) {
  if (wanted.sizes() != got.sizes()) {
    return Unlike(absl::StrCat(who, " has logits of another shape"));
  }
  const double most = (wanted - got).abs().max().item<double>();
  const double reach = wanted.abs().max().item<double>();
  if (!(most <= share * reach)) {
    return Unlike(absl::StrFormat(
        "%s has other logits than the source: they differ by %.2e (the "
        "source's reach %.1f)",
        who, most, reach));
  }
  const int64_t tokens = wanted.size(0);
  report->Tell(
      name,
      most == 0.0
          ? absl::StrCat("logits of ", tokens, " tokens equal")
          : absl::StrFormat("logits of %d tokens differ by at most %.2e (they "
                            "reach %.1f)",
                            tokens, most, reach),
      {{"compared", true},
       {"tokens", tokens},
       {"most", most},
       {"reach", reach}});
  return absl::OkStatus();
}

absl::Status ProveGguf(const std::string& path, const std::string& file_type,
                       const Generator& generator, const LlamaModel& written,
                       const std::string& text, ExportReport* report) {
  const at::NoGradGuard no_grad;
  Model& model = *generator.model;
  const bool fits = FitsInFloat32(model);
  absl::StatusOr<GgufReading> reading =
      ReadGgufBack(path, model, written, fits);
  if (!reading.ok()) return WithCode(reading.status(), "export/unlike");
  report->Tell("tensors",
               absl::StrJoin(reading->types, ", ", absl::PairFormatter(" ")),
               reading->types);
  report->Tell(
      "read again",
      reading->error == 0.0
          ? "all values equal"
          : absl::StrFormat("all values within their types' bounds (at most "
                            "%.0f%% of them)",
                            100 * reading->error),
      {{"compared", true}, {"share_of_bounds", reading->error}});
  if (fits) {
    CAPSTAN_RETURN_IF_ERROR(CompareOnText(std::move(reading->weights),
                                          IsQuantized(file_type), generator,
                                          text, report));
  } else {
    report->NotCompared("divergence", kTooLarge);
  }
  // Of others it rounds activations by so much that it may well write another.
  const bool exact = file_type == "F32" || file_type == "F16";
  return CompareWithLlama(path, exact && fits, generator, report);
}

}  // namespace capstan
