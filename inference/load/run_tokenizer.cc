// SPDX-License-Identifier: Apache-2.0
#include "inference/load/run_tokenizer.h"

#include <google/protobuf/descriptor.h>

#include <filesystem>
#include <memory>
#include <system_error>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "plugins/sdk/chat_template.h"
#include "plugins/sdk/lib/token_difference.h"
#include "plugins/sdk/model_tokenizer.h"
#include "plugins/sdk/options.pb.h"
#include "text/tokenizer/add_tokens.h"
#include "text/tokenizer/unicode.h"

namespace capstan {
namespace {

using google::protobuf::Any;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

// The fields of a reader's config that name a tokenizer and are set.
std::vector<const FieldDescriptor*> TokenizerFields(const Message& config) {
  std::vector<const FieldDescriptor*> set;
  std::vector<const FieldDescriptor*> named;
  config.GetReflection()->ListFields(config, &set);
  for (const FieldDescriptor* field : set) {
    if (field->options().GetExtension(data_role) == DataRole::TOKENIZER) {
      named.push_back(field);
    }
  }
  return named;
}

// "\"/models/x\"", "folder: \"/models/x\"".
std::string ValueText(const Message& config, const FieldDescriptor& field) {
  const google::protobuf::Reflection& reflection = *config.GetReflection();
  return field.type() == FieldDescriptor::TYPE_MESSAGE
             ? reflection.GetMessage(config, &field).ShortDebugString()
             : absl::StrCat("\"", reflection.GetString(config, &field), "\"");
}

// The first of the fields that add tokens.
const char* AddingField(const RunConfig& config) {
  if (config.add_tokens_size() > 0) return "add_tokens";
  if (config.add_special_tokens_size() > 0) return "add_special_tokens";
  return config.chat_format() != RunConfig::TOKENIZERS ? "chat_format"
                                                       : nullptr;
}

absl::StatusOr<tokenizer::TokensToAdd> TokensOf(const RunConfig& config) {
  tokenizer::TokensToAdd add;
  for (const auto& [field, tokens, into] :
       {std::make_tuple("add_tokens", &config.add_tokens(), &add.plain),
        std::make_tuple("add_special_tokens", &config.add_special_tokens(),
                        &add.special)}) {
    into->assign(tokens->begin(), tokens->end());
    for (const std::string& token : *tokens) {
      if (token.empty()) return FieldError(field, "has an empty token");
      if (tokenizer::IsUtf8(token)) continue;
      return FieldError(field, "has a token that isn't UTF-8");
    }
  }
  if (config.chat_format() == RunConfig::TOKENIZERS) return add;
  if (config.chat_format() != RunConfig::CHATML) {
    return FieldError("chat_format",
                      absl::StrCat("no such value: ", config.chat_format()));
  }
  CAPSTAN_ASSIGN_OR_RETURN(const std::unique_ptr<ChatTemplate> chatml,
                           ChatTemplate::Named("chatml"));
  add.chat_template = chatml->jinja();
  // As TRL's ChatMlSpecialTokens.
  add.bos = "<|im_start|>";
  add.eos = add.pad = chatml->end_of_turn();
  add.special.push_back(add.bos);
  add.special.push_back(add.eos);
  return add;
}

// What a reader's field says of a folder: itself, or the message's `folder`.
std::string FolderIn(const Message& config, const FieldDescriptor& field) {
  const google::protobuf::Reflection& reflection = *config.GetReflection();
  if (field.type() == FieldDescriptor::TYPE_STRING) {
    return reflection.GetString(config, &field);
  }
  const Message& message = reflection.GetMessage(config, &field);
  const FieldDescriptor* const folder =
      SingleField(message, "folder", FieldDescriptor::TYPE_STRING);
  return folder == nullptr
             ? ""
             : message.GetReflection()->GetString(message, folder);
}

}  // namespace

bool AddsTokens(const RunConfig& config) {
  return AddingField(config) != nullptr;
}

RunTokenizer::RunTokenizer(const std::vector<std::string>& folders) {
  for (const std::string& folder : folders) {
    const std::string config = folder + "/config.json";
    if (config_.empty() && !folder.empty() && PathExists(config)) {
      config_ = config;
    }
  }
  for (const std::string& folder : folders) {
    if (folder.empty()) continue;
    absl::StatusOr<std::unique_ptr<Tokenizer>> found = LoadTokenizer(folder);
    if (absl::IsNotFound(found.status())) continue;
    owner_ = absl::StrCat("the model's, of ", folder);
    unreadable_ = found.status();
    if (!found.ok()) return;
    // An adapter's folder has none, nor has a checkpoint.
    const bool lacks_config =
        !config_.empty() && !PathExists(folder + "/config.json");
    if (lacks_config) unreadable_ = LinkConfig(folder);
    if (!unreadable_.ok()) return;
    folder_ = folder;
    SetModelTokenizer(
        {*std::move(found), lacks_config ? with_config_->path() : folder});
    return;
  }
}

absl::Status RunTokenizer::LinkConfig(const std::string& folder) {
  namespace fs = std::filesystem;
  with_config_ = std::make_unique<ScratchFolder>();
  CAPSTAN_RETURN_IF_ERROR(with_config_->status());
  const fs::path to = with_config_->path();
  std::error_code error;
  fs::create_symlink(fs::absolute(config_), to / "config.json", error);
  fs::directory_iterator it;
  if (!error) it = fs::directory_iterator(folder, error);
  for (; !error && it != fs::directory_iterator(); it.increment(error)) {
    fs::create_symlink(fs::absolute(it->path()), to / it->path().filename(),
                       error);
  }
  if (!error) return absl::OkStatus();
  return absl::ErrnoToStatus(
      error.value(),
      absl::StrCat("the tokenizer's files in ", folder, " can't be linked to"));
}

RunTokenizer::~RunTokenizer() { SetModelTokenizer({}); }

absl::StatusOr<int64_t> RunTokenizer::AddTokens(const LoadedConfig& loaded) {
  if (!AddsTokens(loaded.config)) return 0;
  const std::string field = AddingField(loaded.config);
  const auto error = [&](absl::string_view problem) {
    return loaded.Locate(FieldError(field, problem), "");
  };
  if (loaded.config.replace_tokenizer()) {
    return error(
        "adds to the model's tokenizer, which replace_tokenizer replaces: add "
        "the tokens to the files of train_data's");
  }
  if (folder_.empty()) {
    return error(unreadable_.ok()
                     ? "adds to the model's tokenizer, and the model brings "
                       "none: add the tokens to the files of train_data's"
                     : unreadable_.message());
  }
  const absl::StatusOr<tokenizer::TokensToAdd> add = TokensOf(loaded.config);
  CAPSTAN_RETURN_IF_ERROR(loaded.Locate(add.status(), ""));
  auto folder = std::make_unique<ScratchFolder>();
  CAPSTAN_RETURN_IF_ERROR(folder->status());
  const absl::StatusOr<int64_t> added =
      tokenizer::AddTokens(folder_, *add, folder->path());
  if (!added.ok()) return error(added.status().message());
  absl::StatusOr<std::unique_ptr<Tokenizer>> made =
      LoadTokenizer(folder->path());
  if (!made.ok()) return error(made.status().message());
  // It says what the model takes, to readers.
  std::error_code ignored;
  std::filesystem::copy_file(config_, folder->path() + "/config.json", ignored);
  SetModelTokenizer({*std::move(made), folder->path()});
  with_new_ = std::move(folder);
  return added;
}

Any RunTokenizer::WithNewTokens(const Any& reader) const {
  Any own = reader;
  if (with_new_ == nullptr) return own;
  const absl::StatusOr<std::unique_ptr<Message>> config = Unpack(reader);
  if (!config.ok()) return own;
  for (const FieldDescriptor* field : TokenizerFields(**config)) {
    std::error_code error;
    if (std::filesystem::equivalent(FolderIn(**config, *field), folder_,
                                    error)) {
      (*config)->GetReflection()->ClearField(config->get(), field);
    }
  }
  own.set_value((*config)->SerializeAsString());
  return own;
}

absl::Status RunTokenizer::Check(const LoadedConfig& loaded,
                                 const std::string& slot, const Any& config,
                                 const DatasetReader& reader) const {
  const Tokenizer* const model = CurrentModelTokenizer().tokenizer.get();
  const Tokenizer* const data = reader.tokenizer();
  if (data == nullptr || data == model) return absl::OkStatus();
  const bool of_model = owner_ != "train_data's";
  std::string why = unreadable_.ok() ? "" : std::string(unreadable_.message());
  if (model != nullptr) why = TokenDifference(*data, *model);
  CAPSTAN_ASSIGN_OR_RETURN(const std::unique_ptr<Message> message,
                           Unpack(config));
  const auto told = TokenizerFields(*message);
  // Training may be on another template with other ends, which the model then
  // gets.
  if (model != nullptr && why.empty() && slot != "train_data" &&
      !told.empty()) {
    why = EndsDifference(*data, *model);
  }
  if (why.empty()) return absl::OkStatus();
  const std::string text = absl::StrCat(
      told.empty() ? "reads tokens of another tokenizer than "
                   : absl::StrCat(ValueText(*message, *told[0]),
                                  " is another tokenizer than "),
      owner_, " (", why, "): ",
      told.empty() ? "make its data with that one"
                   : "leave it out, and that one is used",
      !of_model ? ""
      : loaded.config.replace_tokenizer()
          // Then it is the checkpoint's.
          ? "; or name \"tokenizer\" in train.resume_with_changes"
          : "; or set replace_tokenizer: true, and the model learns this "
            "one's tokens in place of its own");
  return loaded.Locate(told.empty() ? absl::InvalidArgumentError(text)
                                    : FieldError(told[0]->name(), text),
                       slot);
}

absl::Status RunTokenizer::Adopt(const DatasetReader& train_data) {
  const Tokenizer* const model = CurrentModelTokenizer().tokenizer.get();
  const Tokenizer* const data = train_data.tokenizer();
  if (data == nullptr || data == model) return absl::OkStatus();
  std::string folder;
  if (model != nullptr) {
    if (EndsDifference(*data, *model).empty()) return absl::OkStatus();
    auto files = std::make_unique<ScratchFolder>();
    CAPSTAN_RETURN_IF_ERROR(files->status());
    CAPSTAN_RETURN_IF_ERROR(data->Save(files->path()));
    folder = files->path();
    of_train_data_ = std::move(files);
  }
  owner_ = "train_data's";
  unreadable_ = absl::OkStatus();
  // Doesn't own it.
  SetModelTokenizer(
      {std::shared_ptr<const Tokenizer>(std::shared_ptr<void>(), data),
       folder});
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<DatasetReader>> OpenReader(
    const LoadedConfig& loaded, const std::string& slot, const Any& config,
    const RunTokenizer& tokenizer, PluginHost& host) {
  absl::StatusOr<std::unique_ptr<DatasetReader>> reader =
      host.Create<DatasetReader>(TypeOf(config), PluginCategory::kDatasetReader,
                                 tokenizer.WithNewTokens(config).value());
  CAPSTAN_RETURN_IF_ERROR(loaded.Locate(reader.status(), slot));
  CAPSTAN_RETURN_IF_ERROR(tokenizer.Check(loaded, slot, config, **reader));
  return reader;
}

Any WithoutTokenizer(const Any& reader) {
  Any without = reader;
  const absl::StatusOr<std::unique_ptr<Message>> config = Unpack(reader);
  if (!config.ok()) return without;
  for (const FieldDescriptor* field : TokenizerFields(**config)) {
    (*config)->GetReflection()->ClearField(config->get(), field);
  }
  without.set_value((*config)->SerializeAsString());
  return without;
}

}  // namespace capstan
