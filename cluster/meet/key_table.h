// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_CLUSTER_MEET_KEY_TABLE_H_
#define CAPSTAN_CLUSTER_MEET_KEY_TABLE_H_

#include <cstddef>
#include <cstdint>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "cluster/meet/network.h"
#include "cluster/meet/protocol.h"

namespace capstan {

// The keys and values that the ranks of a run share, and the clients that wait
// for them. Not thread-safe; knows no sockets.
class KeyTable {
 public:
  // Far above what any process group stores.
  static constexpr size_t kMaxKeys = 1 << 20;
  static constexpr size_t kMaxBytes = size_t{1} << 30;
  // A response of several values ends with the first that exceeds this.
  static constexpr size_t kResponseBytes = 1 << 20;

  struct Ready {
    uint64_t client;
    StoreResponse response;
  };

  // Applies a request. Its one response appears in TakeReady, now or later.
  void Handle(uint64_t client, StoreRequest request, Deadline now);
  // The responses that have become ready, in order.
  std::vector<Ready> TakeReady() { return std::exchange(ready_, {}); }

  // Ends the waits whose time is up.
  void Expire(Deadline now);
  // The earliest deadline of a wait; Deadline::max() if there is none.
  Deadline NextExpiry() const;

  // Drops the waits of `client`.
  void Forget(uint64_t client);
  // Ends all current and later waits because a rank has left, as `why` says:
  // their keys may never come.
  void EndWaits(const std::string& why);

 private:
  struct Waiter {
    uint64_t client;
    StoreRequest request;  // kWait or kGet
    size_t next = 0;       // of its keys: the first that was missing
    Deadline deadline;
  };

  // Returns what is wrong with the request, or "".
  std::string Problem(const StoreRequest& request) const;
  void Apply(StoreRequest* request, StoreResponse* response);
  void Await(uint64_t client, StoreRequest request, Deadline now);
  // Whether all keys exist; otherwise sets *next to the first missing one's
  // index.
  bool HasAll(const std::vector<std::string>& keys, size_t* next) const;
  void Respond(const Waiter& waiter);
  void RespondWithout(const Waiter& waiter, StoreResult result,
                      const std::string& text);
  void Put(const std::string& key, std::string value);
  void Remove(uint64_t id);

  std::unordered_map<std::string, std::string> values_;
  size_t bytes_ = 0;  // of keys and values
  std::vector<Ready> ready_;

  std::unordered_map<uint64_t, Waiter> waiters_;
  uint64_t last_waiter_ = 0;
  // By the key that they wait for next.
  std::unordered_map<std::string, std::set<uint64_t>> waiting_for_;
  std::set<std::pair<Deadline, uint64_t>> deadlines_;
  std::string lost_;
};

}  // namespace capstan

#endif  // CAPSTAN_CLUSTER_MEET_KEY_TABLE_H_
