// SPDX-License-Identifier: Apache-2.0
#include "trainer/session/check_final.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/norm.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/files.h"
#include "base/machine.h"
#include "base/status.h"
#include "cluster/comm/agree.h"
#include "host/config/hub_path.h"
#include "host/config/load_config.h"
#include "host/plugins/plugin_host.h"
#include "inference/load/generator.h"
#include "inference/load/sample_logits.h"
#include "kernels/context/run_device.h"
#include "plugins/sdk/memory.h"
#include "trainer/session/run_folders.h"
#include "trainer/session/run_parts.h"
#include "trainer/session/whose_code.h"

namespace capstan {
namespace {

// Of float32 weights: of more, reading would take longer than it is worth.
constexpr int64_t kMostBytes = int64_t{1} << 30;

// How far a token's logits may be apart, over their norm. The run computes in
// its precision, the folder's reader in float32 on the CPU.
double MostApart(const RunPlan& plan) {
  // E4M3 rounds each factor by up to 1/16, which adds up over layers; another
  // model's logits are about 1.4 apart.
  if (plan.parts.fp8.has_value()) return 0.5;
  const bool quantized = plan.parts.lora.has_value() &&
                         plan.parts.lora->quantize != Quantize::kFolders;
  const bool exact = plan.group->device().is_cpu() && !quantized &&
                     plan.parts.policy().compute == at::kFloat;
  return exact ? 1e-3 : 0.1;
}

// The tokens' median: experts may choose otherwise for some. A score, which may
// be near 0, is compared with all tokens' root mean square.
double MedianApart(const at::Tensor& logits, const at::Tensor& others) {
  at::Tensor size = at::norm(logits, 2, {1}, /*keepdim=*/false);
  if (logits.size(1) == 1) size = size.square().mean().sqrt();
  const at::Tensor apart =
      at::norm(logits - others, 2, {1}, /*keepdim=*/false) /
      size.clamp_min(1e-12);
  std::vector<float> all(apart.const_data_ptr<float>(),
                         apart.const_data_ptr<float>() + apart.numel());
  const auto middle = all.begin() + static_cast<int64_t>(all.size() / 2);
  std::nth_element(all.begin(), middle, all.end());
  return *middle;
}

// What the model in the folder says.
absl::StatusOr<at::Tensor> LogitsOfFolder(const std::string& folder,
                                          const Session& session,
                                          const std::vector<int64_t>& tokens) {
  const auto restore = absl::MakeCleanup(
      [device = CurrentRunDevice()] { SetRunDevice(device); });
  SetRunDevice({});  // the folder's model is for the CPU
  const bool adapter = session.parts.lora.has_value();
  const std::string base = BaseModelOf(session.config).folder;
  // LoadGenerator resolves others against the caller's folder.
  const auto absolute = [](const std::string& path) {
    return IsHubPath(path) ? path : std::filesystem::absolute(path).string();
  };
  const std::string final = absolute(folder);
  // The base's weights are those that the run has begun with, or the logits
  // differ.
  const AdapterOptions with = {adapter ? final : "", /*other_base=*/true};
  CAPSTAN_ASSIGN_OR_RETURN(
      const Generator generator,
      LoadGenerator(adapter ? absolute(base) : final, with,
                    std::make_unique<PluginHost>(std::vector<std::string>()),
                    RunFoldersHere(), {}, {WeightForm::kFloat32}));
  return LogitsOf(*generator.model, tokens);
}

// Whether the plugin that opens the folder for its users is the run's own: a
// variant of a known architecture may write that one's model_type.
bool OwnPluginReads(const std::string& folder, const Session& session) {
  if (session.parts.lora.has_value()) {
    return !BaseModelOf(session.config).folder.empty();
  }
  const PluginHost host({});
  const absl::StatusOr<std::string> package = ReaderOfFolder(folder, host);
  return package.ok() && *package == PackageOf(TypeOf(session.config.model()));
}

// Its users are not to find a folder that is another model.
absl::Status Remove(const std::string& folder, const std::string& why) {
  RemoveTree(folder).IgnoreError();
  return absl::DataLossError(absl::StrCat(folder, why));
}

absl::Status Compare(const std::string& folder, const Session& session,
                     const std::vector<int64_t>& tokens,
                     const at::Tensor& logits) {
  if (!at::isfinite(logits).all().item<bool>()) return absl::OkStatus();
  const absl::StatusOr<at::Tensor> read =
      LogitsOfFolder(folder, session, tokens);
  // There is no room.
  if (absl::IsResourceExhausted(read.status())) return absl::OkStatus();
  if (!read.ok()) {
    return WithMessage(
        read.status(),
        absl::StrCat(folder, " can't be opened again, and stays as it is: ",
                     read.status().message(),
                     ": put that right, and go on with train.resume=AUTO"));
  }
  if (read->sizes() != logits.sizes()) {
    return Remove(folder, " is a model of another form than the run's");
  }
  const double apart = MedianApart(logits, *read);
  if (apart <= MostApart(session)) return absl::OkStatus();
  return Remove(
      folder,
      absl::StrFormat(
          " isn't the model that was trained: opened again, its logits differ "
          "by %.2g of their size; the folder is removed. Was the base changed "
          "meanwhile, or does the disk fail? The last checkpoint has all: go "
          "on with train.resume=AUTO",
          apart));
}

}  // namespace

absl::Status CheckFinal(const std::string& folder, Session* session) {
  ProcessGroup& group = *session->group;
  Model& model = *session->parts.model;
  Strategy& strategy = *session->parts.strategy;
  const int64_t bytes = 4 * ParameterCount(model);
  if (model.token_model() == nullptr || bytes > kMostBytes) {
    return absl::OkStatus();
  }
  const bool first = group.rank() == 0;
  CAPSTAN_ASSIGN_OR_RETURN(
      const bool passed_over,
      AnyRank(group, first && (bytes > AvailableHostMemory() ||
                               !OwnPluginReads(folder, *session))));
  if (passed_over) return absl::OkStatus();
  std::vector<int64_t> tokens;
  at::Tensor logits;
  absl::Status status = CatchAll([&]() -> absl::Status {
    CAPSTAN_ASSIGN_OR_RETURN(tokens, FixedTokens(model));
    // Of scores the ranks that share rows with the first compute parts.
    const bool shares = model.token_model()->text_scores() != nullptr &&
                        session->data_rank() == 0;
    if (!first && !shares && !strategy.collective_forward()) {
      return absl::OkStatus();
    }
    return session->WithSharedModel([&] {
      const MemoryScope scope(MemoryCategory::kActivations);
      const WhoseCode code(session->plugins.model, "Logits");
      logits = LogitsOf(model, tokens, session->runner);
      strategy.FinishForward();
      return absl::OkStatus();
    });
  });
  constexpr char kWhat[] = "open final/ again";
  CAPSTAN_RETURN_IF_ERROR(AgreeAfterCollectives(group, status, kWhat));
  if (first) {
    status =
        CatchAll([&] { return Compare(folder, *session, tokens, logits); });
  }
  return Agree(group, status, kWhat);
}

}  // namespace capstan
