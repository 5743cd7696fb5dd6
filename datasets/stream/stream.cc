// SPDX-License-Identifier: Apache-2.0
#include "datasets/stream/stream.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <sys/statvfs.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <iostream>
#include <new>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/clock.h"
#include "base/digest.h"
#include "base/machine.h"
#include "base/status.h"
#include "plugins/sdk/lib/byte_tokenizer.h"
#include "plugins/sdk/model_tokenizer.h"
#include "plugins/sdk/plugin.h"
#include "text/tokenizer/definition.h"
#include "text/tokens/token_file.h"

namespace capstan::stream {
namespace {

constexpr int64_t kLanes = 32;
constexpr int64_t kMostLanes = 4096;
constexpr int64_t kMostWorkers = 4;
constexpr int64_t kCellsLookedAt = 8;  // for the estimate
constexpr size_t kEpochsKept = 3;
constexpr double kMuchUneven = 2;
constexpr int64_t kMostThreads = 1024;
constexpr int64_t kMostLength = int64_t{1} << 24;
constexpr double kGib = int64_t{1} << 30;
// Training's speed is told after so many seconds.
constexpr double kSecondsToSay = 30;

absl::Status CheckConfig(const Config& config) {
  if (config.path().empty()) {
    return FieldError("path",
                      "is not set: name the shards, as \"data/*.parquet\"");
  }
  if (config.sequence_length() < 2) {
    return FieldError(
        "sequence_length",
        absl::StrCat("must be at least 2, is ", config.sequence_length()));
  }
  if (config.sequence_length() > kMostLength) {
    return FieldError("sequence_length",
                      absl::StrCat("must be at most ", kMostLength, ", is ",
                                   config.sequence_length()));
  }
  if (config.workers() > kMostThreads) {
    return FieldError("workers", absl::StrCat("must be at most ", kMostThreads,
                                              ", is ", config.workers()));
  }
  if (config.lanes() > kMostLanes) {
    return FieldError("lanes", absl::StrCat("must be at most ", kMostLanes,
                                            ", is ", config.lanes()));
  }
  if (config.token_bytes() != 2 && config.token_bytes() != 4) {
    return FieldError("token_bytes", absl::StrCat("must be 2 or 4, is ",
                                                  config.token_bytes()));
  }
  return absl::OkStatus();
}

Config WithDefaults(Config config) {
  if (config.lanes() == 0) config.set_lanes(kLanes);
  if (config.text_field().empty()) config.set_text_field("text");
  if (config.token_bytes() == 0) config.set_token_bytes(2);
  if (!config.has_workers()) {
    config.set_workers(std::max<int64_t>(
        1, std::min<int64_t>(kMostWorkers, AvailableCores() / 2)));
  }
  return config;
}

bool HasTexts(const std::vector<Shard>& shards) {
  return shards[0].format != Format::kTokenFile &&
         shards[0].format != Format::kBareTokens;
}

// A cell's part of its shard's weight.
double WeightOf(const Shard& shard, int64_t cell) {
  const int64_t of_cell = shard.per_cell > 0 ? shard.per_cell
                          : shard.packed == chat::Packed::kNot
                              ? kCellBytes
                              : kPackedCellBytes;
  const int64_t all = shard.per_cell > 0 ? shard.units : shard.bytes;
  const int64_t here = std::min(of_cell, all - cell * of_cell);
  return static_cast<double>(shard.weight) * static_cast<double>(here) /
         static_cast<double>(all);
}

int64_t* Room(const char* name, at::IntArrayRef shape, Batch* batch) {
  at::Tensor& tensor = (*batch)[name];
  if (!tensor.defined() || tensor.sizes() != shape) {
    tensor = at::empty(shape, at::kLong);
  }
  return tensor.mutable_data_ptr<int64_t>();
}

std::string Thousands(int64_t number) {
  std::string text = absl::StrCat(number);
  for (int at = static_cast<int>(text.size()) - 3; at > 0; at -= 3) {
    text.insert(static_cast<size_t>(at), ",");
  }
  return text;
}

}  // namespace

Stream::Stream(const Config& config, std::shared_ptr<const Tokenizer> tokenizer)
    : config_(WithDefaults(config)), tokenizer_(std::move(tokenizer)) {}

Stream::~Stream() {
  if (tally_ == nullptr || maker_ != getpid() || tally_->bad_rows == 0) return;
  std::cerr << absl::StrCat("capstan.stream: bad_rows: SKIP has left out rows ",
                            static_cast<int64_t>(tally_->bad_rows),
                            " times in what was read of ", config_.path(),
                            " (each time that a row's cell was read)\n");
}

absl::StatusOr<std::unique_ptr<Stream>> Stream::Create(const Config& config) {
  CAPSTAN_ASSIGN_OR_RETURN(ModelTokenizer chosen,
                           TokenizerToRead(config.tokenizer(), "tokenizer"));
  if (chosen.tokenizer == nullptr) {
    return Create(config, NewByteTokenizer(), ByteTokenizerJson() + "\n");
  }
  CAPSTAN_ASSIGN_OR_RETURN(
      const std::string definition,
      tokenizer::TokenizerDefinition(*chosen.tokenizer, chosen.folder));
  return Create(config, std::move(chosen.tokenizer), definition);
}

absl::StatusOr<std::unique_ptr<Stream>> Stream::Create(
    const Config& config, std::shared_ptr<const Tokenizer> tokenizer,
    const std::string& definition) {
  std::unique_ptr<Stream> stream(new Stream(config, std::move(tokenizer)));
  CAPSTAN_RETURN_IF_ERROR(CheckConfig(stream->config_));
  if (TheRemoteStore() != nullptr &&
      TheRemoteStore()->IsAddress(config.path())) {
    CAPSTAN_ASSIGN_OR_RETURN(stream->remote_,
                             RemoteShards::List(config.path()));
  }
  absl::StatusOr<std::vector<Shard>> shards =
      stream->remote_ == nullptr ? ListShards(config.path())
                                 : ListShards(stream->remote_.get());
  if (!shards.ok()) return shards.status();
  stream->shards_ = *std::move(shards);
  CAPSTAN_ASSIGN_OR_RETURN(stream->memory_,
                           SharedMemory::Create(sizeof(Tally), false));
  stream->tally_ = new (stream->memory_->data()) Tally;
  CAPSTAN_RETURN_IF_ERROR(HasTexts(stream->shards_)
                              ? stream->OpenTexts(definition)
                              : stream->OpenTokens(definition));
  CAPSTAN_RETURN_IF_ERROR(stream->ChooseSize());
  CAPSTAN_RETURN_IF_ERROR(stream->ChooseLanes());
  stream->MakeLanes();
  // The ranks are forked next.
  stream->source_->EndHelpers();
  if (stream->remote_ != nullptr) stream->remote_->EndHelpers();
  return stream;
}

absl::Status Stream::OpenTexts(const std::string& definition) {
  const std::string& field = config_.text_field();
  if (shards_[0].format == Format::kParquet) {
    CAPSTAN_ASSIGN_OR_RETURN(texts_, NewParquetTexts(field, &shards_));
  } else if (shards_[0].format == Format::kTar) {
    texts_ = NewTarTexts(field);
  } else {
    texts_ = NewJsonTexts(field);
  }
  const std::string settings =
      absl::StrCat("2\n", text::TokenizerHash(definition), "\n", field, "\n",
                   config_.bad_rows());
  std::string folder = config_.cache_folder();
  if (folder.empty() && remote_ != nullptr) {
    folder = TheRemoteStore()->LocalFolder() + "/tokens";
  }
  store_ =
      CellStore::Open(&shards_, settings, tokenizer_->vocab_size(), folder);
  if (store_->folder().empty() && config_.tokens() == KEEP) {
    return FieldError("tokens", absl::StrCat("is KEEP, but ", store_->problem(),
                                             ": set cache_folder"));
  }
  // Until it is known how many there are.
  keep_ = config_.tokens() != ON_THE_FLY && !store_->folder().empty();
  TextSourceOptions options;
  options.shards = &shards_;
  options.tokenizer = tokenizer_;
  options.texts = texts_.get();
  options.store = store_.get();
  options.keep = &keep_;
  options.skip_bad = config_.bad_rows() == SKIP;
  options.tally = tally_;
  source_ = NewTextSource(options);
  return absl::OkStatus();
}

absl::Status Stream::OpenTokens(const std::string& definition) {
  CAPSTAN_ASSIGN_OR_RETURN(
      source_,
      NewTokenSource(&shards_, tokenizer_->vocab_size(),
                     text::TokenizerHash(definition),
                     tokenizer_->special_ids().eos, config_.token_bytes()));
  return absl::OkStatus();
}

void Stream::MakeLanes() {
  Cells::Options options;
  options.workers = static_cast<int>(config_.workers());
  options.most = static_cast<size_t>(2 * order_.lanes + 8);
  options.shuffle = config_.shuffle();
  options.seed = config_.seed();
  cells_ = std::make_unique<Cells>(source_.get(), options);
  for (int64_t lane = 0; lane < order_.lanes; ++lane) {
    lanes_.push_back(std::make_unique<Lane>(
        absl::StrCat(config_.path(), ": lane ", lane, " of ", order_.lanes),
        [this, lane](int64_t epoch) { return RunsOf(lane, epoch); },
        source_.get(), cells_.get(), [this] { SayCounting(); }));
  }
}

std::vector<CellRun> Stream::RunsOf(int64_t lane, int64_t epoch) {
  const std::lock_guard<std::mutex> lock(mutex_);
  auto& lanes = epochs_[epoch];
  if (lanes.empty()) lanes = LanesOfEpoch(shards_, order_, epoch);
  std::vector<CellRun> runs = lanes[static_cast<size_t>(lane)];
  if (epochs_.size() > kEpochsKept) {
    epochs_.erase(epochs_.begin()->first == epoch ? std::prev(epochs_.end())
                                                  : epochs_.begin());
  }
  return runs;
}

absl::StatusOr<double> Stream::EstimateTokens() {
  int64_t weight = 0;
  int64_t cells = 0;
  double tokens = 0;
  for (const Shard& shard : shards_) {
    weight += shard.weight;
    cells += shard.cells;
    tokens += static_cast<double>(shard.units);
  }
  if (!HasTexts(shards_)) {
    counted_ = true;
    return tokens;
  }
  // Some cells, the same ones in each run of the data.
  tokens = 0;
  double looked_at = 0;
  double least = 0;
  double most = 0;
  const int64_t count = std::min(kCellsLookedAt, cells);
  for (int64_t i = 0; i < count; ++i) {
    int64_t cell = count == 1 ? 0 : i * (cells - 1) / (count - 1);
    int64_t shard = 0;
    while (cell >= shards_[shard].cells) cell -= shards_[shard++].cells;
    CAPSTAN_ASSIGN_OR_RETURN(const CellTokens read, source_->Read(shard, cell));
    const double part = WeightOf(shards_[shard], cell);
    const auto here = static_cast<double>(read.ids.size());
    tokens += here;
    looked_at += part;
    if (cell + 1 == shards_[shard].cells && cell > 0) continue;  // a rest
    least = most == 0 ? here / part : std::min(least, here / part);
    most = std::max(most, here / part);
  }
  if (most > 0) unevenness_ = least > 0 ? most / least : 0;
  counted_ = count == cells;
  return counted_ ? tokens : tokens * static_cast<double>(weight) / looked_at;
}

absl::Status Stream::ChooseSize() {
  CAPSTAN_ASSIGN_OR_RETURN(const double tokens, EstimateTokens());
  if (tokens < 1) {
    return FieldError("path", "has shards without texts");
  }
  size_ = std::max<int64_t>(
      1, static_cast<int64_t>(tokens) / config_.sequence_length());
  if (config_.epoch_samples() > 0) size_ = config_.epoch_samples();
  return ChooseKeep(static_cast<int64_t>(tokens));
}

absl::StatusOr<bool> Stream::EachLaneHasTexts() {
  for (const auto& runs : LanesOfEpoch(shards_, order_, 0)) {
    bool any = false;
    for (size_t run = 0; run < runs.size() && !any; ++run) {
      const auto counts =
          source_->Counts(runs[run].shard, runs[run].first, runs[run].count);
      for (size_t i = 0; i < counts.size() && !any; ++i) {
        if (counts[i] >= 0) {
          any = counts[i] > 0;
          continue;
        }
        CAPSTAN_ASSIGN_OR_RETURN(
            const CellTokens read,
            source_->Read(runs[run].shard,
                          runs[run].first + static_cast<int64_t>(i)));
        any = !read.ids.empty();
      }
    }
    if (!any) return false;
  }
  return true;
}

// Fewer than are wanted where documents, or members without a text, are longer
// than a lane. It is looked for only where a place without a text was seen.
absl::Status Stream::ChooseLanes() {
  order_.lanes = LanesOf(shards_, config_.lanes());
  order_.shuffle = config_.shuffle();
  order_.seed = config_.seed();
  if (unevenness_ > 0) return absl::OkStatus();
  for (; order_.lanes > 1; order_.lanes /= 2) {
    CAPSTAN_ASSIGN_OR_RETURN(const bool all, EachLaneHasTexts());
    if (all) break;
  }
  return absl::OkStatus();
}

absl::Status Stream::ChooseKeep(int64_t tokens) {
  if (!keep_ || config_.tokens() == KEEP) return absl::OkStatus();
  struct statvfs disk;
  if (statvfs(store_->folder().c_str(), &disk) != 0) return absl::OkStatus();
  const double room =
      static_cast<double>(disk.f_bavail) * static_cast<double>(disk.f_frsize);
  const int width = tokenizer_->vocab_size() > 1 << 16 ? 4 : 2;
  const double missing =
      std::max(0.0, static_cast<double>(width) * static_cast<double>(tokens) -
                        static_cast<double>(store_->KeptBytes()));
  keep_ = room > 2 * missing;
  return absl::OkStatus();
}

absl::Status Stream::Read(absl::Span<const int64_t> indices,
                          Batch* batch) const {
  const double began = MonotonicSeconds();
  const int64_t length = config_.sequence_length();
  const int64_t lanes = order_.lanes;
  const std::array<int64_t, 2> shape = {static_cast<int64_t>(indices.size()),
                                        length};
  int64_t* ids = Room(kInputIds, shape, batch);
  int64_t* positions = nullptr;
  int64_t* labels = nullptr;
  if (config_.separate_documents()) {
    positions = Room(kPositions, shape, batch);
    labels = Room(kLabels, shape, batch);
  }
  for (const int64_t index : indices) {
    if (index < 0) {
      return absl::OutOfRangeError(
          absl::StrCat(config_.path(), ": there is no sample ", index));
    }
    if (cells_->has_threads()) {
      lanes_[static_cast<size_t>(index % lanes)]->Ahead(index / lanes * length);
    }
  }
  for (const int64_t index : indices) {
    CAPSTAN_RETURN_IF_ERROR(lanes_[static_cast<size_t>(index % lanes)]->Read(
        index / lanes * length, length, ids, positions));
    if (positions != nullptr) {
      for (int64_t i = 0; i < length; ++i) {
        // Nothing in its document predicts a document's first token.
        labels[i] = positions[i] == 0 ? kIgnoredTarget : ids[i];
      }
      positions += length;
      labels += length;
    }
    ids += length;
  }
  if (reader_.exchange(getpid()) != getpid()) ++tally_->readers;
  int64_t none = 0;
  tally_->began_ns.compare_exchange_strong(none,
                                           static_cast<int64_t>(began * 1e9));
  tally_->read += static_cast<int64_t>(indices.size()) * length;
  tally_->waited_ns += static_cast<int64_t>((MonotonicSeconds() - began) * 1e9);
  SaySpeed();
  return absl::OkStatus();
}

void Stream::SayCounting() const {
  if (tally_->said_counting.exchange(1) != 0) return;
  std::cerr << absl::StrCat(
      "capstan.stream: to find its place, the run tokenizes again what came "
      "before it, since the numbers of tokens aren't in ",
      store_ == nullptr || store_->folder().empty() ? "any folder"
                                                    : store_->folder(),
      " (docs/streaming.md)\n");
}

void Stream::SaySpeed() const {
  const double seconds =
      MonotonicSeconds() - static_cast<double>(tally_->began_ns) / 1e9;
  const double busy = static_cast<double>(tally_->busy_ns) / 1e9;
  if (seconds < kSecondsToSay || busy <= 0 || tally_->said_speed.exchange(1)) {
    return;
  }
  const double made = static_cast<double>(tally_->made);
  const double read = static_cast<double>(tally_->read);
  // A rank's mean.
  const double waited = static_cast<double>(tally_->waited_ns) / 1e9 / seconds /
                        static_cast<double>(tally_->readers);
  std::cerr << absl::StrFormat(
      "capstan.stream: on this host a thread tokenizes %.3g tokens/s and "
      "training takes %.3g: %s\n",
      made / busy, read / seconds,
      waited < 0.5
          ? absl::StrFormat("tokenizing keeps up, and takes %.2g cores",
                            busy / seconds)
          : std::string("tokenizing doesn't keep up: set workers to "
                        "more, or run `trainer tokenize` before"));
}

std::vector<std::string> Stream::notes() const {
  int64_t bytes = 0;
  int64_t units = 0;
  for (const Shard& shard : shards_) {
    bytes += shard.bytes;
    units += shard.units;
  }
  const char* const unit = HasTexts(shards_) ? "rows" : "tokens";
  std::vector<std::string> notes = {absl::StrFormat(
      "%s %s of %s, %.3g GiB%s: %s%s samples of %d tokens in an epoch, from %d "
      "%s",
      Thousands(static_cast<int64_t>(shards_.size())),
      shards_.size() == 1 ? "shard" : "shards", NameOf(shards_[0].format),
      static_cast<double>(bytes) / kGib,
      units > 0 ? absl::StrCat(", ", Thousands(units), " ", unit) : "",
      counted_ || config_.epoch_samples() > 0 ? "" : "about ", Thousands(size_),
      config_.sequence_length(), order_.lanes,
      order_.lanes == 1 ? "lane" : "lanes")};
  if (!HasTexts(shards_)) return notes;
  if (order_.lanes > 1 && (unevenness_ == 0 || unevenness_ > kMuchUneven)) {
    notes.push_back(absl::StrCat(
        "texts are spread unevenly: of ", kCellsLookedAt,
        " places that were looked at one has ",
        unevenness_ == 0
            ? "none"
            : absl::StrFormat("%.1f times the tokens a byte of another",
                              unevenness_),
        ", so that lanes differ in length: in an epoch's samples some texts "
        "come more than once and others not at all, and their number is rough; "
        "with lanes: 1 each comes once (docs/streaming.md)"));
  }
  if (keep_) {
    notes.push_back(
        absl::StrCat("each text is tokenized once, by whoever comes to it "
                     "first, and kept in ",
                     store_->folder()));
  } else if (store_->folder().empty()) {
    notes.push_back(
        absl::StrCat("texts are tokenized on the fly, and a resumed run "
                     "tokenizes again what "
                     "came before, since nothing can be kept (",
                     store_->problem(), "): set cache_folder"));
  } else {
    notes.push_back(
        absl::StrCat("texts are tokenized on the fly",
                     config_.tokens() == AUTO
                         ? ", as the disk has too little room for tokens"
                         : "",
                     "; only their numbers are kept, in ", store_->folder()));
  }
  return notes;
}

std::vector<CountedFile> Stream::counted_files() const {
  std::vector<CountedFile> files;
  for (const Shard& shard : shards_) {
    CountedFile file;
    file.path = shard.path;
    file.counts["bytes"] = shard.bytes;
    if (shard.units > 0) {
      file.counts[HasTexts(shards_) ? "rows" : "tokens"] = shard.units;
    }
    files.push_back(std::move(file));
  }
  return files;
}

absl::StatusOr<std::string> Stream::Digest() const {
  std::string all;
  for (const Shard& shard : shards_) {
    absl::StrAppend(&all, std::filesystem::path(shard.path).filename().string(),
                    "\n", shard.bytes, "\n", shard.ends_hash, "\n");
  }
  return absl::StrCat(shards_.size(), " shards, names, sizes and ends of ",
                      DigestText(all));
}

CAPSTAN_PLUGIN(DatasetReader, Stream, capstan::stream::Config,
               "texts in many shards, read while the run goes on");

}  // namespace capstan::stream
