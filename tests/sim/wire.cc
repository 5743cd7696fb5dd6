// SPDX-License-Identifier: Apache-2.0
#include "tests/sim/wire.h"

#include <c10/util/Exception.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <list>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "testing/sim/objects.h"
#include "testing/sim/world.h"

namespace capstan::sim {
namespace {

constexpr Time kRetry = 200 * kMillisecond;
constexpr Time kMostRetry = 60 * kSecond;

struct Receive {
  int from;
  int tag;
  char* data;
  size_t bytes;
  bool done = false;
  bool aborted = false;
};

// One rank's end.
class Wire {
 public:
  Wire(int number, Host* host, int rank)
      : number_(number), host_(host), rank_(rank) {}

  static std::map<int, Wire*>& All() {
    static auto* const all = new std::map<int, Wire*>;
    return *all;
  }

  void Send(int to, int tag, std::string bytes);
  std::shared_ptr<Receive> Post(int from, int tag, char* data, size_t bytes);
  bool gone(int rank) const { return gone_.count(rank) > 0; }
  void Close();
  void Vanish() { vanished_ = true; }

  Watchers changed;
  std::vector<int> peers;       // their numbers, by rank
  std::vector<int> peer_hosts;  // by rank

 private:
  struct Message {
    int tag;  // -1: the end
    std::string bytes;
  };
  struct Way {
    std::deque<Message> messages;
    Time arrival = 0;
    bool delivering = false;
  };

  void Put(int to, Message message);
  static void Deliver(const std::shared_ptr<Way>& way, int from_number,
                      int from_rank, int from_host, int to_number, int to_host,
                      Time retry);
  void Arrive(int from, Message message);
  void Match(int from, int tag);

  const int number_;
  Host* const host_;
  const int rank_;
  bool vanished_ = false;
  bool closed_ = false;
  std::map<int, std::shared_ptr<Way>> ways_;  // by the other's rank
  std::map<std::pair<int, int>, std::deque<std::string>> arrived_;
  std::list<std::shared_ptr<Receive>> posted_;
  std::set<int> gone_;
};

void Wire::Put(int to, Message message) {
  World& world = *TheWorld();
  std::shared_ptr<Way>& way = ways_[to];
  if (way == nullptr) way = std::make_shared<Way>();
  way->messages.push_back(std::move(message));
  if (way->delivering) return;
  way->delivering = true;
  way->arrival =
      std::max(way->arrival,
               world.now() + world.random().Between(20, 500) * kMicrosecond);
  world.At(way->arrival,
           [way = way, me = number_, rank = rank_, host = host_->index,
            other = peers[to], other_host = peer_hosts[to]] {
             Deliver(way, me, rank, host, other, other_host, kRetry);
           });
}

void Wire::Deliver(const std::shared_ptr<Way>& way, int from_number,
                   int from_rank, int from_host, int to_number, int to_host,
                   Time retry) {
  World& world = *TheWorld();
  if (!world.Reachable(from_host, to_host)) {
    world.After(retry, [=] {
      Deliver(way, from_number, from_rank, from_host, to_number, to_host,
              std::min(2 * retry, kMostRetry));
    });
    return;
  }
  way->delivering = false;
  const auto messages = std::move(way->messages);
  way->messages.clear();
  const auto to = All().find(to_number);
  if (to != All().end()) {
    for (const Message& message : messages)
      to->second->Arrive(from_rank, message);
    return;
  }
  // Nobody is there: the sender's end breaks.
  const auto from = All().find(from_number);
  if (from == All().end()) return;
  const auto& peers = from->second->peers;
  const int rank = static_cast<int>(
      std::find(peers.begin(), peers.end(), to_number) - peers.begin());
  from->second->Arrive(rank, {-1, ""});
}

void Wire::Arrive(int from, Message message) {
  if (message.tag < 0) {
    gone_.insert(from);
  } else {
    arrived_[{from, message.tag}].push_back(std::move(message.bytes));
    Match(from, message.tag);
  }
  changed.WakeAll();
}

void Wire::Match(int from, int tag) {
  std::deque<std::string>& queue = arrived_[{from, tag}];
  for (auto it = posted_.begin(); it != posted_.end() && !queue.empty();) {
    Receive& receive = **it;
    if (receive.from != from || receive.tag != tag) {
      ++it;
      continue;
    }
    memcpy(receive.data, queue.front().data(),
           std::min(receive.bytes, queue.front().size()));
    queue.pop_front();
    receive.done = true;
    it = posted_.erase(it);
  }
}

void Wire::Send(int to, int tag, std::string bytes) {
  Put(to, {tag, std::move(bytes)});
}

std::shared_ptr<Receive> Wire::Post(int from, int tag, char* data,
                                    size_t bytes) {
  auto receive =
      std::make_shared<Receive>(Receive{from, tag, data, bytes, false, false});
  posted_.push_back(receive);
  Match(from, tag);
  return receive;
}

void Wire::Close() {
  if (closed_) return;
  closed_ = true;
  posted_.clear();
  All().erase(number_);
  if (vanished_ || TheWorld()->ending()) return;
  for (size_t rank = 0; rank < peers.size(); ++rank) {
    if (static_cast<int>(rank) != rank_) Put(static_cast<int>(rank), {-1, ""});
  }
}

// By which it ends with its process.
class WireFile final : public OpenFile {
 public:
  explicit WireFile(std::shared_ptr<Wire> wire) : wire_(std::move(wire)) {}
  ~WireFile() override { wire_->Close(); }
  void Vanish() override { wire_->Vanish(); }

 private:
  const std::shared_ptr<Wire> wire_;
};

class WireWork final : public c10d::Work {
 public:
  WireWork(std::shared_ptr<Wire> wire, int other,
           std::shared_ptr<Receive> receive)
      : wire_(std::move(wire)), other_(other), receive_(std::move(receive)) {}

  bool wait(std::chrono::milliseconds timeout) override {
    World& world = *TheWorld();
    const Time limit = timeout.count() <= 0 || timeout.count() > 1e9
                           ? kNever
                           : world.now() + timeout.count() * kMillisecond;
    while (true) {
      world.BeginWait();
      if (receive_ == nullptr || receive_->done) return true;
      if (receive_->aborted) {
        receive_->aborted = false;
        return false;
      }
      if (wire_->gone(other_)) {
        C10_THROW_ERROR(DistNetworkError, "Connection closed by peer [10.0.0." +
                                              std::to_string(other_ + 1) + "]");
      }
      if (world.now() >= limit) {
        C10_THROW_ERROR(DistNetworkError, "Timed out waiting for recv");
      }
      wire_->changed.Add(Self());
      world.Block(limit);
    }
  }

  void abort() override {
    if (receive_ != nullptr) receive_->aborted = true;
    wire_->changed.WakeAll();
  }

 private:
  const std::shared_ptr<Wire> wire_;
  const int other_;
  const std::shared_ptr<Receive> receive_;  // null: a message was sent
};

class WireBackend final : public c10d::Backend {
 public:
  WireBackend(std::shared_ptr<Wire> wire, int fd, int rank, int size)
      : c10d::Backend(rank, size), wire_(std::move(wire)), fd_(fd) {}
  ~WireBackend() override {
    wire_->Close();
    close(fd_);
  }

  const std::string getBackendName() const override { return "wire"; }

  c10::intrusive_ptr<c10d::Work> send(std::vector<at::Tensor>& tensors, int to,
                                      int tag) override {
    if (wire_->gone(to)) {
      C10_THROW_ERROR(DistNetworkError, "Connection closed by peer");
    }
    const at::Tensor& tensor = tensors[0];
    wire_->Send(to, tag,
                std::string(static_cast<const char*>(tensor.data_ptr()),
                            tensor.nbytes()));
    return c10::make_intrusive<WireWork>(wire_, to, nullptr);
  }
  c10::intrusive_ptr<c10d::Work> recv(std::vector<at::Tensor>& tensors,
                                      int from, int tag) override {
    const at::Tensor& tensor = tensors[0];
    return c10::make_intrusive<WireWork>(
        wire_, from,
        wire_->Post(from, tag, static_cast<char*>(tensor.data_ptr()),
                    tensor.nbytes()));
  }

 private:
  const std::shared_ptr<Wire> wire_;
  const int fd_;
};

}  // namespace

BackendGroup::Connect WireConnect(const Meeting& meeting) {
  return [store = meeting.store](
             const std::string& prefix, int rank,
             int size) -> c10::intrusive_ptr<c10d::Backend> {
    static int last = 0;
    const int number = ++last;
    Host* const host = Mine()->host;
    auto wire = std::make_shared<Wire>(number, host, rank);
    const int fd = NewDescriptor(std::make_shared<WireFile>(wire));
    Wire::All()[number] = wire.get();
    const auto key = [&](int of) {
      return prefix + "/wire/" + std::to_string(of);
    };
    const std::string mine =
        std::to_string(number) + " " + std::to_string(host->index);
    store->set(key(rank), std::vector<uint8_t>(mine.begin(), mine.end()));
    std::vector<std::string> keys;
    for (int i = 0; i < size; ++i) keys.push_back(key(i));
    for (const std::vector<uint8_t>& bytes : store->multiGet(keys)) {
      const std::string text(bytes.begin(), bytes.end());
      wire->peers.push_back(atoi(text.c_str()));
      wire->peer_hosts.push_back(atoi(text.c_str() + text.find(' ') + 1));
    }
    // As Gloo's connections, it is there once all know of each other.
    const std::string ready = prefix + "/ready/";
    store->set(ready + std::to_string(rank), std::vector<uint8_t>{1});
    for (std::string& one : keys) one = ready + one.substr(one.rfind('/') + 1);
    store->wait(keys);
    return c10::make_intrusive<WireBackend>(std::move(wire), fd, rank, size);
  };
}

}  // namespace capstan::sim
