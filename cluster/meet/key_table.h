// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_CLUSTER_MEET_KEY_TABLE_H_
#define CAPSTAN_CLUSTER_MEET_KEY_TABLE_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <string>
#include <unordered_map>
#include <utility>

#include "cluster/launch/network.h"
#include "cluster/meet/protocol.h"

namespace capstan {

// The keys and values that the ranks of a run share, and the clients that wait
// for them. Not thread-safe; knows no sockets.
class KeyTable {
 public:
  // Takes the one response to each request, now or later. Doesn't call back
  // into the table.
  using Respond =
      std::function<void(uint64_t client, const StoreResponse& response)>;

  explicit KeyTable(Respond respond) : respond_(std::move(respond)) {}

  void Handle(uint64_t client, StoreRequest request, Deadline now);

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
    size_t next;           // of its keys: one that is missing
    Deadline deadline;
  };

  // Applies a request that needn't wait.
  StoreResponse Apply(const StoreRequest& request);
  void Put(const std::string& key, const std::string& value);
  // Returns the index of the first key from `begin` on that is missing.
  size_t FirstMissing(const StoreRequest& request, size_t begin) const;
  void RespondTo(const Waiter& waiter);
  void RespondWithout(const Waiter& waiter, StoreResult result,
                      const std::string& text);

  const Respond respond_;
  std::unordered_map<std::string, std::string> values_;
  std::list<Waiter> waiters_;
  std::string lost_;
};

}  // namespace capstan

#endif  // CAPSTAN_CLUSTER_MEET_KEY_TABLE_H_
