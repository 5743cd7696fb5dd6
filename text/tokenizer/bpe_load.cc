// SPDX-License-Identifier: Apache-2.0
//
// Bpe from a tokenizer.json.
#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status.h"
#include "text/tokenizer/bpe.h"
#include "text/tokenizer/utf8.h"

namespace capstan {
namespace tokenizer {
namespace {

constexpr size_t kMaxMerges = 1 << 24;

// "<0x0A>"
bool IsByteToken(absl::string_view token) {
  return token.size() == 6 && absl::StartsWith(token, "<0x") && token[5] == '>';
}

// "" or null, both of which add nothing.
absl::Status CheckAffix(const JsonNode& node) {
  if (node.IsNull()) return absl::OkStatus();
  CAPSTAN_ASSIGN_OR_RETURN(const std::string affix, node.String());
  if (affix.empty()) return absl::OkStatus();
  return node.Unsupported(absl::StrCat("\"", affix, "\" isn't supported"));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Bpe>> Bpe::Make(const JsonNode& model,
                                               bool byte_level,
                                               const Vocabulary* vocabulary) {
  std::unique_ptr<Bpe> bpe(new Bpe(byte_level, vocabulary));
  CAPSTAN_RETURN_IF_ERROR(bpe->Load(model));
  return bpe;
}

absl::Status Bpe::CheckType(const JsonNode& type) {
  // The oldest files don't say it.
  if (type.IsNull()) return absl::OkStatus();
  CAPSTAN_ASSIGN_OR_RETURN(const std::string name, type.String());
  if (name == "BPE") return absl::OkStatus();
  return type.Unsupported(
      absl::StrCat("\"", name, "\" isn't supported, only \"BPE\" is"));
}

absl::Status Bpe::Load(const JsonNode& model) {
  CAPSTAN_RETURN_IF_ERROR(CheckType(model.Member("type")));
  CAPSTAN_RETURN_IF_ERROR(model.CheckMembers(
      {"type", "dropout", "unk_token", "continuing_subword_prefix",
       "end_of_word_suffix", "fuse_unk", "byte_fallback", "ignore_merges",
       "vocab", "merges"}));
  CAPSTAN_RETURN_IF_ERROR(
      CheckAffix(model.Member("continuing_subword_prefix")));
  CAPSTAN_RETURN_IF_ERROR(CheckAffix(model.Member("end_of_word_suffix")));
  const JsonNode dropout = model.Member("dropout");
  if (!dropout.IsNull()) {
    CAPSTAN_ASSIGN_OR_RETURN(const double probability, dropout.Number());
    if (probability != 0.0) {
      return dropout.Unsupported("random merges aren't supported");
    }
  }
  CAPSTAN_ASSIGN_OR_RETURN(fuse_unknown_, model.Member("fuse_unk").Bool(false));
  CAPSTAN_ASSIGN_OR_RETURN(ignore_merges_,
                           model.Member("ignore_merges").Bool(false));
  CAPSTAN_ASSIGN_OR_RETURN(const bool byte_fallback,
                           model.Member("byte_fallback").Bool(false));
  const JsonNode unknown = model.Member("unk_token");
  if (!unknown.IsNull()) {
    CAPSTAN_ASSIGN_OR_RETURN(const std::string token, unknown.String());
    unknown_ = vocabulary_.IdOf(token);
    if (unknown_ < 0) {
      return unknown.Invalid(
          absl::StrCat("\"", token, "\" isn't in the vocabulary"));
    }
  }
  CAPSTAN_RETURN_IF_ERROR(LoadBytes(model, byte_fallback));
  CAPSTAN_RETURN_IF_ERROR(LoadMerges(model.Member("merges")));
  NoteSizes();
  return absl::OkStatus();
}

absl::Status Bpe::LoadBytes(const JsonNode& model, bool byte_fallback) {
  byte_ids_.fill(-1);
  int known = 0;
  for (int b = 0; b < 256; ++b) {
    std::string token;
    if (byte_level_) {
      AppendCharacter(ByteToCharacter(b), &token);
    } else {
      token = absl::StrFormat("<0x%02X>", b);
    }
    const int32_t id = vocabulary_.IdOf(token);
    if (id < 0 || !vocabulary_.InModel(id)) continue;
    byte_ids_[b] = id;
    ++known;
  }
  if (byte_fallback && known < 256) {
    return model.Member("byte_fallback")
        .Unsupported(absl::StrCat("with tokens for only ", known,
                                  " of the 256 bytes isn't supported"));
  }
  byte_fallback_ = byte_fallback && !byte_level_;
  // Unknown bytes may be fused, or left out between two that merge.
  if (byte_level_ && known < 256) prefixes_ = false;
  every_byte_ = known == 256;
  if (byte_level_ && ignore_merges_) {
    std::string bytes;
    for (int64_t id = 0; id < vocabulary_.size(); ++id) {
      if (vocabulary_.Has(id) && vocabulary_.InModel(id) &&
          CharactersToBytes(vocabulary_.TokenOf(id), &bytes)) {
        words_[bytes] = static_cast<int32_t>(id);
      }
    }
  }
  return absl::OkStatus();
}

absl::Status Bpe::LoadMerges(const JsonNode& merges) {
  CAPSTAN_ASSIGN_OR_RETURN(const simdjson::dom::array array, merges.Array());
  size_t n = 0;
  for (const simdjson::dom::element merge : array) {
    static_cast<void>(merge);
    ++n;
  }
  if (n > kMaxMerges) return merges.Invalid("there are too many");
  merges_ = std::make_unique<MergeTable>(n);
  has_merges_ = n > 0;
  byte_neighbours_.resize(1 << 16);
  uint32_t rank = 0;
  for (const simdjson::dom::element merge : array) {
    std::string_view left;
    std::string_view right;
    std::string_view both;
    simdjson::dom::array pair;
    bool valid = false;
    if (merge.get(both) == simdjson::SUCCESS) {
      // The older way to write it: "left right".
      const size_t space = both.find(' ');
      valid = space != both.npos && both.find(' ', space + 1) == both.npos;
      if (valid) {
        left = both.substr(0, space);
        right = both.substr(space + 1);
      }
    } else if (merge.get(pair) == simdjson::SUCCESS && pair.size() == 2) {
      valid = pair.at(0).get(left) == simdjson::SUCCESS &&
              pair.at(1).get(right) == simdjson::SUCCESS;
    }
    if (!valid) {
      return merges.Invalid(absl::StrCat("merge ", rank,
                                         " is neither \"left right\" nor "
                                         "[\"left\", \"right\"]"));
    }
    CAPSTAN_RETURN_IF_ERROR(
        AddMerge(merges, rank, ToView(left), ToView(right)));
    ++rank;
  }
  return absl::OkStatus();
}

absl::Status Bpe::AddMerge(const JsonNode& merges, uint32_t rank,
                           absl::string_view left, absl::string_view right) {
  const std::string both = absl::StrCat(left, right);
  int32_t ids[3];
  size_t i = 0;
  for (absl::string_view token : {left, right, absl::string_view(both)}) {
    ids[i] = vocabulary_.IdOf(token);
    if (ids[i] < 0 || !vocabulary_.InModel(ids[i])) {
      return merges.Invalid(absl::StrCat("merge ", rank, " of \"", left,
                                         "\" and \"", right, "\": \"", token,
                                         "\" isn't in the vocabulary"));
    }
    ++i;
  }
  merges_->Set(ids[0], ids[1], {rank, static_cast<uint32_t>(ids[2])});
  // Such tokens stand for other characters than they are written with.
  for (i = 0; i < 3; ++i) {
    if (ids[i] == unknown_ ||
        (byte_fallback_ && IsByteToken(vocabulary_.TokenOf(ids[i])))) {
      prefixes_ = plain_ = false;
    }
  }
  NoteNeighbours(both);
  return absl::OkStatus();
}

void Bpe::NoteSizes() {
  if (!plain_ || !every_byte_ || !(byte_level_ || byte_fallback_)) return;
  sizes_.resize(vocabulary_.size());
  std::string bytes;
  for (int64_t id = 0; id < vocabulary_.size(); ++id) {
    const absl::string_view token = vocabulary_.TokenOf(id);
    if (byte_level_) {
      CharactersToBytes(token, &bytes);
      sizes_[id] = static_cast<uint32_t>(bytes.size());
    } else {
      sizes_[id] = static_cast<uint32_t>(IsByteToken(token) ? 1 : token.size());
    }
  }
}

void Bpe::NoteNeighbours(absl::string_view token) {
  if (byte_level_) {
    std::string bytes;
    // A token of other characters is never come to.
    if (!CharactersToBytes(token, &bytes)) return;
    for (size_t i = 1; i < bytes.size(); ++i) {
      byte_neighbours_[static_cast<unsigned char>(bytes[i - 1]) << 8 |
                       static_cast<unsigned char>(bytes[i])] = true;
    }
    return;
  }
  size_t at = 0;
  if (token.empty()) return;
  uint64_t left = NextCharacter(token, &at);
  while (at < token.size()) {
    const uint64_t right = NextCharacter(token, &at);
    neighbours_.insert(left << 32 | right);
    left = right;
  }
}

}  // namespace tokenizer
}  // namespace capstan
