// SPDX-License-Identifier: Apache-2.0
#include "cluster/comm/hosts/hosts_collectives.h"

#include <c10/core/ScalarType.h>
#include <glog/logging.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace capstan {
namespace {

// A block holds at most a slot. Smaller data is cut into several blocks, so
// that hosts work at the same time, but not into so small ones that messages
// cost more than their bytes.
constexpr int64_t kBlocksUnderWay = 8;
constexpr int64_t kSmallestBlockBytes = 32 << 10;
// Up to this total size host 0 sums all values alone, so that a result takes
// two messages rather than two from each host to the next.
constexpr int64_t kBytesAtHost0 = 32 << 10;
constexpr int64_t kCacheLine = 64;

// Messages with sums for segment s have tag s.
constexpr int kResultTag = 0;

int64_t CeilDivide(int64_t a, int64_t b) { return (a + b - 1) / b; }

int64_t Width(c10::ScalarType type) {
  return static_cast<int64_t>(c10::elementSize(type));
}

std::vector<int> LeaderNames(const HostLayout& layout,
                             const std::vector<int>& names) {
  std::vector<int> leaders;
  for (int h = 0; h < layout.hosts(); ++h) {
    leaders.push_back(names[layout.leader(h)]);
  }
  return leaders;
}

}  // namespace

HostsCollectives::HostsCollectives(HostLayout layout, std::vector<int> names,
                                   std::unique_ptr<ShmMeeting> meeting,
                                   std::string prefix, Connect connect,
                                   std::shared_ptr<HostFailures> failures,
                                   c10::intrusive_ptr<c10d::Store> store)
    : layout_(std::move(layout)),
      names_(std::move(names)),
      meeting_(std::move(meeting)),
      prefix_(std::move(prefix)),
      connect_(std::move(connect)),
      owns_failures_(failures == nullptr),
      failures_(owns_failures_ ? std::make_shared<HostFailures>(
                                     std::move(store), meeting_.get())
                               : std::move(failures)),
      pipeline_(meeting_.get()) {
  ConnectLinks();
}

void HostsCollectives::ConnectLinks() {
  if (!layout_.is_leader() || links_ != nullptr) return;
  // Keys that an earlier connection has left must not be mistaken for this
  // one's.
  const int64_t epoch = failures_->epoch();
  links_ = std::make_unique<HostLinks>(
      connect_(epoch == 0 ? prefix_ : absl::StrCat(prefix_, "/again", epoch)),
      LeaderNames(layout_, names_),
      [meeting = meeting_.get(),
       failures = failures_](const absl::Status& status) {
        // The other end may have closed for a failure that all survive.
        if (!failures->Look()) meeting->Stop(status);
      });
  pipeline_.set_links(links_.get());
}

void HostsCollectives::Reset() {
  meeting_->Reset();
  pipeline_.Reset();
  sequence_ = 0;
  pipeline_.set_links(nullptr);
  links_.reset();
  if (owns_failures_) failures_->NextEpoch();
}

CollectiveCall HostsCollectives::Next(const char* operation, int64_t size,
                                      c10::ScalarType type, int root) {
  return MakeCall(++sequence_, operation, size, type, root);
}

absl::Status HostsCollectives::Run(const CollectiveCall& call,
                                   const HostSteps& steps, int64_t blocks) {
  // A failure on any host, which the leader may only see as a closed
  // connection.
  const auto failure = [this]() -> absl::Status {
    if (!layout_.is_leader() || !failures_->Look()) return absl::OkStatus();
    const absl::optional<PhaseFailure> found = meeting_->root().Failure();
    return absl::AbortedError(found.has_value() ? found->why : "it failed");
  };
  if (layout_.is_leader() && links_ == nullptr) {
    try {
      if (!failures_->LeadersCome(prefix_, layout_.hosts())) return failure();
      ConnectLinks();
    } catch (...) {
      return absl::UnavailableError(CurrentExceptionToStatus().message());
    }
  }
  const absl::Status status = pipeline_.Run(call, steps, blocks);
  if (absl::IsUnavailable(status)) CAPSTAN_RETURN_IF_ERROR(failure());
  return status;
}

void HostsCollectives::Leave() {
  meeting_->Leave(links_ == nullptr ? -1 : links_->lost());
  if (links_ != nullptr) links_->Close();
}

HostsCollectives::Blocks HostsCollectives::Cut(int64_t rows, int64_t columns,
                                               int64_t width,
                                               int64_t buffer_width) {
  const int64_t column_bytes = rows * buffer_width;
  const int64_t bytes = std::min(
      kShmSlotBytes,
      std::max(columns * column_bytes / kBlocksUnderWay, kSmallestBlockBytes));
  int64_t block = std::max<int64_t>(1, bytes / column_bytes);
  const int64_t line = kCacheLine / width;
  if (block > line) block = block / line * line;
  CHECK_LE(block * column_bytes, kShmSlotBytes);
  return {rows, columns, width, block};
}

HostsCollectives::Range HostsCollectives::Piece(const Blocks& blocks,
                                                int64_t k) const {
  const int64_t size = blocks.rows * blocks.ColumnsOf(k);
  const int64_t line = kCacheLine / blocks.width;
  const int64_t part =
      CeilDivide(CeilDivide(size, layout_.locals()), line) * line;
  return {std::min(local() * part, size), std::min((local() + 1) * part, size)};
}

void HostsCollectives::ForRuns(
    const Blocks& blocks, int64_t k, Range range,
    const std::function<void(int64_t, int64_t, int64_t)>& run) const {
  const int64_t columns = blocks.ColumnsOf(k);
  int64_t length = 0;
  for (int64_t at = range.begin; at < range.end; at += length) {
    const int64_t column = at % columns;
    length = std::min(columns - column, range.end - at);
    const int64_t row =
        blocks.rows == 1 ? 0 : layout_.rank_at(static_cast<int>(at / columns));
    run(at, row * blocks.columns + k * blocks.block + column, length);
  }
}

absl::Status HostsCollectives::Barrier() {
  char none = 0;
  return AllReduce(&none, 1, c10::ScalarType::Byte);
}

absl::Status HostsCollectives::AllReduce(char* data, int64_t size,
                                         c10::ScalarType type) {
  const int64_t width = Width(type);
  if (layout_.segments().size() > 2 &&
      size * width * layout_.size() <= kBytesAtHost0) {
    return AllReduceAtHost0(data, size, type);
  }
  const PartialSum sum = PartialSumOf(type);
  const Blocks blocks = Cut(1, size, width, BufferWidth(width, sum));
  const Reduction reduction = {
      data, blocks, sum,
      layout_.segments().size() == 2 && layout_.segments()[0].size() == 1};
  return Reduce(Next("all-reduce", size, type), reduction, [&](int64_t k) {
    std::memcpy(data + k * blocks.block * width, result(k),
                blocks.ColumnsOf(k) * width);
  });
}

absl::Status HostsCollectives::ReduceScatter(char* output, const char* input,
                                             int64_t size,
                                             c10::ScalarType type) {
  const int64_t width = Width(type);
  const PartialSum sum = PartialSumOf(type);
  const Blocks blocks =
      Cut(layout_.size(), size, width, BufferWidth(width, sum));
  const Reduction reduction = {
      input, blocks, sum,
      layout_.segments().size() == 2 && layout_.segments()[0].size() == 1};
  return Reduce(Next("reduce-scatter", size, type), reduction, [&](int64_t k) {
    const int64_t bytes = blocks.ColumnsOf(k) * width;
    std::memcpy(output + k * blocks.block * width,
                result(k) + layout_.position(rank()) * bytes, bytes);
  });
}

absl::Status HostsCollectives::Reduce(const CollectiveCall& call,
                                      const Reduction& reduction,
                                      const Take& take) {
  HostSteps steps;
  const int post = steps.AddLocal([&](int64_t k) { Post(reduction, k); });
  const std::vector<HostSegment>& segments = layout_.segments();
  const int last = static_cast<int>(segments.size()) - 1;
  int buffers = 0;
  int last_sum = HostSteps::kNone;
  for (int s = 0; s <= last; ++s) {
    if (segments[s].host != layout_.host()) continue;
    const int sum = AddSegment(reduction, s, buffers++, post, &steps);
    if (s == last) last_sum = sum;
  }
  AddReturn(reduction.blocks, segments[last].host, last_sum, take, &steps);
  return Run(call, steps, reduction.blocks.count());
}

int HostsCollectives::AddSegment(const Reduction& reduction, int segment,
                                 int buffer, int post, HostSteps* steps) const {
  const std::vector<HostSegment>& segments = layout_.segments();
  const auto message = [this, &reduction, buffer](bool send, int host, int to,
                                                  int64_t k) {
    const Blocks& blocks = reduction.blocks;
    const int64_t elements = blocks.rows * blocks.ColumnsOf(k);
    return std::vector<HostMessage>{{send, host, /*tag=*/to, partial(buffer, k),
                                     elements * WidthAfter(reduction, to - 1)}};
  };
  int receive = HostSteps::kNone;
  if (segment > 0) {
    const int from = segments[segment - 1].host;
    receive = steps->AddMessages([message, from, segment](int64_t k) {
      return message(/*send=*/false, from, segment, k);
    });
  }
  const int sum =
      steps->AddLocal([this, &reduction, segment, buffer](int64_t k) {
        AddValues(reduction, segment, buffer, k);
      });
  int send = HostSteps::kNone;
  if (segment + 1 < static_cast<int>(segments.size())) {
    const int to = segments[segment + 1].host;
    send = steps->AddMessages([message, to, segment](int64_t k) {
      return message(/*send=*/true, to, segment + 1, k);
    });
  }
  steps->After(sum, post);
  steps->After(sum, receive);
  steps->After(send, sum);
  // When slots and buffers may be written again.
  steps->After(post, sum, kShmSlots);
  steps->After(receive, send == HostSteps::kNone ? sum : send, kShmSlots);
  if (receive == HostSteps::kNone) steps->After(sum, send, kShmSlots);
  return sum;
}

void HostsCollectives::AddReturn(const Blocks& blocks, int from, int ready,
                                 const Take& take, HostSteps* steps) const {
  const int host = layout_.host();
  int write = ready;  // the step that fills result()
  if (host != from) {
    const bool from_above = host < from;
    const int neighbor = from_above ? host + 1 : host - 1;
    const Range rows = ReturnedRows(blocks, from_above, host);
    write = steps->AddMessages([this, &blocks, neighbor, rows](int64_t k) {
      return std::vector<HostMessage>{
          RowsMessage(blocks, /*send=*/false, neighbor, rows, k)};
    });
  }
  std::vector<int> receivers;
  if (host <= from && host > 0) receivers.push_back(host - 1);
  if (host >= from && host + 1 < layout_.hosts()) receivers.push_back(host + 1);
  int send = HostSteps::kNone;
  if (!receivers.empty()) {
    send = steps->AddMessages([this, &blocks, host, receivers](int64_t k) {
      std::vector<HostMessage> messages;
      for (const int to : receivers) {
        const Range rows = ReturnedRows(blocks, /*from_above=*/to < host, to);
        messages.push_back(RowsMessage(blocks, /*send=*/true, to, rows, k));
      }
      return messages;
    });
  }
  const int taken = steps->AddLocal(take);
  steps->After(send, write);
  steps->After(taken, write);
  steps->After(write, taken, kShmSlots);
  steps->After(write, send, kShmSlots);
}

HostsCollectives::Range HostsCollectives::ReturnedRows(const Blocks& blocks,
                                                       bool from_above,
                                                       int host) const {
  if (blocks.rows == 1) return {0, 1};
  if (from_above) return {0, layout_.end(host)};
  return {layout_.begin(host), blocks.rows};
}

HostMessage HostsCollectives::RowsMessage(const Blocks& blocks, bool send,
                                          int host, Range rows,
                                          int64_t k) const {
  const int64_t row_bytes = blocks.ColumnsOf(k) * blocks.width;
  return {send, host, kResultTag, result(k) + rows.begin * row_bytes,
          rows.size() * row_bytes};
}

int64_t HostsCollectives::BufferWidth(int64_t width,
                                      const PartialSum& sum) const {
  int64_t most = width;
  for (const HostSegment& ranks : layout_.segments()) {
    if (ranks.end == layout_.size()) continue;
    most = std::max<int64_t>(most, sum.width * SumParts(ranks.end));
  }
  return most;
}

int64_t HostsCollectives::WidthAfter(const Reduction& reduction,
                                     int segment) const {
  return segment == 0 && reduction.first_is_plain
             ? reduction.blocks.width
             : reduction.sum.width * SumParts(layout_.segments()[segment].end);
}

void HostsCollectives::Post(const Reduction& reduction, int64_t k) const {
  const Blocks& blocks = reduction.blocks;
  const auto copy = [&](Range range) {
    ForRuns(blocks, k, range, [&](int64_t at, int64_t from, int64_t length) {
      std::memcpy(slot(local(), k) + at * blocks.width,
                  reduction.input + from * blocks.width, length * blocks.width);
    });
  };
  const Range piece = Piece(blocks, k);
  copy({0, piece.begin});
  copy({piece.end, blocks.rows * blocks.ColumnsOf(k)});
}

void HostsCollectives::AddValues(const Reduction& reduction, int segment,
                                 int buffer, int64_t k) const {
  const Blocks& blocks = reduction.blocks;
  const HostSegment& ranks = layout_.segments()[segment];
  const bool is_last =
      segment + 1 == static_cast<int>(layout_.segments().size());
  const bool plain_out = segment == 0 && reduction.first_is_plain;
  const bool plain_in = segment == 1 && reduction.first_is_plain;
  // Subtrees follow each other, each of all elements.
  const int64_t elements = blocks.rows * blocks.ColumnsOf(k);
  const auto run = [&](int64_t at, int64_t from, int64_t length) {
    char* const sums = partial(buffer, k);
    std::vector<const void*> values;
    if (plain_in) values.push_back(sums + at * blocks.width);
    for (int r = ranks.begin; r < ranks.end; ++r) {
      values.push_back(r == rank()
                           ? reduction.input + from * blocks.width
                           : slot(layout_.local(r), k) + at * blocks.width);
    }
    char* out = nullptr;
    if (is_last) out = result(k) + at * blocks.width;
    if (plain_out) out = sums + at * blocks.width;
    reduction.sum.add(plain_in ? 0 : ranks.begin,
                      sums + at * reduction.sum.width, elements, values.data(),
                      static_cast<int>(values.size()), out, length);
  };
  ForRuns(blocks, k, Piece(blocks, k), run);
}

absl::Status HostsCollectives::AllReduceAtHost0(char* data, int64_t size,
                                                c10::ScalarType type) {
  const int64_t bytes = size * Width(type);
  // Every rank's values, by position, are in result(), their sum in partial().
  const auto values = [this, bytes](int h, bool send, int with, int64_t k) {
    const int64_t begin = layout_.begin(h) * bytes;
    return HostMessage{send, with, kResultTag, result(k) + begin,
                       layout_.end(h) * bytes - begin};
  };
  const auto total = [this, bytes](bool send, int with, int64_t k) {
    return HostMessage{send, with, kResultTag, partial(0, k), bytes};
  };
  HostSteps steps;
  const int post = steps.AddLocal([&](int64_t k) {
    std::memcpy(result(k) + layout_.position(rank()) * bytes, data, bytes);
  });
  int ready = HostSteps::kNone;
  const int host = layout_.host();
  if (host == 0) {
    const int receive = steps.AddMessages([&](int64_t k) {
      std::vector<HostMessage> messages;
      for (int h = 1; h < layout_.hosts(); ++h) {
        messages.push_back(values(h, /*send=*/false, h, k));
      }
      return messages;
    });
    ready = steps.AddLocal([&](int64_t k) {
      if (!layout_.is_leader()) return;
      std::vector<const void*> sources;
      for (int r = 0; r < layout_.size(); ++r) {
        sources.push_back(result(k) + layout_.position(r) * bytes);
      }
      SumOf(type)(sources.data(), layout_.size(), partial(0, k), size);
    });
    const int send = steps.AddMessages([&](int64_t k) {
      std::vector<HostMessage> messages;
      for (int h = 1; h < layout_.hosts(); ++h) {
        messages.push_back(total(/*send=*/true, h, k));
      }
      return messages;
    });
    steps.After(ready, post);
    steps.After(ready, receive);
    steps.After(send, ready);
  } else {
    const int send = steps.AddMessages([&](int64_t k) {
      return std::vector<HostMessage>{values(host, /*send=*/true, 0, k)};
    });
    ready = steps.AddMessages([&](int64_t k) {
      return std::vector<HostMessage>{total(/*send=*/false, 0, k)};
    });
    steps.After(send, post);
  }
  const int take = steps.AddLocal(
      [&](int64_t k) { std::memcpy(data, partial(0, k), bytes); });
  // In place: `data` is posted first.
  steps.After(take, post);
  steps.After(take, ready);
  return Run(Next("all-reduce", size, type), steps, 1);
}

absl::Status HostsCollectives::AllGather(char* output, const char* input,
                                         int64_t bytes) {
  const Blocks blocks = Cut(layout_.size(), bytes, 1, 1);
  const int host = layout_.host();
  char* const own = output + rank() * bytes;
  const int position = layout_.position(rank());
  HostSteps steps;
  const int post = steps.AddLocal([&](int64_t k) {
    const int64_t count = blocks.ColumnsOf(k);
    const char* const from = input + k * blocks.block;
    std::memcpy(result(k) + position * count, from, count);
    if (own != input) std::memcpy(own + k * blocks.block, from, count);
  });
  const int take = steps.AddLocal([&](int64_t k) {
    const int64_t count = blocks.ColumnsOf(k);
    for (int p = 0; p < layout_.size(); ++p) {
      if (p == position) continue;
      std::memcpy(output + layout_.rank_at(p) * bytes + k * blocks.block,
                  result(k) + p * count, count);
    }
  });
  // Rows of the hosts below come from below, and go above with this host's.
  const auto add = [&](bool send, int neighbor, Range rows) {
    if (neighbor < 0 || neighbor == layout_.hosts()) return HostSteps::kNone;
    return steps.AddMessages([this, &blocks, send, neighbor, rows](int64_t k) {
      return std::vector<HostMessage>{
          RowsMessage(blocks, send, neighbor, rows, k)};
    });
  };
  const int64_t begin = layout_.begin(host);
  const int64_t end = layout_.end(host);
  const int from_below = add(/*send=*/false, host - 1, {0, begin});
  const int from_above = add(/*send=*/false, host + 1, {end, blocks.rows});
  const int to_below = add(/*send=*/true, host - 1, {begin, blocks.rows});
  const int to_above = add(/*send=*/true, host + 1, {0, end});
  steps.After(to_above, post);
  steps.After(to_above, from_below);
  steps.After(to_below, post);
  steps.After(to_below, from_above);
  steps.After(take, post);
  steps.After(take, from_below);
  steps.After(take, from_above);
  // When rows may be written again.
  steps.After(post, take, kShmSlots);
  steps.After(post, to_above, kShmSlots);
  steps.After(post, to_below, kShmSlots);
  steps.After(from_below, take, kShmSlots);
  steps.After(from_below, to_above, kShmSlots);
  steps.After(from_above, take, kShmSlots);
  steps.After(from_above, to_below, kShmSlots);
  return Run(Next("all-gather", bytes, c10::ScalarType::Byte), steps,
             blocks.count());
}

absl::Status HostsCollectives::Broadcast(char* data, int64_t bytes, int root) {
  const Blocks blocks = Cut(1, bytes, 1, 1);
  const int from = layout_.host_of(root);
  HostSteps steps;
  int post = HostSteps::kNone;
  if (layout_.host() == from) {
    post = steps.AddLocal([&](int64_t k) {
      if (rank() != root) return;
      std::memcpy(result(k), data + k * blocks.block, blocks.ColumnsOf(k));
    });
  }
  const Take take = [&](int64_t k) {
    if (rank() == root) return;
    std::memcpy(data + k * blocks.block, result(k), blocks.ColumnsOf(k));
  };
  AddReturn(blocks, from, post, take, &steps);
  return Run(Next("broadcast", bytes, c10::ScalarType::Byte, root), steps,
             blocks.count());
}

// Between hosts both are all-gathers of which a rank keeps its part, at the
// price of sending all to all: groups that need them should be of one host.
absl::Status HostsCollectives::AllToAll(char* output, const char* input,
                                        int64_t bytes) {
  std::vector<char> all(bytes * size() * size());
  CAPSTAN_RETURN_IF_ERROR(AllGather(all.data(), input, bytes * size()));
  for (int i = 0; i < size(); ++i) {
    std::memcpy(output + i * bytes, all.data() + (i * size() + rank()) * bytes,
                bytes);
  }
  return absl::OkStatus();
}

absl::Status HostsCollectives::SendRecv(char* output, int from,
                                        const char* input, int to,
                                        int64_t bytes) {
  std::vector<char> all(bytes * size());
  CAPSTAN_RETURN_IF_ERROR(AllGather(all.data(), input, bytes));
  if (from >= 0) std::memcpy(output, all.data() + from * bytes, bytes);
  return absl::OkStatus();
}

}  // namespace capstan
