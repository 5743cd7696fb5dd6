// SPDX-License-Identifier: Apache-2.0
#include "cluster/meet/key_table.h"

#include <algorithm>
#include <chrono>
#include <iterator>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace capstan {
namespace {

// A wait's longest time; those without a limit have it, too.
constexpr std::chrono::hours kForever{24 * 365};

Deadline DeadlineOf(const StoreRequest& request, Deadline now) {
  const std::chrono::milliseconds limit(request.timeout_ms);
  if (limit.count() == 0 || limit > kForever) return now + kForever;
  return now + limit;
}

std::string Quote(absl::string_view key) {
  return absl::StrCat("'", absl::Utf8SafeCEscape(key.substr(0, 200)), "'");
}

// How many keys and values a request of `verb` has; -1: any number of keys, and
// as many values for kSet.
struct Arity {
  int keys;
  int values;
};

Arity ArityOf(StoreVerb verb) {
  switch (verb) {
    case StoreVerb::kSet:
      return {-1, -1};
    case StoreVerb::kAppend:
      return {1, 1};
    case StoreVerb::kCompareSet:
      return {1, 2};
    case StoreVerb::kAdd:
    case StoreVerb::kDelete:
      return {1, 0};
    case StoreVerb::kCount:
      return {0, 0};
    case StoreVerb::kCheck:
    case StoreVerb::kWait:
    case StoreVerb::kGet:
      return {-1, 0};
  }
  return {0, 0};
}

bool HasArity(const StoreRequest& request) {
  const Arity arity = ArityOf(request.verb);
  const auto keys = static_cast<int>(request.keys.size());
  const auto values = static_cast<int>(request.values.size());
  return (arity.keys < 0 || keys == arity.keys) &&
         values == (arity.values < 0 ? keys : arity.values);
}

}  // namespace

std::string KeyTable::Problem(const StoreRequest& request) const {
  if (!HasArity(request)) return "keys and values don't match";
  size_t bytes = 0;
  for (const std::string& key : request.keys) {
    bytes += key.size();
    if (key.size() <= kMaxKeyBytes) continue;
    return absl::StrCat("the key ", Quote(key), ".. is longer than ",
                        kMaxKeyBytes, " bytes");
  }
  for (const std::string& value : request.values) {
    bytes += value.size();
    if (value.size() <= kMaxValueBytes) continue;
    return absl::StrCat("the value of ", Quote(request.keys[0]),
                        " is longer than ", kMaxValueBytes, " bytes");
  }
  switch (request.verb) {
    case StoreVerb::kSet:
    case StoreVerb::kAppend:
    case StoreVerb::kAdd:
    case StoreVerb::kCompareSet:
      break;
    default:
      return "";
  }
  if (values_.size() + request.keys.size() > kMaxKeys) {
    return absl::StrCat("there are ", kMaxKeys, " keys already");
  }
  if (bytes_ + bytes > kMaxBytes) {
    return absl::StrCat("keys and values take ", kMaxBytes, " bytes already");
  }
  if (request.verb == StoreVerb::kAppend) {
    const auto old = values_.find(request.keys[0]);
    if (old != values_.end() &&
        old->second.size() + request.values[0].size() > kMaxValueBytes) {
      return absl::StrCat("the value of ", Quote(request.keys[0]),
                          " would be longer than ", kMaxValueBytes, " bytes");
    }
  }
  return "";
}

void KeyTable::Handle(uint64_t client, StoreRequest request, Deadline now) {
  StoreResponse response;
  response.id = request.id;
  response.text = Problem(request);
  if (!response.text.empty()) {
    response.result = StoreResult::kRejected;
  } else if (request.verb == StoreVerb::kWait ||
             request.verb == StoreVerb::kGet) {
    Await(client, std::move(request), now);
    return;
  } else {
    Apply(&request, &response);
  }
  ready_.push_back({client, std::move(response)});
}

void KeyTable::Apply(StoreRequest* request, StoreResponse* response) {
  std::vector<std::string>& keys = request->keys;
  std::vector<std::string>& values = request->values;
  switch (request->verb) {
    case StoreVerb::kSet:
      for (size_t i = 0; i < keys.size(); ++i) {
        Put(keys[i], std::move(values[i]));
      }
      return;
    case StoreVerb::kAppend: {
      const auto old = values_.find(keys[0]);
      Put(keys[0], old == values_.end() ? std::move(values[0])
                                        : old->second + values[0]);
      return;
    }
    case StoreVerb::kAdd: {
      const auto old = values_.find(keys[0]);
      int64_t sum = 0;
      if ((old != values_.end() && !absl::SimpleAtoi(old->second, &sum)) ||
          __builtin_add_overflow(sum, request->number, &sum)) {
        response->result = StoreResult::kRejected;
        response->text =
            absl::StrCat("the value of ", Quote(keys[0]),
                         " is no number, or the sum is too large for one");
        return;
      }
      Put(keys[0], absl::StrCat(sum));
      response->number = sum;
      return;
    }
    case StoreVerb::kCompareSet: {
      // As in c10d's stores: a missing key equals "", and what comes back is
      // the value that there is now, or else the expected one.
      const auto old = values_.find(keys[0]);
      const std::string found = old == values_.end() ? "" : old->second;
      if (found == values[0]) {
        Put(keys[0], values[1]);
        response->values = {std::move(values[1])};
      } else {
        response->values = {old == values_.end() ? std::move(values[0])
                                                 : found};
      }
      return;
    }
    case StoreVerb::kDelete: {
      const auto old = values_.find(keys[0]);
      if (old == values_.end()) return;
      bytes_ -= old->first.size() + old->second.size();
      values_.erase(old);
      response->number = 1;
      return;
    }
    case StoreVerb::kCheck: {
      size_t next = 0;
      response->number = HasAll(keys, &next) ? 1 : 0;
      return;
    }
    case StoreVerb::kCount:
      response->number = static_cast<int64_t>(values_.size());
      return;
    case StoreVerb::kWait:
    case StoreVerb::kGet:
      return;  // not here
  }
}

bool KeyTable::HasAll(const std::vector<std::string>& keys,
                      size_t* next) const {
  while (*next < keys.size() && values_.count(keys[*next]) != 0) ++*next;
  return *next == keys.size();
}

void KeyTable::Await(uint64_t client, StoreRequest request, Deadline now) {
  Waiter waiter = {client, std::move(request), 0, now};
  if (HasAll(waiter.request.keys, &waiter.next)) {
    Respond(waiter);
    return;
  }
  if (!lost_.empty()) {
    RespondWithout(waiter, StoreResult::kRankLost, lost_);
    return;
  }
  waiter.deadline = DeadlineOf(waiter.request, now);
  const uint64_t id = ++last_waiter_;
  waiting_for_[waiter.request.keys[waiter.next]].insert(id);
  deadlines_.insert({waiter.deadline, id});
  waiters_.emplace(id, std::move(waiter));
}

void KeyTable::Respond(const Waiter& waiter) {
  StoreResponse response;
  response.id = waiter.request.id;
  if (waiter.request.verb == StoreVerb::kGet) {
    size_t bytes = 0;
    for (const std::string& key : waiter.request.keys) {
      if (bytes > kResponseBytes) break;
      response.values.push_back(values_.at(key));
      bytes += response.values.back().size();
    }
  }
  ready_.push_back({waiter.client, std::move(response)});
}

void KeyTable::RespondWithout(const Waiter& waiter, StoreResult result,
                              const std::string& text) {
  StoreResponse response;
  response.id = waiter.request.id;
  response.result = result;
  response.text = text;
  ready_.push_back({waiter.client, std::move(response)});
}

void KeyTable::Put(const std::string& key, std::string value) {
  const auto [place, is_new] = values_.try_emplace(key);
  bytes_ += value.size() + (is_new ? key.size() : 0);
  bytes_ -= place->second.size();
  place->second = std::move(value);
  if (!is_new) return;

  const auto found = waiting_for_.find(key);
  if (found == waiting_for_.end()) return;
  const std::set<uint64_t> ids = std::move(found->second);
  waiting_for_.erase(found);
  for (const uint64_t id : ids) {
    Waiter& waiter = waiters_.at(id);
    const std::vector<std::string>& keys = waiter.request.keys;
    // What it has seen may have been deleted: look from the start before
    // responding.
    size_t from_start = 0;
    if (HasAll(keys, &waiter.next) && HasAll(keys, &from_start)) {
      Respond(waiter);
      deadlines_.erase({waiter.deadline, id});
      waiters_.erase(id);
      continue;
    }
    if (waiter.next == keys.size()) waiter.next = from_start;
    waiting_for_[keys[waiter.next]].insert(id);
  }
}

void KeyTable::Remove(uint64_t id) {
  const auto found = waiters_.find(id);
  const Waiter& waiter = found->second;
  const auto others = waiting_for_.find(waiter.request.keys[waiter.next]);
  others->second.erase(id);
  if (others->second.empty()) waiting_for_.erase(others);
  deadlines_.erase({waiter.deadline, id});
  waiters_.erase(found);
}

void KeyTable::Expire(Deadline now) {
  while (!deadlines_.empty() && deadlines_.begin()->first <= now) {
    const uint64_t id = deadlines_.begin()->second;
    const Waiter& waiter = waiters_.at(id);
    const std::vector<std::string>& keys = waiter.request.keys;
    const auto missing = std::count_if(
        keys.begin(), keys.end(),
        [this](const std::string& key) { return values_.count(key) == 0; });
    RespondWithout(
        waiter, StoreResult::kTimedOut,
        absl::StrCat(
            "timed out after ", waiter.request.timeout_ms / 1000.0,
            " s: nobody has set ", Quote(keys[waiter.next]),
            missing > 1 ? absl::StrCat(" and ", missing - 1, " more") : ""));
    Remove(id);
  }
}

Deadline KeyTable::NextExpiry() const {
  return deadlines_.empty() ? Deadline::max() : deadlines_.begin()->first;
}

void KeyTable::Forget(uint64_t client) {
  std::vector<uint64_t> ids;
  for (const auto& [id, waiter] : waiters_) {
    if (waiter.client == client) ids.push_back(id);
  }
  for (const uint64_t id : ids) Remove(id);
}

void KeyTable::EndWaits(const std::string& why) {
  lost_ = why;
  while (!waiters_.empty()) {
    const auto first = waiters_.begin();
    RespondWithout(first->second, StoreResult::kRankLost, why);
    Remove(first->first);
  }
}

}  // namespace capstan
