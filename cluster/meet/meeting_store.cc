// SPDX-License-Identifier: Apache-2.0
#include "cluster/meet/meeting_store.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <cstddef>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "cluster/meet/network.h"
#include "cluster/meet/protocol.h"

namespace capstan {
namespace {

// Beyond a request's own limit, how long rank 0 may take to respond.
constexpr std::chrono::seconds kSlack{30};
constexpr std::chrono::hours kForever{24 * 365};
// A request has at most so many bytes of keys, unless it has only one key.
constexpr size_t kRequestBytes = 1 << 20;

std::string ToString(const std::vector<uint8_t>& bytes) {
  return std::string(bytes.begin(), bytes.end());
}

std::vector<uint8_t> ToBytes(const std::string& text) {
  return std::vector<uint8_t>(text.begin(), text.end());
}

// The end of a range of `keys` from `begin` on that fits into one request.
size_t EndOfRequest(const std::vector<std::string>& keys, size_t begin) {
  size_t bytes = 0;
  size_t end = begin;
  while (end < keys.size() && (end == begin || bytes < kRequestBytes)) {
    bytes += keys[end].size() + sizeof(uint32_t);
    ++end;
  }
  return end;
}

StoreRequest RequestOf(StoreVerb verb, std::vector<std::string> keys,
                       std::vector<std::string> values = {}) {
  StoreRequest request;
  request.verb = verb;
  request.keys = std::move(keys);
  request.values = std::move(values);
  return request;
}

std::vector<std::string> Range(const std::vector<std::string>& keys,
                               size_t begin, size_t end) {
  return std::vector<std::string>(keys.begin() + begin, keys.begin() + end);
}

}  // namespace

StoreResponse MeetingStore::Call(StoreRequest request) {
  size_t bytes = 0;
  for (const auto* list : {&request.keys, &request.values}) {
    for (const std::string& text : *list) bytes += text.size();
  }
  // Rank 0 would take a longer frame for garbage.
  if (bytes > kMaxValueBytes + kRequestBytes) {
    C10_THROW_ERROR(
        DistStoreError,
        absl::StrCat("a value for the other ranks has ", bytes,
                     " bytes, at most ", kMaxValueBytes, " are allowed"));
  }
  const bool waits =
      request.verb == StoreVerb::kWait || request.verb == StoreVerb::kGet;
  const bool for_ever = waits && request.timeout_ms == 0;
  const std::chrono::milliseconds limit =
      for_ever ? std::chrono::milliseconds(kForever)
      : waits  ? std::chrono::milliseconds(request.timeout_ms)
               : std::max<std::chrono::milliseconds>(timeout_,
                                                    std::chrono::seconds(1));
  absl::StatusOr<StoreResponse> response = client_->Call(
      std::move(request),
      MeetingClock::now() +
          std::min<std::chrono::milliseconds>(limit, kForever) + kSlack);
  if (!response.ok()) {
    C10_THROW_ERROR(DistNetworkError,
                    absl::StrCat("lost rank 0: ", response.status().message()));
  }
  switch (response->result) {
    case StoreResult::kOk:
      break;
    case StoreResult::kTimedOut:
    case StoreResult::kRejected:
      C10_THROW_ERROR(DistStoreError, response->text);
    case StoreResult::kRankLost:
      C10_THROW_ERROR(DistNetworkError, response->text);
  }
  return *std::move(response);
}

c10::intrusive_ptr<c10d::Store> MeetingStore::clone() {
  return c10::make_intrusive<MeetingStore>(server_, client_, timeout_);
}

void MeetingStore::set(const std::string& key,
                       const std::vector<uint8_t>& value) {
  Call(RequestOf(StoreVerb::kSet, {key}, {ToString(value)}));
}

std::vector<uint8_t> MeetingStore::compareSet(
    const std::string& key, const std::vector<uint8_t>& currentValue,
    const std::vector<uint8_t>& newValue) {
  const StoreResponse response =
      Call(RequestOf(StoreVerb::kCompareSet, {key},
                     {ToString(currentValue), ToString(newValue)}));
  TORCH_CHECK(response.values.size() == 1, "compareSet without a value");
  return ToBytes(response.values[0]);
}

std::vector<uint8_t> MeetingStore::get(const std::string& key) {
  return std::move(multiGet({key})[0]);
}

int64_t MeetingStore::add(const std::string& key, int64_t value) {
  StoreRequest request = RequestOf(StoreVerb::kAdd, {key});
  request.number = value;
  return Call(std::move(request)).number;
}

bool MeetingStore::deleteKey(const std::string& key) {
  return Call(RequestOf(StoreVerb::kDelete, {key})).number != 0;
}

bool MeetingStore::check(const std::vector<std::string>& keys) {
  for (size_t begin = 0; begin < keys.size();) {
    const size_t end = EndOfRequest(keys, begin);
    if (Call(RequestOf(StoreVerb::kCheck, Range(keys, begin, end))).number ==
        0) {
      return false;
    }
    begin = end;
  }
  return true;
}

int64_t MeetingStore::getNumKeys() {
  return Call(RequestOf(StoreVerb::kCount, {})).number;
}

void MeetingStore::wait(const std::vector<std::string>& keys) {
  wait(keys, timeout_);
}

void MeetingStore::wait(const std::vector<std::string>& keys,
                        const std::chrono::milliseconds& timeout) {
  for (size_t begin = 0; begin < keys.size();) {
    const size_t end = EndOfRequest(keys, begin);
    StoreRequest request = RequestOf(StoreVerb::kWait, Range(keys, begin, end));
    request.timeout_ms = std::max<int64_t>(0, timeout.count());
    Call(std::move(request));
    begin = end;
  }
}

void MeetingStore::append(const std::string& key,
                          const std::vector<uint8_t>& value) {
  Call(RequestOf(StoreVerb::kAppend, {key}, {ToString(value)}));
}

std::vector<std::vector<uint8_t>> MeetingStore::multiGet(
    const std::vector<std::string>& keys) {
  std::vector<std::vector<uint8_t>> values;
  while (values.size() < keys.size()) {
    const size_t begin = values.size();
    const size_t end = EndOfRequest(keys, begin);
    StoreRequest request = RequestOf(StoreVerb::kGet, Range(keys, begin, end));
    request.timeout_ms = std::max<int64_t>(0, timeout_.count());
    const StoreResponse response = Call(std::move(request));
    const size_t got = response.values.size();
    TORCH_CHECK(got >= 1 && got <= end - begin, "a response of ", got,
                " values to ", end - begin, " keys");
    for (const std::string& value : response.values) {
      values.push_back(ToBytes(value));
    }
  }
  return values;
}

void MeetingStore::multiSet(const std::vector<std::string>& keys,
                            const std::vector<std::vector<uint8_t>>& values) {
  TORCH_CHECK(keys.size() == values.size(), "multiSet of ", keys.size(),
              " keys to ", values.size(), " values");
  for (size_t begin = 0; begin < keys.size();) {
    size_t bytes = 0;
    StoreRequest request = RequestOf(StoreVerb::kSet, {});
    size_t end = begin;
    while (end < keys.size() && (end == begin || bytes < kRequestBytes)) {
      bytes += keys[end].size() + values[end].size();
      // The last must not make the request too long.
      if (end > begin && bytes > kMaxValueBytes) break;
      request.keys.push_back(keys[end]);
      request.values.push_back(ToString(values[end]));
      ++end;
    }
    Call(std::move(request));
    begin = end;
  }
}

}  // namespace capstan
