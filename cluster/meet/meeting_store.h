// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_CLUSTER_MEET_MEETING_STORE_H_
#define CAPSTAN_CLUSTER_MEET_MEETING_STORE_H_

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <utility>
#include <vector>

#include "cluster/meet/client.h"
#include "cluster/meet/server.h"

namespace capstan {

// A c10d store over the meeting's connections; rank 0's thread serves it as
// long as rank 0 holds the store or a clone. Throws c10::DistStoreError, which
// names a missing key, on a timeout or if keys and values exceed
// kMaxValueBytes, and c10::DistNetworkError if rank 0 has left, or any rank
// while a key is awaited. Thread-safe: a wait doesn't block other calls.
class MeetingStore final : public c10d::Store {
 public:
  // `server` is null except on rank 0.
  MeetingStore(std::shared_ptr<MeetingServer> server,
               std::shared_ptr<MeetingClient> client,
               std::chrono::milliseconds timeout)
      : c10d::Store(timeout),
        server_(std::move(server)),
        client_(std::move(client)) {}

  MeetingClient& client() { return *client_; }

  // Shares the connection.
  c10::intrusive_ptr<c10d::Store> clone() override;

  using c10d::Store::compareSet;
  using c10d::Store::set;
  void set(const std::string& key, const std::vector<uint8_t>& value) override;
  std::vector<uint8_t> compareSet(
      const std::string& key, const std::vector<uint8_t>& currentValue,
      const std::vector<uint8_t>& newValue) override;
  // Waits for the key.
  std::vector<uint8_t> get(const std::string& key) override;
  int64_t add(const std::string& key, int64_t value) override;
  bool deleteKey(const std::string& key) override;
  bool check(const std::vector<std::string>& keys) override;
  int64_t getNumKeys() override;
  void wait(const std::vector<std::string>& keys) override;
  void wait(const std::vector<std::string>& keys,
            const std::chrono::milliseconds& timeout) override;
  // Waits for the keys. One request, where c10d's own makes one for each key.
  std::vector<std::vector<uint8_t>> multiGet(
      const std::vector<std::string>& keys) override;

 private:
  // Sends a request; throws unless the response is kOk.
  StoreResponse Call(StoreVerb verb, std::vector<std::string> keys,
                     std::vector<std::string> values = {}, int64_t number = 0);
  // The same for kWait and kGet.
  StoreResponse Await(StoreVerb verb, std::vector<std::string> keys,
                      std::chrono::milliseconds timeout);
  StoreResponse Send(StoreRequest request, std::chrono::milliseconds limit);

  // Destroyed after the client.
  const std::shared_ptr<MeetingServer> server_;
  const std::shared_ptr<MeetingClient> client_;
};

}  // namespace capstan

#endif  // CAPSTAN_CLUSTER_MEET_MEETING_STORE_H_
