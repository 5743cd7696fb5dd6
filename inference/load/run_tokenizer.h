// SPDX-License-Identifier: Apache-2.0
//
// Which tokenizer a run's data is read with: its model's, if there is one.
#ifndef CAPSTAN_INFERENCE_LOAD_RUN_TOKENIZER_H_
#define CAPSTAN_INFERENCE_LOAD_RUN_TOKENIZER_H_

#include <google/protobuf/any.pb.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/scratch_folder.h"
#include "host/config/load_config.h"
#include "host/plugins/plugin_host.h"
#include "plugins/sdk/dataset.h"

namespace capstan {

// Whether the config adds to the model's tokenizer: by add_tokens,
// add_special_tokens or chat_format.
bool AddsTokens(const RunConfig& config);

// While it lives, CurrentModelTokenizer (plugins/sdk/model_tokenizer.h), which
// the readers created meanwhile take. One at a time.
class RunTokenizer {
 public:
  // Of the first of `folders`, of one model, that has a tokenizer.json. Readers
  // find the model's config.json beside it, whichever of them has that.
  explicit RunTokenizer(const std::vector<std::string>& folders);
  ~RunTokenizer();
  RunTokenizer(const RunTokenizer&) = delete;
  RunTokenizer& operator=(const RunTokenizer&) = delete;

  // Adds what the config adds to it (AddsTokens). Returns how many tokens it
  // didn't have. Errors name the place in the config.
  absl::StatusOr<int64_t> AddTokens(const LoadedConfig& loaded);

  // A reader's config without a tokenizer that is the model's before AddTokens.
  google::protobuf::Any WithNewTokens(
      const google::protobuf::Any& reader) const;

  // An error, which names both and the place in the config, if `reader`, of the
  // slot `slot`, has a tokenizer that makes other tokens, or, if it isn't
  // train_data's, is told to take one with other ends or another template.
  absl::Status Check(const LoadedConfig& loaded, const std::string& slot,
                     const google::protobuf::Any& config,
                     const DatasetReader& reader) const;

  // If the model has none, or one with other ends or another template: from now
  // on it is that of `train_data`, which outlives the readers created after
  // this.
  absl::Status Adopt(const DatasetReader& train_data);

 private:
  // A folder of links to `folder`'s files and to the model's config.json.
  absl::Status LinkConfig(const std::string& folder);

  std::string owner_;        // for errors: "the model's, of FOLDER"
  absl::Status unreadable_;  // why the model's can't be read
  std::string folder_;       // the model's, as it was given; "": none
  std::string config_;       // the model's config.json; "": none
  std::unique_ptr<ScratchFolder> with_config_;  // of LinkConfig
  std::unique_ptr<ScratchFolder> with_new_;
  std::unique_ptr<ScratchFolder> of_train_data_;  // of Adopt
};

// Creates the reader in `slot` with the config `config` and checks it.
absl::StatusOr<std::unique_ptr<DatasetReader>> OpenReader(
    const LoadedConfig& loaded, const std::string& slot,
    const google::protobuf::Any& config, const RunTokenizer& tokenizer,
    PluginHost& host);

// A reader's config without what names a tokenizer (DataRole::TOKENIZER).
google::protobuf::Any WithoutTokenizer(const google::protobuf::Any& reader);

}  // namespace capstan

#endif  // CAPSTAN_INFERENCE_LOAD_RUN_TOKENIZER_H_
