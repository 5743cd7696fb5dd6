// SPDX-License-Identifier: Apache-2.0
//
// Windows cut from a text when read.
#include <algorithm>
#include <functional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/digest.h"
#include "base/files.h"
#include "base/status.h"
#include "plugins/llada/windows/characters.h"
#include "plugins/llada/windows/window_data.h"
#include "plugins/sdk/lib/token_difference.h"
#include "text/tokens/text_pieces.h"

namespace capstan::llada_windows {
namespace {

// The tokens of a part of the text.
struct Tokens {
  int64_t size = 0;
  std::function<void(int64_t begin, int64_t n, int64_t* out)> read;
};

// Characters, decoded when read. Stores the offset of each 256th, from which
// the others are counted.
class CharacterTokens {
 public:
  // `text` is UTF-8 whose characters are all in the tokenizer.
  CharacterTokens(std::shared_ptr<const MappedFile> file,
                  absl::string_view text,
                  std::shared_ptr<const CharacterTokenizer> tokenizer)
      : file_(std::move(file)), text_(text), tokenizer_(std::move(tokenizer)) {
    for (size_t at = 0; at < text_.size(); ++size_) {
      if (size_ % kEvery == 0) begins_.push_back(at);
      // Only where the file changed meanwhile, which a read reports.
      if (NextCharacter(text_, &at) < 0) ++at;
    }
  }

  int64_t size() const { return size_; }
  void Read(int64_t begin, int64_t n, int64_t* out) const {
    size_t at = begins_[begin / kEvery];
    for (int64_t i = begin % kEvery; i > 0; --i) NextCharacter(text_, &at);
    for (int64_t i = 0; i < n; ++i) {
      out[i] = tokenizer_->IdOfCode(
          static_cast<uint32_t>(NextCharacter(text_, &at)));
    }
  }

 private:
  static constexpr int64_t kEvery = 256;
  const std::shared_ptr<const MappedFile> file_;
  const absl::string_view text_;
  const std::shared_ptr<const CharacterTokenizer> tokenizer_;
  std::vector<size_t> begins_;
  int64_t size_ = 0;
};

// Text tokens of a window.
int64_t WidthOf(const TextWindowsSpec& spec) {
  return spec.sequence_length - (spec.ends == WindowEnds::kAround ? 2 : 0);
}

class TextWindows final : public Windows {
 public:
  TextWindows(Tokens tokens, const TextWindowsSpec& spec, int64_t bos,
              int64_t eos)
      : tokens_(std::move(tokens)),
        places_{tokens_.size, WidthOf(spec), spec.stride},
        ends_(spec.ends),
        bos_(bos),
        eos_(eos) {}

  int64_t size() const override { return places_.size(); }
  void Read(int64_t i, int64_t* out) const override {
    if (ends_ != WindowEnds::kNone) *out++ = bos_;
    const int64_t n = places_.width - (ends_ == WindowEnds::kCut ? 1 : 0);
    tokens_.read(places_.Begin(i), n, out);
    if (ends_ == WindowEnds::kAround) out[n] = eos_;
  }

 private:
  const Tokens tokens_;
  const WindowPlaces places_;
  const WindowEnds ends_;
  const int64_t bos_;
  const int64_t eos_;
};

absl::Status CheckSpec(const TextWindowsSpec& spec) {
  if (spec.path.empty()) {
    return FieldError("path", "is not set: name a text file");
  }
  if (spec.sequence_length < 4) {
    return FieldError("sequence_length", absl::StrCat("must be at least 4, is ",
                                                      spec.sequence_length));
  }
  // A longer one would skip text.
  const int64_t width = WidthOf(spec);
  if (spec.stride < 1 || spec.stride > width) {
    return FieldError("stride", absl::StrCat("must be between 1 and ", width,
                                             ", is ", spec.stride));
  }
  if (!(spec.validation_fraction >= 0 && spec.validation_fraction < 1)) {
    return FieldError(
        "validation_fraction",
        absl::StrCat("must be in [0, 1), is ", spec.validation_fraction));
  }
  return absl::OkStatus();
}

// The offset of the last `fraction` of the text's characters.
size_t SplitAt(absl::string_view text, double fraction) {
  const auto continues = [](char c) {
    return (static_cast<unsigned char>(c) & 0xc0) == 0x80;
  };
  const int64_t characters = std::count_if(
      text.begin(), text.end(), [&](char c) { return !continues(c); });
  auto rest =
      static_cast<int64_t>(static_cast<double>(characters) * (1.0 - fraction));
  for (size_t at = 0; at < text.size(); ++at) {
    if (!continues(text[at]) && rest-- == 0) return at;
  }
  return text.size();
}

absl::Status CheckPart(const Windows& windows, const TextWindowsSpec& spec,
                       const char* part, int64_t tokens) {
  if (windows.size() > 0) return absl::OkStatus();
  return FieldError(
      "sequence_length",
      absl::StrCat("is ", spec.sequence_length, ", but ", spec.path, part,
                   " has only ", tokens,
                   spec.tokenizer == nullptr ? " characters" : " tokens"));
}

absl::Status CheckEnds(const TextWindowsSpec& spec) {
  const Tokenizer::SpecialIds special = spec.tokenizer->special_ids();
  if (spec.ends == WindowEnds::kNone ||
      (special.bos >= 0 && special.eos >= 0)) {
    return absl::OkStatus();
  }
  return FieldError("ends",
                    absl::StrCat("the tokenizer of ", spec.tokenizer_name,
                                 " has no tokens of beginning and "
                                 "end: set ends: NONE"));
}

// The characters of `file`, if the spec asks for them or for a tokenizer that
// makes the same tokens; else null.
absl::StatusOr<std::shared_ptr<const CharacterTokenizer>> CharactersOf(
    const TextWindowsSpec& spec, const MappedFile& file) {
  // Most other tokenizers differ here, and the text needn't be read for them.
  if (spec.tokenizer != nullptr && spec.tokenizer->Decode({kBos}) != kBosText) {
    return nullptr;
  }
  absl::StatusOr<std::shared_ptr<const CharacterTokenizer>> made =
      CharacterTokenizer::OfText(file.bytes());
  if (spec.tokenizer == nullptr) {
    if (made.ok()) return made;
    return FieldError("path",
                      absl::StrCat(spec.path, " ", made.status().message()));
  }
  if (made.ok() && TokenDifference(**made, *spec.tokenizer).empty()) {
    return made;
  }
  return nullptr;
}

}  // namespace

int64_t WindowPlaces::size() const {
  if (total < width) return 0;
  const int64_t span = total - width;
  return span / stride + 1 + (span % stride == 0 ? 0 : 1);
}

int64_t WindowPlaces::Begin(int64_t i) const {
  return std::min(i * stride, total - width);
}

absl::StatusOr<WindowData> OpenTextWindows(const TextWindowsSpec& given) {
  TextWindowsSpec spec = given;
  if (spec.stride == 0) spec.stride = spec.sequence_length / 2;
  CAPSTAN_RETURN_IF_ERROR(CheckSpec(spec));
  absl::StatusOr<std::shared_ptr<const MappedFile>> file =
      MappedFile::Open(spec.path);
  if (!file.ok()) return FieldError("path", file.status().message());
  const absl::string_view text = (*file)->bytes();
  WindowData data;
  data.sequence_length = spec.sequence_length;
  CAPSTAN_ASSIGN_OR_RETURN(
      const std::shared_ptr<const CharacterTokenizer> characters,
      CharactersOf(spec, **file));
  if (characters != nullptr) data.mask = characters->mask();
  data.tokenizer = characters;
  if (spec.tokenizer != nullptr) {
    CAPSTAN_RETURN_IF_ERROR(CheckEnds(spec));
    data.tokenizer = spec.tokenizer;
  }
  data.vocab_size = data.tokenizer->vocab_size();
  data.digest = [mapped = *file] { return DigestOfFile(*mapped); };
  const Tokenizer::SpecialIds special = data.tokenizer->special_ids();
  const size_t split = SplitAt(text, spec.validation_fraction);
  const auto open = [&](absl::string_view part, const char* name,
                        std::shared_ptr<const Windows>* windows) {
    Tokens tokens;
    if (characters != nullptr) {
      const auto decoded =
          std::make_shared<const CharacterTokens>(*file, part, characters);
      tokens.size = decoded->size();
      tokens.read = [decoded](int64_t begin, int64_t n, int64_t* out) {
        decoded->Read(begin, n, out);
      };
    } else {
      const auto ids = std::make_shared<std::vector<uint32_t>>();
      const absl::Status read =
          text::AppendTokens(*data.tokenizer, part, **file, ids.get());
      if (!read.ok()) return FieldError("path", read.message());
      tokens.size = static_cast<int64_t>(ids->size());
      tokens.read = [ids](int64_t begin, int64_t n, int64_t* out) {
        std::copy_n(ids->begin() + begin, n, out);
      };
    }
    data.total_tokens += tokens.size;
    *windows =
        std::make_shared<TextWindows>(tokens, spec, special.bos, special.eos);
    return CheckPart(**windows, spec, name, tokens.size);
  };
  const bool all = spec.validation_fraction == 0;
  CAPSTAN_RETURN_IF_ERROR(open(text.substr(0, split),
                               all ? "" : " without its validation part",
                               &data.train));
  if (!all) {
    CAPSTAN_RETURN_IF_ERROR(
        open(text.substr(split), "'s validation part", &data.validation));
  }
  return data;
}

}  // namespace capstan::llada_windows
