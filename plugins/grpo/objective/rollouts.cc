// SPDX-License-Identifier: Apache-2.0
#include "plugins/grpo/objective/rollouts.h"

#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cstring>

#include "plugins/grpo/objective/grpo.pb.h"

namespace capstan::grpo {
namespace {

// Sizes and values of one rollout, as doubles, which have all of float's.
class Pack {
 public:
  explicit Pack(const std::vector<double>* values) : in_(values) {}
  explicit Pack(std::vector<double>* values) : out_(values) {}

  template <typename T>
  void Number(T* number) {
    if (out_ != nullptr) {
      out_->push_back(static_cast<double>(*number));
    } else {
      *number = static_cast<T>((*in_)[next_++]);
    }
  }
  template <typename T>
  void List(std::vector<T>* list) {
    auto size = static_cast<int64_t>(list->size());
    Number(&size);
    list->resize(size);
    for (T& value : *list) Number(&value);
  }
  void All(Rollout* rollout) {
    List(&rollout->text);
    Number(&rollout->prompt);
    List(&rollout->told);
    Number(&rollout->truncated);
    List(&rollout->log_probs);
    List(&rollout->reference);
    Number(&rollout->advantage);
    List(&rollout->metrics);
  }

 private:
  const std::vector<double>* in_ = nullptr;
  std::vector<double>* out_ = nullptr;
  size_t next_ = 0;
};

// Whether `told` is what it says.
bool ToldFits(const Rollout& rollout) {
  const std::vector<int64_t>& told = rollout.told;
  return told.size() % 2 == 0 && std::is_sorted(told.begin(), told.end()) &&
         (told.empty() ||
          (told.front() >= rollout.prompt &&
           told.back() <= static_cast<int64_t>(rollout.text.size())));
}

}  // namespace

std::vector<std::string> RowTexts(const Batch& batch) {
  const at::Tensor bytes = HostTensor(batch, kRowText).contiguous();
  std::vector<std::string> texts;
  for (int64_t r = 0; r < bytes.size(0); ++r) {
    const auto* const text = reinterpret_cast<const char*>(
        bytes.const_data_ptr<uint8_t>() + r * bytes.size(1));
    texts.emplace_back(text, strnlen(text, bytes.size(1)));
  }
  return texts;
}

std::vector<std::vector<int64_t>> PromptsOf(const Batch& batch) {
  const at::Tensor ids = HostTensor(batch, kInputIds).contiguous();
  const at::Tensor counts = HostTensor(batch, kTokenCounts);
  std::vector<std::vector<int64_t>> prompts;
  for (int64_t r = 0; r < ids.size(0); ++r) {
    const int64_t* const first =
        ids.const_data_ptr<int64_t>() + r * ids.size(1);
    const int64_t count =
        counts.defined() ? counts[r].item<int64_t>() : ids.size(1);
    prompts.emplace_back(first, first + count);
  }
  return prompts;
}

Batch BatchOf(absl::Span<const Rollout* const> rows, at::Device device,
              int64_t most) {
  const auto count = static_cast<int64_t>(rows.size());
  int64_t length = 1;
  for (const Rollout* row : rows) {
    length = std::max(length, static_cast<int64_t>(row->text.size()));
  }
  if (device.is_cuda()) length = LengthOnGpu(length, most);
  const at::Tensor ids = at::zeros({count, length}, at::kLong);
  const at::Tensor labels =
      at::full({count, length}, kIgnoredTarget, at::kLong);
  const at::Tensor counts = at::zeros({count}, at::kLong);
  const at::Tensor truncated = at::zeros({count}, at::kLong);
  const at::Tensor old = at::zeros({count, length}, at::kFloat);
  const at::Tensor reference = at::zeros({count, length}, at::kFloat);
  const at::Tensor advantages = at::zeros({count}, at::kFloat);
  const auto width = static_cast<int64_t>(rows[0]->metrics.size());
  const at::Tensor metrics = at::zeros({count, width}, at::kDouble);
  for (int64_t r = 0; r < count; ++r) {
    const Rollout& row = *rows[r];
    const auto& text = row.text;
    const int64_t at = r * length, answer = at + row.prompt;
    std::copy(text.begin(), text.end(), ids.mutable_data_ptr<int64_t>() + at);
    int64_t* const label = labels.mutable_data_ptr<int64_t>() + at;
    std::copy(text.begin() + row.prompt, text.end(), label + row.prompt);
    for (size_t i = 0; i < row.told.size(); i += 2) {
      std::fill(label + row.told[i], label + row.told[i + 1], kIgnoredTarget);
    }
    std::copy(row.log_probs.begin(), row.log_probs.end(),
              old.mutable_data_ptr<float>() + answer);
    std::copy(row.reference.begin(), row.reference.end(),
              reference.mutable_data_ptr<float>() + answer);
    std::copy(row.metrics.begin(), row.metrics.end(),
              metrics.mutable_data_ptr<double>() + r * width);
    counts.mutable_data_ptr<int64_t>()[r] = static_cast<int64_t>(text.size());
    truncated.mutable_data_ptr<int64_t>()[r] = row.truncated ? 1 : 0;
    advantages.mutable_data_ptr<float>()[r] = static_cast<float>(row.advantage);
  }
  Batch batch;
  batch[kInputIds] = ids;
  batch[kLabels] = labels;
  batch[kTokenCounts] = counts;
  batch[kTruncated] = truncated;
  batch[kOldLogProbs] = old;
  if (!rows[0]->reference.empty()) batch[kReferenceLogProbs] = reference;
  batch[kAdvantages] = advantages;
  batch[kAnswerMetrics] = metrics;
  if (device.is_cpu()) return batch;
  Batch moved;
  for (const auto& [name, tensor] : batch) {
    moved[name] = tensor.to(device);
    moved[HostCopyName(name)] = tensor;
  }
  return moved;
}

void Share(const std::function<void(absl::Span<double>)>& sum,
           std::vector<Rollout>* rows) {
  std::vector<std::vector<double>> packed(rows->size());
  std::vector<double> sizes(rows->size(), 0.0);
  for (size_t i = 0; i < rows->size(); ++i) {
    if ((*rows)[i].text.empty()) continue;  // another rank's
    Pack(&packed[i]).All(&(*rows)[i]);
    sizes[i] = static_cast<double>(packed[i].size());
  }
  sum(absl::MakeSpan(sizes));
  std::vector<double> all;
  for (size_t i = 0; i < rows->size(); ++i) {
    packed[i].resize(static_cast<size_t>(sizes[i]), 0.0);
    all.insert(all.end(), packed[i].begin(), packed[i].end());
  }
  sum(absl::MakeSpan(all));
  auto next = all.begin();
  for (size_t i = 0; i < rows->size(); ++i) {
    const std::vector<double> one(next, next + packed[i].size());
    next += static_cast<int64_t>(one.size());
    Pack(&one).All(&(*rows)[i]);
  }
}

std::string SaveState(const Saved& saved) {
  RolloutState state;
  for (const auto& [reward, probe] : saved.probes) {
    RolloutState::Probe* const out = state.add_probe();
    out->set_reward(reward);
    out->set_row(probe.row);
    out->set_score(probe.score);
  }
  if (!saved.rows.empty()) state.set_first_position(saved.first_position);
  for (const Rollout& row : saved.rows) {
    RolloutState::Row* const out = state.add_row();
    *out->mutable_text() = {row.text.begin(), row.text.end()};
    out->set_prompt(row.prompt);
    *out->mutable_told() = {row.told.begin(), row.told.end()};
    out->set_truncated(row.truncated);
    *out->mutable_log_probs() = {row.log_probs.begin(), row.log_probs.end()};
    *out->mutable_reference() = {row.reference.begin(), row.reference.end()};
    out->set_advantage(row.advantage);
    *out->mutable_metrics() = {row.metrics.begin(), row.metrics.end()};
  }
  return state.SerializeAsString();
}

absl::StatusOr<Saved> ReadState(absl::string_view state) {
  RolloutState read;
  if (!read.ParseFromArray(state.data(), static_cast<int>(state.size()))) {
    return absl::InvalidArgumentError("the rollouts can't be read");
  }
  Saved saved;
  for (const RolloutState::Probe& probe : read.probe()) {
    saved.probes[probe.reward()] = {probe.row(), probe.score()};
  }
  std::vector<Rollout>& rows = saved.rows;
  for (const RolloutState::Row& row : read.row()) {
    Rollout& out = rows.emplace_back();
    out.text.assign(row.text().begin(), row.text().end());
    out.prompt = row.prompt();
    out.told.assign(row.told().begin(), row.told().end());
    out.truncated = row.truncated();
    out.log_probs.assign(row.log_probs().begin(), row.log_probs().end());
    out.reference.assign(row.reference().begin(), row.reference().end());
    out.advantage = row.advantage();
    out.metrics.assign(row.metrics().begin(), row.metrics().end());
    const int64_t answer = out.answer();
    if (out.prompt < 1 || answer < 1 || !ToldFits(out) ||
        static_cast<int64_t>(out.log_probs.size()) != answer ||
        (!out.reference.empty() &&
         static_cast<int64_t>(out.reference.size()) != answer) ||
        out.reference.empty() != rows[0].reference.empty() ||
        out.metrics.size() != rows[0].metrics.size()) {
      return absl::InvalidArgumentError("the rollouts' sizes don't fit");
    }
  }
  saved.first_position = read.first_position();
  return saved;
}

}  // namespace capstan::grpo
