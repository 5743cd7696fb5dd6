// SPDX-License-Identifier: Apache-2.0
#include "cluster/meet/client.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/types/optional.h"
#include "base/status.h"

namespace capstan {
namespace {

// How long rank 0 may take to report a timeout.
constexpr std::chrono::seconds kSlack{5};
// Between calls of AwaitAll's `waiting`.
constexpr std::chrono::milliseconds kPause{500};

absl::Status StatusOf(const Refusal& refusal) {
  switch (refusal.reason) {
    case RefusalReason::kOtherRun:
    case RefusalReason::kOtherToken:
    case RefusalReason::kOtherVersion:
      return absl::NotFoundError(refusal.text);
    case RefusalReason::kRankTaken:
      return absl::AlreadyExistsError(refusal.text);
    case RefusalReason::kWorldSize:
      return absl::FailedPreconditionError(refusal.text);
    case RefusalReason::kTimedOut:
      return absl::DeadlineExceededError(refusal.text);
    case RefusalReason::kHostsGone:
      return absl::OutOfRangeError(refusal.text);
    case RefusalReason::kRankLost:
      break;
  }
  return absl::AbortedError(refusal.text);
}

absl::Status RefusalIn(absl::string_view payload) {
  const absl::StatusOr<Refusal> refusal = ParseRefusal(payload);
  return refusal.ok() ? StatusOf(*refusal) : refusal.status();
}

// Converts an error from before the other end's proof to UNAVAILABLE or
// NOT_FOUND, since an unproven peer can't end this run.
absl::Status NotProved(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kUnavailable:
      return status;
    case absl::StatusCode::kDeadlineExceeded:
      return absl::UnavailableError(status.message());
    case absl::StatusCode::kInvalidArgument:
      return absl::NotFoundError("what answers there isn't Capstan");
    default:
      return absl::NotFoundError(status.message());
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<MeetingClient>> MeetingClient::Join(
    SocketFd connection, Hello hello, const std::string& token,
    Deadline proof_by, Deadline deadline) {
  auto client = absl::WrapUnique(new MeetingClient(std::move(connection)));
  CAPSTAN_ASSIGN_OR_RETURN(
      Proof proof, client->ProveRank0(std::move(hello), token, proof_by));
  // The peer is rank 0 from here on, which treats a rank that stops waiting as
  // one that left.
  proof.patience_ms = std::max<int64_t>(
      0, std::chrono::duration_cast<std::chrono::milliseconds>(
             deadline - MeetingClock::now())
             .count());
  const absl::Status sent =
      SendAll(client->connection_.get(), Encode(proof), deadline + kSlack);
  if (!sent.ok()) return NotProved(sent);
  const absl::StatusOr<std::string> answer = client->Receive(deadline + kSlack);
  if (!answer.ok()) return NotProved(answer.status());
  if (KindOf(*answer) == MessageKind::kRefusal) return RefusalIn(*answer);
  if (KindOf(*answer) != MessageKind::kAdmitted) {
    return absl::NotFoundError("what answers there isn't Capstan");
  }
  return client;
}

absl::Status MeetingClient::Probe(SocketFd connection, Hello hello,
                                  const std::string& token, Deadline deadline) {
  MeetingClient client(std::move(connection));
  return client.ProveRank0(std::move(hello), token, deadline).status();
}

absl::StatusOr<Proof> MeetingClient::ProveRank0(Hello hello,
                                                const std::string& token,
                                                Deadline deadline) {
  hello.nonce = RandomBytes(kNonceBytes);
  const std::string frame = Encode(hello);
  const absl::string_view payload = PayloadOf(frame);
  const absl::Status sent = SendAll(connection_.get(), frame, deadline);
  if (!sent.ok()) return NotProved(sent);
  const absl::StatusOr<std::string> answer = Receive(deadline);
  if (!answer.ok()) return NotProved(answer.status());
  if (KindOf(*answer) == MessageKind::kRefusal) {
    return NotProved(RefusalIn(*answer));
  }
  const absl::StatusOr<Challenge> challenge = ParseChallenge(*answer);
  if (!challenge.ok()) return NotProved(challenge.status());
  if (!SameProof(challenge->proof,
                 ProofOf(Prover::kRank0, token, payload, challenge->nonce))) {
    // For rank 0's log only.
    const Refusal refusal = {RefusalReason::kOtherToken,
                             "it has another token than rank 0"};
    SendAll(connection_.get(), Encode(refusal), deadline).IgnoreError();
    return absl::NotFoundError(
        "what answers there doesn't have this run's token");
  }
  Proof proof;
  proof.proof = ProofOf(Prover::kRank, token, payload, challenge->nonce);
  return proof;
}

MeetingClient::~MeetingClient() {
  if (!met_ || !may_leave_) return;
  // Never waits: if there is no room, the connection's end says it, too.
  SendAll(connection_.get(), EncodeBare(MessageKind::kBye), MeetingClock::now())
      .IgnoreError();
}

absl::StatusOr<Met> MeetingClient::AwaitAll(
    Deadline deadline, const std::function<void()>& waiting) {
  absl::StatusOr<std::string> payload;
  while (true) {
    const Deadline now = MeetingClock::now();
    const Deadline end = deadline + kSlack;
    const bool pauses = waiting != nullptr && now + kPause < end;
    payload = Receive(pauses ? now + kPause : end);
    if (!pauses || !absl::IsDeadlineExceeded(payload.status())) break;
    waiting();
  }
  if (absl::IsDeadlineExceeded(payload.status())) {
    return absl::UnavailableError("rank 0 no longer answers");
  }
  if (!payload.ok()) {
    return absl::UnavailableError(
        absl::StrCat("rank 0 has left (", payload.status().message(), ")"));
  }
  if (KindOf(*payload) == MessageKind::kRefusal) return RefusalIn(*payload);
  CAPSTAN_ASSIGN_OR_RETURN(Met met, ParseMet(*payload));
  met_ = true;
  input_.set_max_payload(kMaxPayload);
  return met;
}

absl::StatusOr<std::string> MeetingClient::Receive(Deadline deadline) {
  while (true) {
    CAPSTAN_ASSIGN_OR_RETURN(absl::optional<std::string> payload,
                             input_.Next());
    if (payload.has_value()) return *std::move(payload);
    CAPSTAN_RETURN_IF_ERROR(
        ReceiveSome(connection_.get(), deadline, input_.bytes()));
  }
}

absl::StatusOr<StoreResponse> MeetingClient::Call(StoreRequest request,
                                                  Deadline deadline) {
  {
    const std::lock_guard<std::mutex> sending(send_mutex_);
    request.id = ++last_id_;
    const absl::Status sent =
        SendAll(connection_.get(), Encode(request), deadline);
    const std::lock_guard<std::mutex> lock(mutex_);
    // Half a request may have gone out.
    if (!sent.ok()) broken_.Update(sent);
  }
  std::unique_lock<std::mutex> lock(mutex_);
  while (responses_.count(request.id) == 0) {
    if (!broken_.ok()) return broken_;
    if (MeetingClock::now() >= deadline) {
      return absl::DeadlineExceededError(
          "rank 0, where the ranks' addresses are kept, doesn't answer");
    }
    if (reading_) {
      changed_.wait_until(lock, deadline);
      continue;
    }
    reading_ = true;
    lock.unlock();
    absl::StatusOr<std::string> payload = Receive(deadline);
    lock.lock();
    reading_ = false;
    if (payload.ok()) {
      absl::StatusOr<StoreResponse> response = ParseResponse(*payload);
      if (response.ok()) {
        responses_[response->id] = *std::move(response);
      } else {
        broken_ = absl::UnavailableError(
            "rank 0 sent something that isn't a response");
      }
    } else if (!absl::IsDeadlineExceeded(payload.status())) {
      broken_.Update(payload.status());
    }
    changed_.notify_all();
  }
  return std::move(responses_.extract(request.id).mapped());
}

}  // namespace capstan
