// SPDX-License-Identifier: Apache-2.0
#include "datasets/chat/index_builder.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <iostream>
#include <limits>
#include <thread>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/status.h"
#include "datasets/chat/row_index.h"

namespace capstan::chat {
namespace {

// Finished chunks that may wait for an earlier one.
constexpr uint64_t kAhead = 64;
constexpr double kReportSeconds = 5.0;

void Add(const RowIndex::Facts& from, RowIndex::Facts* to) {
  to->rows += from.rows;
  to->untrained += from.untrained;
  to->cut += from.cut;
  to->chats += from.chats;
  to->tokens += from.tokens;
  to->trained += from.trained;
  to->longest = std::max(to->longest, from.longest);
  if (to->bad == 0) {
    std::memcpy(to->first_bad, from.first_bad, sizeof(to->first_bad));
  }
  to->bad += from.bad;
}

}  // namespace

absl::StatusOr<RowIndex::Facts> IndexBuilder::Run(const Sink& sink) {
  start_ = reported_ = MonotonicSeconds();
  // A file of one or two chunks isn't worth a thread.
  const uint64_t chunks = source_.text->bytes().size() / options_.chunk_bytes;
  const uint64_t cores = std::max(1u, std::thread::hardware_concurrency());
  std::vector<std::thread> threads;
  for (uint64_t i = 1; i < std::min(cores, chunks); ++i) {
    threads.emplace_back([&] { Work(sink); });
  }
  Work(sink);
  for (std::thread& thread : threads) thread.join();
  if (!status_.ok()) return status_;
  return facts_;
}

void IndexBuilder::Work(const Sink& sink) {
  RowParser parser;
  std::vector<RowPlace> places;
  while (true) {
    uint64_t number = 0;
    absl::Status scan;
    {
      std::unique_lock<std::mutex> lock(mutex_);
      written_.wait(lock, [&] {
        return at_end_ || !status_.ok() ||
               next_to_scan_ < next_to_write_ + kAhead;
      });
      if (at_end_ || !status_.ok()) return;
      scan = scanner_.Next(options_.chunk_bytes, &places);
      at_end_ = !scan.ok() || places.empty();
      if (at_end_ && scan.ok()) {
        written_.notify_all();
        return;
      }
      number = next_to_scan_++;
    }
    Chunk chunk;
    try {
      chunk = Index(places, &parser);
    } catch (...) {
      chunk.status = CurrentExceptionToStatus();
    }
    // The scanner's error comes after the rows that it returned.
    if (chunk.status.ok() && !scan.ok()) {
      chunk.status = absl::InvalidArgumentError(
          absl::StrCat(source_.path, ":", scan.message()));
    }
    Finish(number, std::move(chunk), sink);
  }
}

IndexBuilder::Chunk IndexBuilder::Index(const std::vector<RowPlace>& places,
                                        RowParser* parser) const {
  Chunk chunk;
  Row row;
  RenderedRow rendered;
  TokenRow tokens;
  for (const RowPlace& place : places) {
    chunk.end = place.offset + place.bytes;
    const absl::Status status =
        AddRow(place, parser, &row, &rendered, &tokens, &chunk);
    if (status.ok()) continue;
    const std::string message =
        absl::StrCat(source_.path, ":", place.line, ": ", status.message());
    // A problem of the config isn't one of a single row.
    if (options_.bad_rows == ERROR ||
        status.code() != absl::StatusCode::kInvalidArgument) {
      chunk.status = absl::Status(status.code(), message);
      return chunk;
    }
    if (chunk.facts.bad++ == 0) {
      message.copy(chunk.facts.first_bad, sizeof(chunk.facts.first_bad) - 1);
    }
  }
  return chunk;
}

absl::Status IndexBuilder::AddRow(const RowPlace& place, RowParser* parser,
                                  Row* row, RenderedRow* rendered,
                                  TokenRow* tokens, Chunk* chunk) const {
  if (place.bytes > std::numeric_limits<uint32_t>::max()) {
    return absl::InvalidArgumentError("the row is longer than 4 GiB");
  }
  const absl::string_view text = source_.text->bytes();
  const absl::string_view json = text.substr(place.offset, place.bytes);
  CAPSTAN_RETURN_IF_ERROR(
      parser->Parse(json, text.size() - place.offset, options_.kind, row));
  CAPSTAN_RETURN_IF_ERROR(options_.encoder->Render(*row, rendered));
  options_.encoder->Encode(*rendered, tokens);
  const auto trained = static_cast<uint64_t>(tokens->trained());
  RowIndex::Facts& facts = chunk->facts;
  if (trained == 0) {
    ++facts.untrained;
    return absl::OkStatus();
  }
  const uint64_t count = tokens->ids.size();
  ++facts.rows;
  facts.cut += tokens->was_cut ? 1 : 0;
  facts.chats += row->is_text ? 0 : 1;
  facts.tokens += count;
  facts.trained += trained;
  facts.longest = std::max(facts.longest, count);
  chunk->rows.push_back(
      {place.offset, HashOf(json), static_cast<uint32_t>(place.bytes),
       static_cast<uint32_t>(count), static_cast<uint32_t>(trained), 0});
  return absl::OkStatus();
}

void IndexBuilder::Finish(uint64_t number, Chunk chunk, const Sink& sink) {
  const std::lock_guard<std::mutex> lock(mutex_);
  waiting_.emplace(number, std::move(chunk));
  // In file order, so that the first error is the file's first.
  for (auto first = waiting_.find(next_to_write_);
       status_.ok() && first != waiting_.end();
       first = waiting_.find(next_to_write_)) {
    const Chunk& done = first->second;
    status_ = done.status;
    if (status_.ok()) status_ = sink(done.rows);
    Add(done.facts, &facts_);
    Report(done.end);
    waiting_.erase(first);
    ++next_to_write_;
  }
  written_.notify_all();
}

// Reports progress, for files that take long.
void IndexBuilder::Report(uint64_t end) {
  const double now = MonotonicSeconds();
  if (now - reported_ < kReportSeconds) return;
  reported_ = now;
  const double done = static_cast<double>(end) /
                      static_cast<double>(source_.text->bytes().size());
  std::cerr << absl::StrCat(
      "capstan.chat: indexing ", source_.path, ", ",
      static_cast<int>(100 * done), " %, ",
      static_cast<int>((now - start_) * (1 - done) / std::max(done, 1e-6)),
      " s left (once: the index is kept)\n");
}

}  // namespace capstan::chat
