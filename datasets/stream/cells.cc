// SPDX-License-Identifier: Apache-2.0
#include "datasets/stream/cells.h"

#include <unistd.h>

#include <algorithm>
#include <iostream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/error_code.h"
#include "base/quiet_thread.h"
#include "base/random.h"
#include "base/status.h"

namespace capstan::stream {
namespace {

constexpr int kMostBadTold = 5;

class TextSource final : public CellSource {
 public:
  explicit TextSource(const TextSourceOptions& options)
      : options_(options), eos_(options.tokenizer->special_ids().eos) {}

  absl::StatusOr<CellTokens> Read(int64_t shard, int64_t cell) override {
    const CellStore& store = *options_.store;
    auto kept = store.Read(shard, cell);
    if (kept == nullptr && *options_.keep) {
      const CellStore::Lock lock(store, shard, cell);
      // Another has made it meanwhile.
      kept = store.Read(shard, cell);
      if (kept == nullptr) return MakeAndWrite(shard, cell);
    }
    if (kept == nullptr) return MakeAndWrite(shard, cell);
    options_.tally->bad_rows += kept->bad_rows;
    return *std::move(kept);
  }

  std::vector<int64_t> Counts(int64_t shard, int64_t first,
                              int64_t count) const override {
    return options_.store->Counts(shard, first, count);
  }

  void EndHelpers() override { options_.texts->EndHelpers(); }

 private:
  absl::StatusOr<CellTokens> MakeAndWrite(int64_t shard, int64_t cell) {
    const double began = MonotonicSeconds();
    CAPSTAN_ASSIGN_OR_RETURN(CellTokens tokens, Tokenize(shard, cell));
    Tally& tally = *options_.tally;
    tally.made += static_cast<int64_t>(tokens.ids.size());
    tally.busy_ns += static_cast<int64_t>((MonotonicSeconds() - began) * 1e9);
    const absl::Status wrote =
        options_.store->Write(shard, cell, tokens, *options_.keep);
    if (!wrote.ok() && tally.said.exchange(1) == 0) {
      std::cerr << absl::StrCat(
          "capstan.stream: tokens aren't kept (", wrote.message(),
          "), so that they are made again when they are needed again\n");
    }
    return tokens;
  }

  absl::StatusOr<CellTokens> Tokenize(int64_t index, int64_t cell) {
    const Shard& shard = (*options_.shards)[index];
    CAPSTAN_ASSIGN_OR_RETURN(const std::vector<Document> documents,
                             options_.texts->Read(shard, cell));
    CellTokens tokens;
    for (const Document& document : documents) {
      absl::Status bad = document.bad;
      if (bad.ok()) bad = CheckText(document.text);
      if (bad.ok()) bad = CheckKnown(*options_.tokenizer, document.text);
      if (!bad.ok()) {
        CAPSTAN_RETURN_IF_ERROR(OnBad(shard, document, bad));
        ++tokens.bad_rows;
        continue;
      }
      if (document.text.empty()) continue;
      std::vector<int64_t> ids = options_.tokenizer->Encode(document.text);
      options_.tokenizer->AddEnds(&ids);
      if (eos_ >= 0 && (ids.empty() || ids.back() != eos_)) ids.push_back(eos_);
      tokens.ids.insert(tokens.ids.end(), ids.begin(), ids.end());
      tokens.ends.push_back(static_cast<uint32_t>(tokens.ids.size()));
    }
    return tokens;
  }

  absl::Status OnBad(const Shard& shard, const Document& document,
                     const absl::Status& bad) const {
    if (!options_.skip_bad) {
      return WithCode(
          absl::InvalidArgumentError(absl::StrCat(
              options_.texts->PlaceOf(shard, document.place), " ",
              bad.message(),
              "; mend or remove it, or set bad_rows: SKIP to leave such rows "
              "out")),
          "data/bad-row");
    }
    Tally& tally = *options_.tally;
    ++tally.bad_rows;
    if (tally.said_bad.fetch_add(1) < kMostBadTold) {
      std::cerr << absl::StrCat("capstan.stream: left out: ",
                                options_.texts->PlaceOf(shard, document.place),
                                " ", bad.message(),
                                tally.said_bad == kMostBadTold
                                    ? " (others are left out without a word)"
                                    : "",
                                "\n");
    }
    return absl::OkStatus();
  }

  const TextSourceOptions options_;
  const int64_t eos_;
};

// In another order, by a key.
CellTokens Shuffled(const CellTokens& tokens, uint64_t key) {
  CellTokens shuffled;
  shuffled.ids.reserve(tokens.ids.size());
  shuffled.ends.reserve(tokens.ends.size());
  const auto count = static_cast<int64_t>(tokens.ends.size());
  for (int64_t i = 0; i < count; ++i) {
    const int64_t from = PermutedIndex(key, i, count);
    const auto begin =
        tokens.ids.begin() + (from == 0 ? 0 : tokens.ends[from - 1]);
    shuffled.ids.insert(shuffled.ids.end(), begin,
                        tokens.ids.begin() + tokens.ends[from]);
    shuffled.ends.push_back(static_cast<uint32_t>(shuffled.ids.size()));
  }
  return shuffled;
}

}  // namespace

std::unique_ptr<CellSource> NewTextSource(const TextSourceOptions& options) {
  return std::make_unique<TextSource>(options);
}

Cells::Cells(CellSource* source, const Options& options)
    : source_(*source), options_(options) {}

Cells::~Cells() {
  if (state_ == nullptr) return;
  if (state_->owner != getpid()) {
    state_.release();  // its threads are another process's
    return;
  }
  {
    const std::lock_guard<std::mutex> lock(state_->mutex);
    state_->stopping = true;
  }
  state_->wanted.notify_all();
  for (std::thread& thread : state_->threads) thread.join();
}

Cells::State& Cells::OfThisProcess() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (state_ == nullptr || state_->owner != getpid()) {
    state_.release();
    state_ = std::make_unique<State>();
    state_->owner = getpid();
  }
  return *state_;
}

absl::StatusOr<std::shared_ptr<const CellTokens>> Cells::Make(
    const Id& id) const {
  try {
    CAPSTAN_ASSIGN_OR_RETURN(CellTokens tokens,
                             source_.Read(id.shard, id.cell));
    if (options_.shuffle) {
      const uint64_t key =
          RandomKey(options_.seed, absl::StrCat("stream documents ", id.epoch,
                                                " ", id.shard, " ", id.cell));
      tokens = Shuffled(tokens, key);
    }
    return std::make_shared<const CellTokens>(std::move(tokens));
  } catch (...) {
    return CurrentExceptionToStatus();
  }
}

int64_t Cells::BytesOf(const Slot& slot) {
  if (slot.tokens == nullptr) return 0;
  return static_cast<int64_t>(
      (slot.tokens->ids.capacity() + slot.tokens->ends.capacity()) *
      sizeof(uint32_t));
}

// Makes a slot that is there, and waits. *lock is held at both ends.
void Cells::MakeSlot(State& state, const Id& id,
                     std::unique_lock<std::mutex>* lock) {
  state.slots[id].state = Slot::kBusy;
  lock->unlock();
  auto made = Make(id);
  lock->lock();
  Slot& slot = state.slots[id];
  slot.state = Slot::kDone;
  slot.status = made.status();
  if (made.ok()) slot.tokens = *std::move(made);
  state.bytes += BytesOf(slot);
  slot.place = state.used.insert(state.used.end(), id);
  while (state.used.size() > options_.most ||
         (state.bytes > options_.most_bytes && state.used.size() > 1)) {
    const auto oldest = state.slots.find(state.used.front());
    state.bytes -= BytesOf(oldest->second);
    state.slots.erase(oldest);
    state.used.pop_front();
  }
  state.done.notify_all();
}

absl::StatusOr<std::shared_ptr<const CellTokens>> Cells::Get(const Id& id) {
  State& state = OfThisProcess();
  std::unique_lock<std::mutex> lock(state.mutex);
  while (true) {
    const auto it = state.slots.find(id);
    if (it == state.slots.end() || it->second.state == Slot::kWanted) {
      // Also if a thread would come to it later.
      MakeSlot(state, id, &lock);
      continue;
    }
    Slot& slot = it->second;
    if (slot.state == Slot::kBusy) {
      state.done.wait(lock);
      continue;
    }
    if (!slot.status.ok()) {
      // What fails may be well when it is tried again.
      const absl::Status status = slot.status;
      state.used.erase(slot.place);
      state.slots.erase(it);
      return status;
    }
    state.used.splice(state.used.end(), state.used, slot.place);
    return slot.tokens;
  }
}

void Cells::Ahead(const Id& id) {
  if (options_.workers == 0) return;
  State& state = OfThisProcess();
  const std::lock_guard<std::mutex> lock(state.mutex);
  if (state.slots.count(id) > 0) return;
  state.slots[id].state = Slot::kWanted;
  state.queue.push_back(id);
  // They end with this object, or this process.
  while (static_cast<int>(state.threads.size()) < options_.workers) {
    state.threads.push_back(QuietThread([this, &state] { Run(state); }));
  }
  state.wanted.notify_one();
}

void Cells::Run(State& state) {
  std::unique_lock<std::mutex> lock(state.mutex);
  while (true) {
    state.wanted.wait(lock,
                      [&] { return state.stopping || !state.queue.empty(); });
    if (state.stopping) return;
    const Id id = state.queue.front();
    state.queue.pop_front();
    const auto it = state.slots.find(id);
    if (it == state.slots.end() || it->second.state != Slot::kWanted) continue;
    MakeSlot(state, id, &lock);
  }
}

}  // namespace capstan::stream
