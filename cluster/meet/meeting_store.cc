// SPDX-License-Identifier: Apache-2.0
#include "cluster/meet/meeting_store.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <cstddef>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "cluster/launch/network.h"
#include "cluster/meet/protocol.h"

namespace capstan {
namespace {

using std::chrono::milliseconds;

// How long rank 0 may take to respond at least, and beyond a wait's own limit
// at most.
constexpr milliseconds kAnswer{10000};
constexpr milliseconds kSlack{30000};
constexpr milliseconds kForever = std::chrono::hours(24 * 365);

std::string ToString(const std::vector<uint8_t>& bytes) {
  return std::string(bytes.begin(), bytes.end());
}

std::vector<uint8_t> ToBytes(const std::string& text) {
  return std::vector<uint8_t>(text.begin(), text.end());
}

}  // namespace

StoreResponse MeetingStore::Send(StoreRequest request, milliseconds limit) {
  size_t bytes = 0;
  for (const auto* list : {&request.keys, &request.values}) {
    for (const std::string& text : *list) bytes += text.size();
  }
  // Rank 0 would take a longer frame for garbage.
  if (bytes > kMaxValueBytes) {
    C10_THROW_ERROR(
        DistStoreError,
        absl::StrCat("a value for the other ranks has ", bytes,
                     " bytes, at most ", kMaxValueBytes, " are allowed"));
  }
  absl::StatusOr<StoreResponse> response = client_->Call(
      std::move(request), MeetingClock::now() + std::min(limit, kForever));
  if (!response.ok()) {
    C10_THROW_ERROR(DistNetworkError,
                    absl::StrCat("lost rank 0: ", response.status().message()));
  }
  if (response->result == StoreResult::kRankLost) {
    C10_THROW_ERROR(DistNetworkError, response->text);
  }
  if (response->result != StoreResult::kOk) {
    C10_THROW_ERROR(DistStoreError, response->text);
  }
  return *std::move(response);
}

StoreResponse MeetingStore::Call(StoreVerb verb, std::vector<std::string> keys,
                                 std::vector<std::string> values,
                                 int64_t number) {
  StoreRequest request;
  request.verb = verb;
  request.number = number;
  request.keys = std::move(keys);
  request.values = std::move(values);
  return Send(std::move(request), std::max<milliseconds>(timeout_, kAnswer));
}

StoreResponse MeetingStore::Await(StoreVerb verb, std::vector<std::string> keys,
                                  milliseconds timeout) {
  StoreRequest request;
  request.verb = verb;
  request.timeout_ms = std::max<int64_t>(0, timeout.count());
  request.keys = std::move(keys);
  const bool for_ever = request.timeout_ms == 0;
  const milliseconds slack = std::clamp(timeout_, kAnswer, kSlack);
  return Send(std::move(request), for_ever ? kForever : timeout + slack);
}

c10::intrusive_ptr<c10d::Store> MeetingStore::clone() {
  return c10::make_intrusive<MeetingStore>(server_, client_, timeout_);
}

void MeetingStore::set(const std::string& key,
                       const std::vector<uint8_t>& value) {
  Call(StoreVerb::kSet, {key}, {ToString(value)});
}

std::vector<uint8_t> MeetingStore::compareSet(
    const std::string& key, const std::vector<uint8_t>& currentValue,
    const std::vector<uint8_t>& newValue) {
  const StoreResponse response =
      Call(StoreVerb::kCompareSet, {key},
           {ToString(currentValue), ToString(newValue)});
  TORCH_CHECK(response.values.size() == 1, "compareSet without a value");
  return ToBytes(response.values[0]);
}

std::vector<uint8_t> MeetingStore::get(const std::string& key) {
  return std::move(multiGet({key})[0]);
}

int64_t MeetingStore::add(const std::string& key, int64_t value) {
  return Call(StoreVerb::kAdd, {key}, {}, value).number;
}

bool MeetingStore::deleteKey(const std::string& key) {
  return Call(StoreVerb::kDelete, {key}).number != 0;
}

bool MeetingStore::check(const std::vector<std::string>& keys) {
  return Call(StoreVerb::kCheck, keys).number != 0;
}

int64_t MeetingStore::getNumKeys() {
  return Call(StoreVerb::kCount, {}).number;
}

void MeetingStore::wait(const std::vector<std::string>& keys) {
  wait(keys, timeout_);
}

void MeetingStore::wait(const std::vector<std::string>& keys,
                        const milliseconds& timeout) {
  Await(StoreVerb::kWait, keys, timeout);
}

std::vector<std::vector<uint8_t>> MeetingStore::multiGet(
    const std::vector<std::string>& keys) {
  const StoreResponse response = Await(StoreVerb::kGet, keys, timeout_);
  TORCH_CHECK(response.values.size() == keys.size(), "a response of ",
              response.values.size(), " values to ", keys.size(), " keys");
  std::vector<std::vector<uint8_t>> values;
  for (const std::string& value : response.values) {
    values.push_back(ToBytes(value));
  }
  return values;
}

}  // namespace capstan
