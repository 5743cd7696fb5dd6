// SPDX-License-Identifier: Apache-2.0
#include "plugins/dpo/objective/dpo.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "kernels/to_device.h"
#include "plugins/objective/common/pairs.h"
#include "plugins/objective/common/token_objective.h"
#include "plugins/objective/common/twin_runner.h"
#include "plugins/sdk/dataset.h"
#include "plugins/sdk/lib/field_check.h"
#include "plugins/sdk/token_model.h"
// Last: its CHECK is the one to use.
#include <glog/logging.h>

namespace capstan::dpo {
namespace {

constexpr char kHowToMake[] =
    "`trainer dpo-reference` with this run's config, model and data makes it";

// [B] float32, from Rollout: log p of the mismatched answers over that under
// the reference.
constexpr char kMismatched[] = "mismatched_logratios";

// A tensor of the batch, or its copy on the CPU.
at::Tensor TextOf(const Batch& batch, const char* name, bool host) {
  return host ? HostTensor(batch, name) : batch.at(name);
}

// For each token of a chosen text that isn't its completion's, [2 B, T]:
// shifted, too.
at::Tensor PromptTargets(const Batch& batch, int64_t pairs, bool host) {
  const at::Tensor ids = TextOf(batch, kInputIds, host);
  at::Tensor is_prompt = TextOf(batch, kLabels, host).lt(0);
  if (batch.count(kTokenCounts) > 0) {
    const at::Tensor counts = TextOf(batch, kTokenCounts, host);
    is_prompt = is_prompt &
                at::arange(ids.size(1), ids.options())
                    .unsqueeze(0)
                    .lt(kernels::ToDevice(counts, ids.device()).unsqueeze(1));
  }
  const at::Tensor labels = ids.masked_fill(~is_prompt, kIgnoredTarget);
  labels.narrow(0, pairs, pairs).fill_(kIgnoredTarget);
  return NextOf(labels, kIgnoredTarget);
}

RowLosses& RowLossesOf(Model& model) {
  RowLosses* const rows = model.token_model()->row_losses();
  CHECK(rows != nullptr) << "Check comes first";
  return *rows;
}

// The tokens of the batch's chosen texts that something predicts.
int64_t ChosenTokens(const Batch& batch, int64_t pairs) {
  const at::Tensor counts = HostTensor(batch, kTokenCounts);
  if (!counts.defined()) {
    return pairs * (batch.at(kInputIds).size(1) - 1);
  }
  return counts.narrow(0, 0, pairs).sum().item<int64_t>() - pairs;
}

absl::Status CheckOptions(const Config& config, const LossOptions& options) {
  CAPSTAN_RETURN_IF_ERROR(
      CheckField(options.beta > 0.0 && std::isfinite(options.beta), "beta",
                 "greater than 0", options.beta));
  CAPSTAN_RETURN_IF_ERROR(CheckField(
      options.label_smoothing >= 0.0 && options.label_smoothing < 0.5,
      "label_smoothing", "in [0, 0.5)", options.label_smoothing));
  CAPSTAN_RETURN_IF_ERROR(
      CheckField(options.gamma >= 0.0 && std::isfinite(options.gamma),
                 "simpo_gamma", "0 or greater", options.gamma));
  if (options.label_smoothing > 0.0 && options.loss != SIGMOID &&
      options.loss != SIMPO) {
    return FieldError("label_smoothing",
                      absl::StrCat("is for loss: SIGMOID and SIMPO, not ",
                                   Loss_Name(options.loss)));
  }
  if (config.has_simpo_gamma() && options.loss != SIMPO) {
    return FieldError("simpo_gamma", absl::StrCat("is for loss: SIMPO, not ",
                                                  Loss_Name(options.loss)));
  }
  for (const auto& [has, name, weight] :
       {std::make_tuple(config.has_desirable_weight(), "desirable_weight",
                        options.desirable_weight),
        std::make_tuple(config.has_undesirable_weight(), "undesirable_weight",
                        options.undesirable_weight)}) {
    CAPSTAN_RETURN_IF_ERROR(CheckField(weight >= 0.0 && std::isfinite(weight),
                                       name, "0 or greater", weight));
    if (has && !IsOfAnswers(options.loss)) {
      return FieldError(name,
                        absl::StrCat("is for loss: KTO and APO_ZERO_UNPAIRED, "
                                     "not ",
                                     Loss_Name(options.loss)));
    }
  }
  if (!NeedsReference(options.loss) && !config.reference().empty()) {
    return FieldError("reference", absl::StrCat("isn't used by loss: ",
                                                Loss_Name(options.loss)));
  }
  if (config.write_reference() && config.reference().empty()) {
    return FieldError("reference",
                      "is not set: name the file to write, which training then "
                      "reads");
  }
  return absl::OkStatus();
}

}  // namespace

// [2 B] float32, chosen texts first.
struct Dpo::Rows {
  at::Tensor logps;      // sums over the completions' tokens, with gradient
  at::Tensor tokens;     // their numbers
  at::Tensor reference;  // as logps; undefined if the loss needs none
  at::Tensor prompts;    // ORPO: -log p of the chosen prompts, [2 B]
};

absl::StatusOr<std::unique_ptr<Dpo>> Dpo::Create(const Config& config) {
  LossOptions options;
  options.loss = config.loss();
  if (config.has_beta()) options.beta = config.beta();
  options.label_smoothing = config.label_smoothing();
  if (config.has_simpo_gamma()) options.gamma = config.simpo_gamma();
  if (config.has_desirable_weight()) {
    options.desirable_weight = config.desirable_weight();
  }
  if (config.has_undesirable_weight()) {
    options.undesirable_weight = config.undesirable_weight();
  }
  CAPSTAN_RETURN_IF_ERROR(CheckOptions(config, options));
  CAPSTAN_ASSIGN_OR_RETURN(SampleOptions sampling, SamplingOf(config));
  return std::unique_ptr<Dpo>(new Dpo(config, options, std::move(sampling)));
}

absl::Status Dpo::CheckModel(Model& model) const {
  TokenModel* const tokens = model.token_model();
  if (tokens != nullptr && tokens->causal() &&
      tokens->row_losses() != nullptr) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      "dpo needs a model of token sequences in which a token sees only what "
      "comes before it, and which gives the loss of each text apart "
      "(TokenModel::row_losses); this model isn't one (a LLaDA learns from "
      "pairs by capstan.masked_diffusion with loss: VRPO)");
}

absl::Status Dpo::Check(Model& model, const DatasetReader& data) const {
  CAPSTAN_RETURN_IF_ERROR(CheckModel(model));
  const TokenModel* tokens = model.token_model();
  CAPSTAN_RETURN_IF_ERROR(
      CheckPairs(*tokens, data, IsOfAnswers(options_.loss)));
  if (writes() || !NeedsReference(options_.loss)) return absl::OkStatus();
  return CheckReference(model);
}

absl::Status Dpo::CheckReference(Model& model) const {
  if (config_.reference().empty()) {
    if (model.has_adapter()) return absl::OkStatus();
    return FieldError(
        "reference",
        absl::StrCat(
            "is not set, and there is no adapter to switch off: loss: ",
            Loss_Name(options_.loss),
            " compares with the model that training starts from. Say where "
            "its log-probabilities are to be, and ",
            kHowToMake,
            "; or train an adapter (adapter { lora {} }), or take loss: ORPO "
            "or SIMPO, which compare with nothing"));
  }
  absl::StatusOr<Reference> file = ReadReference(config_.reference());
  if (absl::IsNotFound(file.status())) {
    return FieldError("reference",
                      absl::StrCat(file.status().message(), ": ", kHowToMake));
  }
  if (!file.ok()) return FieldError("reference", file.status().message());
  reference_ = *std::move(file);
  return absl::OkStatus();
}

int64_t Dpo::CountTargets(const Batch& batch, const StepInfo&) const {
  return PairsOf(batch, IsOfAnswers(options_.loss));
}

std::vector<double> Dpo::StepTotals(const Batch& batch, const StepInfo&) const {
  if (options_.loss == KTO) {
    const auto ratios = batch.find(kMismatched);
    if (ratios == batch.end()) return {0.0, 0.0};
    return {ratios->second.to(at::kDouble).sum().item<double>(),
            static_cast<double>(ratios->second.numel())};
  }
  if (options_.loss != ORPO) return {};
  const int64_t pairs = PairsOf(batch);
  return {static_cast<double>(ChosenTokens(batch, pairs)),
          static_cast<double>(pairs)};
}

std::vector<MetricTags> Dpo::metrics() const {
  std::vector<std::string> names =
      IsOfAnswers(options_.loss) ? AnswerMetrics() : MetricNames(options_.loss);
  if (options_.loss == ORPO) names.push_back("nll_loss");
  std::vector<MetricTags> tags;
  for (const std::string& name : names) {
    tags.push_back({absl::StrCat("train/", name), absl::StrCat("eval/", name)});
  }
  return tags;
}

at::Tensor Dpo::FromFile(const Batch& batch, const at::Tensor& like) const {
  CHECK(reference_.has_value()) << "Check comes first";
  const at::Tensor keys = HostTensor(batch, kPairKeys).contiguous();
  const int64_t pairs = keys.numel();
  at::Tensor logps = at::empty({2 * pairs}, at::kFloat);
  float* const out = logps.mutable_data_ptr<float>();
  for (int64_t i = 0; i < pairs; ++i) {
    const auto found =
        reference_->pairs.find(keys.const_data_ptr<int64_t>()[i]);
    if (found == reference_->pairs.end()) {
      throw std::invalid_argument(absl::StrCat(
          config_.reference(), " has no log-probabilities of pair ", i,
          " of this batch: the data, its tokenizer, template or max_length, or "
          "the date if the template shows it, have changed since it was made "
          "(or it is of other data); ",
          kHowToMake));
    }
    out[i] = found->second.chosen;
    out[pairs + i] = found->second.rejected;
  }
  return logps.to(like.device());
}

Dpo::Rows Dpo::Forward(Model& model, const Batch& batch, const StepInfo& info,
                       UnitRunner& runner, Texts texts) const {
  const int64_t pairs = CountTargets(batch, info);
  const auto part = [&](const at::Tensor& rows) {
    if (texts == Texts::kAll || !rows.defined()) return rows;
    return rows.narrow(0, texts == Texts::kFirst ? 0 : pairs, pairs);
  };
  TokenInput input;
  input.tokens = part(batch.at(kInputIds));
  if (info.training) input.sample_positions = part(TextPositions(batch));
  // The head then leaves prompts and padding out.
  const bool host = TakesHostTargets(*model.token_model());
  const at::Tensor completions =
      NextOf(part(TextOf(batch, kLabels, host)), kIgnoredTarget);
  std::vector<at::Tensor> sets = {completions};
  if (options_.loss == ORPO) {
    sets.push_back(PromptTargets(batch, pairs, host));
  }
  const at::Tensor targets = at::stack(sets);
  RowLosses& model_rows = RowLossesOf(model);
  Rows rows;
  at::Tensor sums;
  if (!writes() && NeedsReference(options_.loss) && !reference_.has_value()) {
    CHECK(model.has_adapter()) << "Check comes first";
    TokenInput plain;
    plain.tokens = input.tokens;
    TwinRunner twin(RecordWithoutAdapter(model,
                                         [&](UnitRunner& recorder) {
                                           model_rows.CrossEntropyRows(
                                               plain, targets, recorder);
                                         }),
                    &runner);
    sums = model_rows.CrossEntropyRows(input, targets, twin);
    rows.reference = -twin.output()[0];
  } else {
    sums = model_rows.CrossEntropyRows(input, targets, runner);
    if (reference_.has_value()) rows.reference = part(FromFile(batch, sums));
  }
  rows.logps = -sums[0];
  if (options_.loss == ORPO) rows.prompts = sums[1];
  rows.tokens =
      kernels::ToDevice(completions.ge(0).sum(1).to(at::kFloat), sums.device());
  return rows;
}

LossSum Dpo::Compute(Model& model, const Batch& batch, const StepInfo& info,
                     UnitRunner& runner) {
  const int64_t n = CountTargets(batch, info);
  if (info.training && writes()) {
    throw std::invalid_argument(
        "objective.write_reference is for an evaluation, such as `trainer "
        "dpo-reference` runs");
  }
  if (info.training && reference_.has_value() && !compared_models_) {
    absl::StatusOr<std::string> mine = ModelFingerprint(model, info.seed);
    if (!mine.ok()) {
      throw std::runtime_error(
          mine.status().ToString(absl::StatusToStringMode::kWithNoExtraData));
    }
    if (*mine != reference_->model) {
      throw std::invalid_argument(absl::StrCat(
          config_.reference(),
          " has the log-probabilities of another model than the one that this "
          "run starts from; ",
          kHowToMake));
    }
    compared_models_ = true;
  }
  const bool first_alone = !writes() && (options_.loss == APO_ZERO_UNPAIRED ||
                                         batch.count(kMismatched) > 0);
  const Rows rows = Forward(model, batch, info, runner,
                            first_alone ? Texts::kFirst : Texts::kAll);
  LossSum loss;
  loss.count = n;
  const TokenTotals totals = CountTokens(batch);
  loss.tokens = totals.tokens;
  loss.padding = totals.padding;
  if (writes()) {
    Keep(batch, rows.logps);
    loss.sum = at::zeros({}, rows.logps.options());
    return loss;
  }
  loss.trained = HostTensor(batch, kLabels)
                     .narrow(0, 0, IsOfAnswers(options_.loss) ? n : 2 * n)
                     .narrow(1, 1, batch.at(kLabels).size(1) - 1)
                     .ge(0)
                     .sum()
                     .item<int64_t>();
  if (IsOfAnswers(options_.loss)) {
    AnswersLoss(batch, info, rows, &loss);
    return loss;
  }
  const auto half = [n](const at::Tensor& t, int64_t which) {
    return t.defined() ? t.narrow(0, which * n, n) : t;
  };
  const Pairs pairs = {half(rows.logps, 0),     half(rows.logps, 1),
                       half(rows.tokens, 0),    half(rows.tokens, 1),
                       half(rows.reference, 0), half(rows.reference, 1)};
  const PairLosses losses = LossesOf(options_, pairs);
  loss.sum = losses.losses.sum();
  std::vector<at::Tensor> metrics;
  for (const at::Tensor& each : losses.metrics) {
    metrics.push_back(MetricRow(each.sum(), static_cast<double>(n)));
  }
  if (options_.loss == ORPO) {
    // As TRL's ORPOTrainer.concatenated_forward: of the prompt, too. A mean
    // over the step's tokens beside one over its pairs.
    const at::Tensor nll = rows.prompts.sum() - pairs.chosen.sum();
    const std::vector<double> all =
        info.totals.size() == 2 ? info.totals : StepTotals(batch, info);
    loss.sum = loss.sum + nll * (all[1] / std::max(all[0], 1.0));
    metrics.push_back(
        MetricRow(nll, static_cast<double>(ChosenTokens(batch, n))));
  }
  loss.metrics = at::stack(metrics);
  return loss;
}

void Dpo::AnswersLoss(const Batch& batch, const StepInfo& info,
                      const Rows& rows, LossSum* loss) const {
  const int64_t n = loss->count;
  double z = 0.0;
  if (options_.loss == KTO) {
    // An evaluation has no rollouts: the term is its micro-batch's.
    double sum = 0.0, count = 0.0;
    if (info.totals.size() == 2 && info.totals[1] > 0.0) {
      sum = info.totals[0];
      count = info.totals[1];
    } else if (batch.count(kMismatched) > 0) {
      const std::vector<double> own = StepTotals(batch, info);
      sum = own[0];
      count = own[1];
    } else {
      const at::Tensor ratios = (rows.logps - rows.reference).detach();
      sum = ratios.narrow(0, n, n).to(at::kDouble).sum().item<double>();
      count = static_cast<double>(n);
    }
    z = std::max(sum / count, 0.0);
  }
  Answers answers;
  answers.logps = rows.logps.narrow(0, 0, n);
  answers.reference = rows.reference.narrow(0, 0, n);
  answers.desirable = batch.at(kDesirable).ne(0).to(rows.logps.device());
  const AnswerLosses losses = LossesOf(options_, answers, z);
  loss->sum = losses.sum;
  loss->metrics = losses.metrics;
}

absl::Status Dpo::Rollout(Model& model, std::vector<Batch>* batches,
                          const RolloutInfo& info, UnitRunner& runner) {
  for (size_t i = 0; !info.all_done(i >= batches->size()); ++i) {
    Batch& batch = (*batches)[std::min(i, batches->size() - 1)];
    const Rows rows = Forward(model, batch, {}, runner, Texts::kSecond);
    batch[kMismatched] = rows.logps - rows.reference;
  }
  return absl::OkStatus();
}

void Dpo::Keep(const Batch& batch, const at::Tensor& logps) {
  const at::Tensor keys = HostTensor(batch, kPairKeys).contiguous();
  const at::Tensor indices = HostTensor(batch, kSamplePosition).contiguous();
  const at::Tensor host = logps.detach().to(at::kCPU, at::kFloat).contiguous();
  const float* const values = host.const_data_ptr<float>();
  const int64_t n = keys.numel();
  for (int64_t i = 0; i < n; ++i) {
    kept_[indices.const_data_ptr<int64_t>()[i]] = {
        keys.const_data_ptr<int64_t>()[i], {values[i], values[n + i]}};
  }
}

namespace {

// A pair's numbers in the sums over the ranks: the key's halves, its
// log-probabilities, and how many ranks have had it.
enum { kLow, kHigh, kChosen, kRejected, kRanks, kNumbers };

}  // namespace

absl::StatusOr<std::vector<double>> Dpo::Measure(Model& model,
                                                 const DatasetReader& eval_data,
                                                 const MeasureInfo& info,
                                                 UnitRunner&) {
  std::vector<double> sums;
  if (!writes()) return sums;
  CAPSTAN_ASSIGN_OR_RETURN(fingerprint_, ModelFingerprint(model, info.seed));
  sums.assign(kNumbers * eval_data.size(), 0.0);
  for (const auto& [index, pair] : kept_) {
    const auto key = static_cast<uint64_t>(pair.first);
    double* const to = &sums[kNumbers * index];
    to[kLow] = static_cast<double>(key & 0xffffffff);
    to[kHigh] = static_cast<double>(key >> 32);
    to[kChosen] = pair.second.chosen;
    to[kRejected] = pair.second.rejected;
    to[kRanks] = 1.0;
  }
  kept_.clear();
  return sums;
}

Measurement Dpo::Summarize(absl::Span<const double> sums,
                           const MeasureInfo& info) const {
  Reference reference;
  reference.model = fingerprint_;
  for (size_t i = 0; i < sums.size(); i += kNumbers) {
    const double ranks = sums[i + kRanks];
    if (ranks == 0.0) continue;
    const auto low = static_cast<uint64_t>(sums[i + kLow] / ranks);
    const auto high = static_cast<uint64_t>(sums[i + kHigh] / ranks);
    reference.pairs[static_cast<int64_t>(high << 32 | low)] = {
        static_cast<float>(sums[i + kChosen] / ranks),
        static_cast<float>(sums[i + kRejected] / ranks)};
  }
  Measurement measurement;
  if (info.rank != 0) return measurement;
  const absl::StatusOr<int64_t> pairs =
      WriteReference(config_.reference(), std::move(reference));
  if (!pairs.ok()) {
    throw std::runtime_error(
        pairs.status().ToString(absl::StatusToStringMode::kWithNoExtraData));
  }
  measurement.scalars.emplace_back("eval/reference_pairs",
                                   static_cast<double>(*pairs));
  return measurement;
}

}  // namespace capstan::dpo
