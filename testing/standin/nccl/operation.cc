// SPDX-License-Identifier: Apache-2.0
#include "testing/standin/nccl/operation.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>

#include <algorithm>
#include <cstring>
#include <utility>

namespace capstan::standin {
namespace {

// After which a call that waits for others is reported, in seconds.
double HangSeconds() {
  static const double seconds = atof(Setting("hang", "20").c_str());
  return seconds;
}

std::string Number(int64_t number) { return std::to_string(number); }

std::string RankOf(int rank, int size) {
  return "rank " + Number(rank) + " of " + Number(size);
}

bool IsDead(const RankPart& part) {
  return part.pid != 0 && kill(part.pid, 0) != 0 && errno == ESRCH;
}

// What a rank that isn't there does instead, for people.
std::string Whereabouts(const Board& board, int rank) {
  const RankPart& part = board.part(rank);
  std::string text = "rank " + Number(rank);
  const int64_t posted = part.posted;
  if (IsDead(part)) {
    text += ", whose process has ended";
  } else if (part.left != 0) {
    text += ", which has left";
  } else if (part.issued > posted) {
    text += ", whose host has issued it and whose device hasn't come to it";
  } else {
    text += ", whose host hasn't issued it";
  }
  return text + " (" + Number(posted) + " calls begun" +
         (posted > 0 ? ", the last " + Describe(part.calls[posted % 2]) : "") +
         ")";
}

int64_t InputElements(const Call& call, int size) {
  const bool more =
      call.kind == Kind::kReduceScatter || call.kind == Kind::kAllToAll;
  return more ? call.count * size : call.count;
}

int64_t OutputElements(const Call& call, int size) {
  const bool more =
      call.kind == Kind::kAllGather || call.kind == Kind::kAllToAll;
  return more ? call.count * size : call.count;
}

// Bytes that a rank sends, of `bytes` that a rank has in the end (in the
// beginning: reduce-scatter), with rings; nccl-tests' doc/PERFORMANCE.md.
int64_t BytesSent(Kind kind, int64_t bytes, int rank, int root, int size) {
  switch (kind) {
    case Kind::kAllReduce:
      return 2 * bytes * (size - 1) / size;
    case Kind::kReduce:
      return rank == root ? 0 : bytes;
    case Kind::kBroadcast:
      // The last in the ring sends nothing.
      return (rank + 1) % size == root ? 0 : bytes;
    default:
      return bytes * (size - 1) / size;
  }
}

}  // namespace

Progress Operation::Run() {
  Communicator& communicator = *communicator_;
  if (communicator.aborted_) return End();
  if (!begun_) {
    if (fault_ == Fault::kStalls || communicator.current_ != nullptr ||
        (ticket_ >= 0 && ticket_ != communicator.turn_)) {
      return Progress::kNotYet;
    }
    communicator.current_ = this;
    begun_ = true;
    disagrees_ = reported_ = false;
    idle_since_ = std::chrono::steady_clock::now();
    if (fault_ == Fault::kFails) {
      ReportFault("collective");
      board().mine().failed = board().mine().posted + 1;
      communicator.error_ = ncclSystemError;
    } else {
      Begin();
    }
  }
  if (Broken()) return Progress::kNotYet;
  bool done = false;
  bool moved = false;
  while (!done && !disagrees_ && Advance(&done)) moved = true;
  if (done) return End();
  const auto now = std::chrono::steady_clock::now();
  if (moved) idle_since_ = now;
  const double idle = std::chrono::duration<double>(now - idle_since_).count();
  if (!reported_ && !disagrees_ && idle > HangSeconds()) {
    reported_ = true;
    ReportFinding("hang", RankOf(board().rank(), board().size()) +
                              " waits in " + WaitsFor());
  }
  return Progress::kNotYet;
}

Progress Operation::End() {
  Communicator& communicator = *communicator_;
  if (communicator.current_ == this) communicator.current_ = nullptr;
  if (begun_ && ticket_ >= 0) {
    ++communicator.turn_;
    ticket_ = -1;
  }
  begun_ = false;
  return Progress::kDone;
}

// Whether this call or one before it has failed, here or on another rank.
bool Operation::Broken() {
  Communicator& communicator = *communicator_;
  if (communicator.error_ != ncclSuccess) return true;
  for (int r = 0; r < board().size(); ++r) {
    const int64_t failed = board().part(r).failed;
    if (failed != 0 && number() >= failed) {
      communicator.error_ = ncclRemoteError;
      return true;
    }
  }
  return false;
}

void Operation::Disagree(const std::string& text) {
  if (!disagrees_) ReportFinding("mismatch", text);
  disagrees_ = true;
}

Collective::Collective(std::shared_ptr<Communicator> communicator, Fault fault,
                       const Arguments& arguments)
    : Operation(std::move(communicator), fault),
      arguments_(arguments),
      width_(WidthOf(arguments.call.type)) {
  const int64_t bytes = Scatters() ? kRoundBytes / board().size() : kRoundBytes;
  per_round_ = bytes / 64 * 64 / width_;
  rounds_ = (arguments_.call.count + per_round_ - 1) / per_round_;
}

bool Collective::Scatters() const {
  return arguments_.call.kind == Kind::kReduceScatter ||
         arguments_.call.kind == Kind::kAllToAll;
}

void Collective::Describe(Work* work) const {
  const Call& call = arguments_.call;
  const int size = board().size();
  const int64_t in = InputElements(call, size) * width_;
  const int64_t out = OutputElements(call, size) * width_;
  if (arguments_.input != nullptr)
    work->reads.push_back({arguments_.input, in});
  if (arguments_.scale != nullptr) {
    work->reads.push_back({arguments_.scale, width_});
  }
  if (arguments_.output != nullptr) {
    work->writes.push_back({arguments_.output, out});
  }
  for (const Span& span : work->reads) work->cost.bytes_read += span.bytes;
  for (const Span& span : work->writes) work->cost.bytes_written += span.bytes;
  work->cost.bytes_sent =
      BytesSent(call.kind, std::max(in, out), board().rank(), call.root, size);
}

void Collective::Begin() {
  RankPart& mine = board().mine();
  number_ = mine.posted + 1;
  // The slot was call number_ - 2's, which all have compared.
  mine.calls[number_ % 2] = arguments_.call;
  mine.posted.store(number_, std::memory_order_release);
  agreed_ = false;
  reduction_ = arguments_.reduction;
  if (arguments_.scale != nullptr) {
    reduction_.scale =
        ScalarAt(HostView(arguments_.scale), arguments_.call.type);
  }
}

bool Collective::Agreed() {
  if (agreed_) return true;
  const Board& b = board();
  for (int r = 0; r < b.size(); ++r) {
    const RankPart& part = b.part(r);
    const int64_t posted = part.posted.load(std::memory_order_acquire);
    if (posted < number_) {
      if (part.left != 0 && part.issued < number_) {
        Disagree(RankOf(b.rank(), b.size()) + " waits in " +
                 standin::Describe(arguments_.call) + " (its call " +
                 Number(number_) + ") for " + Whereabouts(b, r));
      }
      return false;
    }
    const Call& other = part.calls[number_ % 2];
    if (!(other == arguments_.call)) {
      Disagree("call " + Number(number_) + ": rank " + Number(b.rank()) +
               " does " + standin::Describe(arguments_.call) + ", rank " +
               Number(r) + " " + standin::Describe(other));
      return false;
    }
  }
  agreed_ = true;
  first_ = last_round() + 1;
  last_round() += rounds_;
  next_write_ = next_read_ = first_;
  return true;
}

bool Collective::Advance(bool* done) {
  if (!Agreed()) return false;
  RankPart& mine = board().mine();
  bool moved = false;
  const int64_t end = first_ + rounds_;
  // A round's place is free when all have read the round before the last.
  if (next_write_ < end &&
      board().Least(&RankPart::read) >= next_write_ - kRounds) {
    Write(next_write_);
    mine.written.store(next_write_++, std::memory_order_release);
    moved = true;
  }
  if (next_read_ < end && board().Least(&RankPart::written) >= next_read_) {
    Read(next_read_);
    mine.read.store(next_read_++, std::memory_order_release);
    moved = true;
  }
  *done = next_read_ == end;
  return moved;
}

int64_t Collective::RoundBegin(int64_t round) const {
  return (round - first_) * per_round_;
}

int64_t Collective::RoundLength(int64_t round) const {
  return std::min(per_round_, arguments_.call.count - RoundBegin(round));
}

void Collective::Write(int64_t round) {
  if (arguments_.input == nullptr) return;
  const char* const input =
      static_cast<const char*>(HostView(arguments_.input));
  char* const to = board().round(board().rank(), round);
  const int64_t begin = RoundBegin(round) * width_;
  const int64_t bytes = RoundLength(round) * width_;
  const int parts = Scatters() ? board().size() : 1;
  for (int part = 0; part < parts; ++part) {
    std::memcpy(to + part * per_round_ * width_,
                input + part * arguments_.call.count * width_ + begin, bytes);
  }
}

void Collective::Read(int64_t round) {
  if (arguments_.output == nullptr) return;
  const Call& call = arguments_.call;
  const int64_t begin = RoundBegin(round) * width_;
  const int64_t length = RoundLength(round);
  char* const output = static_cast<char*>(HostView(arguments_.output)) + begin;
  // This rank's part of what the others scatter.
  const int64_t part = Scatters() ? board().rank() * per_round_ * width_ : 0;
  std::vector<const void*> sources;
  for (int r = 0; r < board().size(); ++r) {
    sources.push_back(board().round(r, round) + part);
  }
  switch (call.kind) {
    case Kind::kBroadcast:
      std::memcpy(output, sources[call.root], length * width_);
      return;
    case Kind::kAllGather:
    case Kind::kAllToAll:
      for (size_t r = 0; r < sources.size(); ++r) {
        std::memcpy(output + r * call.count * width_, sources[r],
                    length * width_);
      }
      return;
    default:
      Reduce(reduction_, call.type, sources.data(), board().size(), output,
             length);
  }
}

std::string Collective::WaitsFor() const {
  std::string text = standin::Describe(arguments_.call) + " (its call " +
                     Number(number_) + ") for ";
  for (int r = 0; r < board().size(); ++r) {
    if (board().part(r).posted < number_) {
      return text + Whereabouts(board(), r);
    }
    if (IsDead(board().part(r))) return text + Whereabouts(board(), r);
  }
  return text + "data of ranks that have begun it";
}

Messages::Messages(std::shared_ptr<Communicator> communicator, Fault fault,
                   std::vector<Message> messages)
    : Operation(std::move(communicator), fault) {
  for (Message& message : messages) {
    Way way;
    way.bytes = message.count * WidthOf(message.type);
    way.message = message;
    ways_.push_back(way);
  }
}

std::string Messages::name() const {
  if (ways_.size() > 1) return "nccl::send_receive";
  return ways_.front().message.send ? "nccl::send" : "nccl::receive";
}

void Messages::Describe(Work* work) const {
  for (const Way& way : ways_) {
    const Span span = {way.message.data, way.bytes};
    if (way.message.send) {
      work->reads.push_back(span);
      work->cost.bytes_read += span.bytes;
      if (way.message.peer != board().rank()) {
        work->cost.bytes_sent += span.bytes;
      }
    } else {
      work->writes.push_back(span);
      work->cost.bytes_written += span.bytes;
    }
  }
}

void Messages::Begin() {
  for (Way& way : ways_) {
    way.moved = 0;
    way.done = false;
  }
}

bool Messages::Advance(bool* done) {
  bool moved = false;
  *done = true;
  // Messages between the same two ranks in their order.
  std::vector<bool> busy(board().size() * 2);
  for (Way& way : ways_) {
    const size_t direction = way.message.peer * 2 + (way.message.send ? 1 : 0);
    if (!way.done && !busy[direction]) {
      moved |= way.message.send ? Send(&way) : Receive(&way);
    }
    if (way.done) continue;
    busy[direction] = true;
    *done = false;
  }
  return moved;
}

bool Messages::Send(Way* way) {
  Mailbox& box = board().mail(board().rank(), way->message.peer);
  const int64_t written = box.written;
  if (box.read.load(std::memory_order_acquire) < written) return false;
  const int64_t bytes = std::min(kMailBytes, way->bytes - way->moved);
  box.message_bytes = way->bytes;
  box.type = way->message.type;
  if (bytes > 0) {
    std::memcpy(box.data,
                static_cast<char*>(HostView(way->message.data)) + way->moved,
                bytes);
  }
  box.written.store(written + 1, std::memory_order_release);
  way->moved += bytes;
  way->done = way->moved == way->bytes;
  return true;
}

bool Messages::Receive(Way* way) {
  const int from = way->message.peer;
  Mailbox& box = board().mail(from, board().rank());
  const int64_t read = box.read;
  if (box.written.load(std::memory_order_acquire) <= read) return false;
  if (box.message_bytes != way->bytes || box.type != way->message.type) {
    Disagree("rank " + Number(board().rank()) + " receives " +
             Number(way->message.count) + " " + NameOf(way->message.type) +
             " from rank " + Number(from) + ", which sends " +
             Number(box.message_bytes / WidthOf(box.type)) + " " +
             NameOf(box.type));
    return false;
  }
  const int64_t bytes = std::min(kMailBytes, way->bytes - way->moved);
  if (bytes > 0) {
    std::memcpy(static_cast<char*>(HostView(way->message.data)) + way->moved,
                box.data, bytes);
  }
  box.read.store(read + 1, std::memory_order_release);
  way->moved += bytes;
  way->done = way->moved == way->bytes;
  return true;
}

std::string Messages::WaitsFor() const {
  for (const Way& way : ways_) {
    if (way.done) continue;
    const Message& message = way.message;
    return std::string(message.send ? "nccl::send to rank "
                                    : "nccl::receive from rank ") +
           Number(message.peer) + " of " + Number(message.count) + " " +
           NameOf(message.type);
  }
  return name();
}

}  // namespace capstan::standin
