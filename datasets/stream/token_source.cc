// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/error_code.h"
#include "base/status.h"
#include "datasets/stream/cells.h"

namespace capstan::stream {
namespace {

// llm.c's files begin with 256 numbers of 32 bits: a magic number, a version,
// the number of tokens.
constexpr int64_t kBareHeader = 1024;
constexpr uint32_t kBareVersion = 1;
constexpr uint32_t kTwoBytes = 20240520;
constexpr uint32_t kFourBytes = 20240801;

uint32_t NumberAt(absl::string_view bytes, size_t at) {
  uint32_t number;
  std::memcpy(&number, bytes.data() + at, sizeof(number));
  return number;
}

// A bare token file, mapped.
struct Bare {
  std::shared_ptr<const MappedFile> file;
  int64_t begin = 0;
  int64_t tokens = 0;
  int64_t token_bytes = 2;
};

absl::StatusOr<Bare> OpenBare(const std::string& path, int64_t token_bytes) {
  Bare bare;
  CAPSTAN_ASSIGN_OR_RETURN(bare.file, MappedFile::Open(path));
  const absl::string_view bytes = bare.file->bytes();
  bare.token_bytes = token_bytes;
  const uint32_t magic = bytes.size() >= kBareHeader ? NumberAt(bytes, 0) : 0;
  const bool has_header = magic == kTwoBytes || magic == kFourBytes;
  if (has_header) {
    bare.begin = kBareHeader;
    bare.token_bytes = magic == kTwoBytes ? 2 : 4;
  }
  if (has_header && NumberAt(bytes, 4) != kBareVersion) {
    return WithCode(
        absl::InvalidArgumentError(absl::StrCat(
            path, " has llm.c's header of version ", NumberAt(bytes, 4),
            ", and only version ", kBareVersion, " is read: make it again")),
        "data/damaged");
  }
  const int64_t room = static_cast<int64_t>(bytes.size()) - bare.begin;
  bare.tokens = room / bare.token_bytes;
  const bool whole = room % bare.token_bytes == 0 &&
                     (!has_header || NumberAt(bytes, 8) == bare.tokens);
  if (whole && bare.tokens > 0) return bare;
  return WithCode(absl::DataLossError(absl::StrCat(
                      path, " is cut off: it has ", room,
                      " bytes of tokens of ", bare.token_bytes, " bytes",
                      has_header ? absl::StrCat(", and its header says ",
                                                NumberAt(bytes, 8), " tokens")
                                 : "",
                      ": fetch or make it again, or set token_bytes")),
                  "data/damaged");
}

class TokenSource final : public CellSource {
 public:
  TokenSource(const std::vector<Shard>* shards, int64_t vocab_size, int64_t eos)
      : shards_(*shards), vocab_size_(vocab_size), eos_(eos) {}

  absl::Status OpenAll(uint64_t tokenizer_hash, int64_t token_bytes,
                       std::vector<Shard>* shards) {
    for (Shard& shard : *shards) {
      // Mapped, and known only as a whole.
      CAPSTAN_RETURN_IF_ERROR(Ensure(shard, 0, shard.bytes));
      if (shard.format == Format::kTokenFile) {
        CAPSTAN_RETURN_IF_ERROR(OpenFile(shard, tokenizer_hash));
        shard.units = files_.back()->tokens();
      } else {
        CAPSTAN_ASSIGN_OR_RETURN(Bare bare, OpenBare(shard.file, token_bytes));
        shard.units = bare.tokens;
        bare_.push_back(std::move(bare));
      }
      if (shard.units == 0) {
        return absl::InvalidArgumentError(absl::StrCat(
            shard.path, " has no tokens: remove it, or make it again"));
      }
      shard.weight = shard.units;
      shard.per_cell = kCellTokens;
      shard.cells = (shard.units + kCellTokens - 1) / kCellTokens;
    }
    return absl::OkStatus();
  }

  absl::StatusOr<CellTokens> Read(int64_t index, int64_t cell) override {
    const Shard& shard = shards_[index];
    CAPSTAN_RETURN_IF_ERROR(CheckUnchanged(shard));
    const int64_t begin = cell * kCellTokens;
    const int64_t count = std::min(kCellTokens, shard.units - begin);
    CellTokens tokens;
    tokens.ids.resize(static_cast<size_t>(count));
    CAPSTAN_RETURN_IF_ERROR(shard.format == Format::kTokenFile
                                ? ReadFile(*files_[index], begin, &tokens)
                                : ReadBare(bare_[index], begin, &tokens));
    if (tokens.ends.empty() || tokens.ends.back() != count) {
      tokens.ends.push_back(static_cast<uint32_t>(count));
    }
    return tokens;
  }

  std::vector<int64_t> Counts(int64_t index, int64_t first,
                              int64_t count) const override {
    std::vector<int64_t> counts(static_cast<size_t>(count), kCellTokens);
    const Shard& shard = shards_[index];
    if (first + count == shard.cells) {
      counts.back() = shard.units - (shard.cells - 1) * kCellTokens;
    }
    return counts;
  }

 private:
  absl::Status OpenFile(const Shard& shard, uint64_t tokenizer_hash) {
    CAPSTAN_ASSIGN_OR_RETURN(auto file, MappedFile::Open(shard.file));
    CAPSTAN_ASSIGN_OR_RETURN(auto opened,
                             text::TokenFile::Open(std::move(file)));
    if (opened->info().tokenizer_hash != tokenizer_hash) {
      return FieldError("tokenizer",
                        absl::StrCat("isn't the one that ", shard.path,
                                     " was made with: make it anew with that"));
    }
    files_.push_back(std::move(opened));
    return absl::OkStatus();
  }

  static absl::Status ReadFile(const text::TokenFile& file, int64_t begin,
                               CellTokens* tokens) {
    const auto count = static_cast<int64_t>(tokens->ids.size());
    std::vector<int64_t> ids(tokens->ids.size());
    CAPSTAN_RETURN_IF_ERROR(file.Read(begin, count, ids.data()));
    std::copy(ids.begin(), ids.end(), tokens->ids.begin());
    // The first document that ends in the cell.
    int64_t low = 0;
    int64_t high = file.documents();
    while (low < high) {
      const int64_t middle = (low + high) / 2;
      if (file.DocumentBegin(middle) > begin) {
        high = middle;
      } else {
        low = middle + 1;
      }
    }
    for (int64_t end; low <= file.documents(); ++low) {
      end = file.DocumentBegin(low) - begin;
      if (end > count) break;
      if (end > 0) tokens->ends.push_back(static_cast<uint32_t>(end));
    }
    return absl::OkStatus();
  }

  absl::Status ReadBare(const Bare& bare, int64_t begin,
                        CellTokens* tokens) const {
    const char* from =
        bare.file->bytes().data() + bare.begin + begin * bare.token_bytes;
    for (size_t i = 0; i < tokens->ids.size(); ++i) {
      uint32_t id = 0;
      std::memcpy(&id, from, static_cast<size_t>(bare.token_bytes));
      from += bare.token_bytes;
      if (id >= vocab_size_) {
        return WithCode(
            absl::DataLossError(absl::StrCat(
                bare.file->path(), ": token ", begin + static_cast<int64_t>(i),
                " is ", id, ", and the tokenizer has ", vocab_size_,
                ": it was made with another, or token_bytes is wrong")),
            "data/damaged");
      }
      tokens->ids[i] = id;
      if (id == eos_) tokens->ends.push_back(static_cast<uint32_t>(i + 1));
    }
    const absl::Status whole = bare.file->Check();
    ForgetMapped(from - tokens->ids.size() * bare.token_bytes,
                 tokens->ids.size() * bare.token_bytes);
    return whole;
  }

  const std::vector<Shard>& shards_;
  const int64_t vocab_size_;
  const int64_t eos_;
  // By shard; one of them.
  std::vector<std::unique_ptr<text::TokenFile>> files_;
  std::vector<Bare> bare_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<CellSource>> NewTokenSource(
    std::vector<Shard>* shards, int64_t vocab_size, uint64_t tokenizer_hash,
    int64_t eos, int64_t token_bytes) {
  auto source = std::make_unique<TokenSource>(shards, vocab_size, eos);
  CAPSTAN_RETURN_IF_ERROR(source->OpenAll(tokenizer_hash, token_bytes, shards));
  return std::unique_ptr<CellSource>(std::move(source));
}

}  // namespace capstan::stream
