// SPDX-License-Identifier: Apache-2.0
//
// `trainer llada-data`: writes the files that LLaDA's Python scripts read
// (docs/llada.md).
#include <iostream>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "plugins/llada/windows/window_data.h"
#include "plugins/sdk/command.h"
#include "plugins/sdk/model_tokenizer.h"

namespace capstan {
namespace {

// 1234567 as "1,234,567".
std::string WithCommas(int64_t number) {
  std::string text = std::to_string(number);
  for (int64_t i = static_cast<int64_t>(text.size()) - 3; i > 0; i -= 3) {
    text.insert(i, ",");
  }
  return text;
}

class LladaDataCommand : public Command {
 public:
  static absl::StatusOr<std::unique_ptr<LladaDataCommand>> Create(
      const NoConfig&) {
    return std::make_unique<LladaDataCommand>();
  }

  void AddFlags(Flags& flags) override {
    flags.Add("--text", &text_, "The text, in UTF-8").Type("FILE").Required();
    flags.Add("--output", &output_, "The folder to write")
        .Type("FOLDER")
        .Required();
    flags
        .Add("--tokenizer", &tokenizer_,
             "A Hugging Face folder with a tokenizer.json; default: each "
             "character is a token")
        .Type("FOLDER");
    flags.Add("--sequence_length", &sequence_length_, "Tokens of a window")
        .ShowDefault();
    flags.Add("--stride", &stride_,
              "From one window to the next; default: half a window");
    flags
        .Add("--validation_fraction", &validation_fraction_,
             "The part of the text, its end, that is held back")
        .ShowDefault();
  }

  absl::StatusOr<int> Run(CommandHost& host) override {
    llada_windows::TextWindowsSpec spec;
    spec.path = host.Path(text_);
    if (!tokenizer_.empty()) {
      CAPSTAN_ASSIGN_OR_RETURN(
          const ModelTokenizer tokenizer,
          TokenizerToRead(host.Path(tokenizer_), "--tokenizer"));
      spec.tokenizer = tokenizer.tokenizer;
      spec.tokenizer_name = tokenizer.folder;
    }
    spec.sequence_length = sequence_length_;
    spec.stride = stride_;
    spec.validation_fraction = validation_fraction_;
    if (validation_fraction_ == 0) {
      return FieldError("--validation_fraction", "must be greater than 0");
    }
    CAPSTAN_ASSIGN_OR_RETURN(const llada_windows::WindowData data,
                             llada_windows::OpenTextWindows(spec));
    const std::string folder = host.Path(output_);
    CAPSTAN_RETURN_IF_ERROR(
        llada_windows::WriteNpyFolder(data, spec.path, folder));
    std::cout << folder << ": " << WithCommas(data.train->size())
              << " windows to train on, " << WithCommas(data.validation->size())
              << " to validate, of " << WithCommas(data.sequence_length)
              << (tokenizer_.empty() ? " characters" : " tokens")
              << "; vocabulary " << WithCommas(data.tokenizer->vocab_size())
              << "\n";
    return 0;
  }

 private:
  std::string text_;
  std::string output_;
  std::string tokenizer_;  // empty: characters
  int64_t sequence_length_ = 4096;
  int64_t stride_ = 0;  // 0: half of it
  double validation_fraction_ = 0.1;
};

}  // namespace

CAPSTAN_COMMAND("capstan.command_llada_data", LladaDataCommand,
                "Cut a text into the files that `llada` reads");

}  // namespace capstan
