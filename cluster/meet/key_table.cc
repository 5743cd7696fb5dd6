// SPDX-License-Identifier: Apache-2.0
#include "cluster/meet/key_table.h"

#include <algorithm>
#include <chrono>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace capstan {
namespace {

// The longest wait; those without a limit have it, too.
constexpr std::chrono::hours kForever{24 * 365};

Deadline DeadlineOf(const StoreRequest& request, Deadline now) {
  const std::chrono::milliseconds limit(request.timeout_ms);
  if (limit.count() == 0 || limit > kForever) return now + kForever;
  return now + limit;
}

std::string Quote(absl::string_view key) {
  return absl::StrCat("'", absl::Utf8SafeCEscape(key.substr(0, 200)), "'");
}

}  // namespace

void KeyTable::Handle(uint64_t client, StoreRequest request, Deadline now) {
  if (request.verb != StoreVerb::kWait && request.verb != StoreVerb::kGet) {
    respond_(client, Apply(request));
    return;
  }
  const size_t next = FirstMissing(request, 0);
  const Deadline deadline = DeadlineOf(request, now);
  Waiter waiter = {client, std::move(request), next, deadline};
  if (next == waiter.request.keys.size()) {
    RespondTo(waiter);
  } else if (!lost_.empty()) {
    RespondWithout(waiter, StoreResult::kRankLost, lost_);
  } else {
    waiters_.push_back(std::move(waiter));
  }
}

StoreResponse KeyTable::Apply(const StoreRequest& request) {
  StoreResponse response;
  response.id = request.id;
  const std::string key = request.keys.empty() ? "" : request.keys[0];
  const auto found = values_.find(key);
  const bool there = found != values_.end();
  switch (request.verb) {
    case StoreVerb::kSet:
      Put(key, request.values[0]);
      break;
    case StoreVerb::kAdd: {
      int64_t sum = 0;
      if ((there && !absl::SimpleAtoi(found->second, &sum)) ||
          __builtin_add_overflow(sum, request.number, &sum)) {
        response.result = StoreResult::kRejected;
        response.text =
            absl::StrCat("the value of ", Quote(key),
                         " is no number, or the sum is too large for one");
        break;
      }
      Put(key, absl::StrCat(sum));
      response.number = sum;
      break;
    }
    case StoreVerb::kCompareSet: {
      // As in c10d's stores: a missing key equals "", and what comes back is
      // the value that there is now, or else the expected one.
      const std::string& expected = request.values[0];
      const std::string value = there ? found->second : "";
      if (value == expected) {
        Put(key, request.values[1]);
        response.values = {request.values[1]};
      } else {
        response.values = {there ? value : expected};
      }
      break;
    }
    case StoreVerb::kDelete:
      response.number = static_cast<int64_t>(values_.erase(key));
      break;
    case StoreVerb::kCheck:
      response.number = FirstMissing(request, 0) == request.keys.size() ? 1 : 0;
      break;
    case StoreVerb::kCount:
      response.number = static_cast<int64_t>(values_.size());
      break;
    case StoreVerb::kWait:
    case StoreVerb::kGet:
      break;  // not here
  }
  return response;
}

size_t KeyTable::FirstMissing(const StoreRequest& request, size_t begin) const {
  while (begin < request.keys.size() &&
         values_.count(request.keys[begin]) != 0) {
    ++begin;
  }
  return begin;
}

void KeyTable::Put(const std::string& key, const std::string& value) {
  const bool is_new = values_.insert_or_assign(key, value).second;
  if (!is_new) return;
  waiters_.remove_if([&](Waiter& waiter) {
    const StoreRequest& request = waiter.request;
    if (request.keys[waiter.next] != key) return false;
    waiter.next = FirstMissing(request, waiter.next);
    if (waiter.next < request.keys.size()) return false;
    // Keys that were there before may have been deleted.
    waiter.next = FirstMissing(request, 0);
    if (waiter.next < request.keys.size()) return false;
    RespondTo(waiter);
    return true;
  });
}

void KeyTable::RespondTo(const Waiter& waiter) {
  StoreResponse response;
  response.id = waiter.request.id;
  if (waiter.request.verb == StoreVerb::kGet) {
    size_t bytes = 0;
    for (const std::string& key : waiter.request.keys) {
      response.values.push_back(values_.at(key));
      bytes += response.values.back().size();
    }
    if (bytes > kMaxValueBytes) {
      RespondWithout(waiter, StoreResult::kRejected,
                     absl::StrCat("the values of ", response.values.size(),
                                  " keys have ", bytes, " bytes, at most ",
                                  kMaxValueBytes, " are allowed"));
      return;
    }
  }
  respond_(waiter.client, response);
}

void KeyTable::RespondWithout(const Waiter& waiter, StoreResult result,
                              const std::string& text) {
  StoreResponse response;
  response.id = waiter.request.id;
  response.result = result;
  response.text = text;
  respond_(waiter.client, response);
}

void KeyTable::Expire(Deadline now) {
  waiters_.remove_if([&](const Waiter& waiter) {
    if (waiter.deadline > now) return false;
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
    return true;
  });
}

Deadline KeyTable::NextExpiry() const {
  Deadline next = Deadline::max();
  for (const Waiter& waiter : waiters_) next = std::min(next, waiter.deadline);
  return next;
}

void KeyTable::Forget(uint64_t client) {
  waiters_.remove_if(
      [client](const Waiter& waiter) { return waiter.client == client; });
}

void KeyTable::EndWaits(const std::string& why) {
  lost_ = why;
  for (const Waiter& waiter : std::exchange(waiters_, {})) {
    RespondWithout(waiter, StoreResult::kRankLost, why);
  }
}

}  // namespace capstan
