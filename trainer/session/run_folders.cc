// SPDX-License-Identifier: Apache-2.0
#include "trainer/session/run_folders.h"

#include <filesystem>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/files.h"
#include "base/json.h"
#include "base/status.h"
#include "host/config/load_config.h"
#include "trainer/checkpoint/base_weights.h"
#include "trainer/checkpoint/checkpoint.h"
#include "trainer/session/model_card.h"
#include "trainer/session/run_identity.h"

namespace capstan {
namespace {

namespace fs = std::filesystem;
using PlainJson = nlohmann::json;

// The config's text in a folder that a run made, without the folders of the
// machine that it ran on; "": there is none.
std::string PublicConfig(const std::string& folder) {
  const absl::StatusOr<std::string> text =
      ReadWholeFile(folder + "/capstan.json");
  if (!text.ok()) return "";
  const PlainJson json = ParseJson<PlainJson>(*text);
  return json.is_object() && json.contains("config") &&
                 json["config"].is_string()
             ? json["config"].get<std::string>()
             : "";
}

// What such a config says of the model and the data.
std::string PartsText(const RunConfig& run) {
  // Twice, as a hub name loses its organisation if it is shortened once more,
  // and one of the two to be compared has been.
  const RunConfig portable = PortableConfig(PortableConfig(run));
  RunConfig parts;
  *parts.mutable_model() = portable.model();
  *parts.mutable_objective() = portable.objective();
  *parts.mutable_train_data() = portable.train_data();
  *parts.mutable_eval_data() = portable.eval_data();
  *parts.mutable_eval_sets() = portable.eval_sets();
  return PrintConfig(parts);
}

// RunFolders::RunOf. The folder has nothing of this machine's folders in it, as
// it may be published; they are found in OUTPUT/config.pbtxt, as long as it
// lies there.
absl::optional<RunConfig> ReadRunOf(const std::string& folder,
                                    const ConfigContext& context) {
  const std::string text = PublicConfig(folder);
  if (text.empty()) return absl::nullopt;
  absl::StatusOr<LoadedConfig> run =
      ParseConfig(text, folder + "/capstan.json", context);
  if (!run.ok()) return absl::nullopt;
  const std::string beside =
      (fs::path(folder) / ".." / "config.pbtxt").lexically_normal().string();
  const absl::StatusOr<std::string> own = ReadWholeFile(beside);
  if (own.ok()) {
    absl::StatusOr<LoadedConfig> whole = ParseConfig(*own, beside, context);
    // Another run may have begun there since.
    if (whole.ok() && PartsText(whole->config) == PartsText(run->config)) {
      return std::move(whole->config);
    }
  }
  return std::move(run->config);
}

class FoldersHere : public RunFolders {
 public:
  bool IsCheckpoint(const std::string& folder) const override {
    return capstan::IsCheckpoint(folder);
  }
  std::string NewestCheckpoint(const std::string& run) const override {
    return capstan::NewestCheckpoint(run);
  }
  absl::StatusOr<std::string> CheckpointConfig(
      const std::string& folder) const override {
    return capstan::CheckpointConfig(folder);
  }
  absl::StatusOr<std::vector<at::Tensor>> CheckpointWeights(
      const std::string& folder, const std::vector<ParameterSpec>& specs,
      const InitialValues& initial) const override {
    return capstan::CheckpointWeights(folder, specs, initial);
  }
  absl::optional<RunConfig> RunOf(const std::string& folder,
                                  const ConfigContext& context) const override {
    return ReadRunOf(folder, context);
  }
  absl::StatusOr<std::string> CheckBaseWeights(
      const std::string& adapter, const std::string& base) const override {
    CAPSTAN_RETURN_IF_ERROR(capstan::CheckBaseWeights(adapter, base));
    return NoteWithoutBase(adapter);
  }
  absl::Status CheckFrozenWeights(const std::string& checkpoint,
                                  const std::string& base) const override {
    CAPSTAN_ASSIGN_OR_RETURN(const RunIdentity identity,
                             CheckpointIdentity(checkpoint));
    const auto trained = identity.find(kBaseIdentity);
    if (trained == identity.end()) return absl::OkStatus();
    return capstan::CheckBaseWeights(checkpoint, trained->second, base);
  }
};

}  // namespace

const RunFolders& RunFoldersHere() {
  static const auto* const folders = new FoldersHere;
  return *folders;
}

}  // namespace capstan
