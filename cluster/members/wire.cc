// SPDX-License-Identifier: Apache-2.0
#include "cluster/members/wire.h"

#include <errno.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "absl/status/statusor.h"
#include "base/json.h"
#include "cluster/meet/admission.h"

namespace capstan {
namespace {

// From which on a connection that doesn't read is given up.
constexpr size_t kMostOutput = size_t{4} << 20;

std::string FrameOf(absl::string_view payload) {
  std::string frame;
  for (int i = 0; i < 4; ++i) {
    frame.push_back(static_cast<char>(payload.size() >> (8 * i)));
  }
  frame.append(payload.data(), payload.size());
  return frame;
}

}  // namespace

bool HostConnection::silent() const {
  return error_ != 0 && error_ != ECONNRESET && error_ != EPIPE;
}

void HostConnection::Watch(int epoll) {
  const uint32_t events = EPOLLIN | (blocked() ? EPOLLOUT : 0);
  if (events == watched_) return;
  epoll_event event = {};
  event.events = events;
  event.data.fd = fd_.get();
  epoll_ctl(epoll, watched_ == 0 ? EPOLL_CTL_ADD : EPOLL_CTL_MOD, fd_.get(),
            &event);
  watched_ = events;
}

void HostConnection::Send(const HostMessage& message) {
  SendFrame(FrameOf(JsonText(message)));
}

void HostConnection::SendFrame(const std::string& frame) {
  output_.append(frame);
  if (output_.size() > kMostOutput) Close();
  Flush();
}

void HostConnection::Flush() {
  size_t sent = 0;
  while (alive_ && sent < output_.size()) {
    const ssize_t n = send(fd_.get(), output_.data() + sent,
                           output_.size() - sent, MSG_NOSIGNAL);
    if (n >= 0) {
      sent += static_cast<size_t>(n);
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      break;
    } else if (errno != EINTR) {
      Fail(errno);
    }
  }
  output_.erase(0, sent);
}

void HostConnection::Receive() {
  char buffer[16 << 10];
  while (alive_) {
    const ssize_t n = recv(fd_.get(), buffer, sizeof(buffer), MSG_DONTWAIT);
    if (n > 0) {
      input_.Append(absl::string_view(buffer, static_cast<size_t>(n)));
    } else if (n < 0 && errno == EINTR) {
      continue;
    } else {
      if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
      return Fail(n < 0 ? errno : 0);
    }
  }
}

absl::optional<std::string> HostConnection::Next() {
  absl::StatusOr<absl::optional<std::string>> payload = input_.Next();
  if (payload.ok()) return *std::move(payload);
  Close();
  return absl::nullopt;
}

absl::optional<HostMessage> HostConnection::NextMessage() {
  const absl::optional<std::string> payload = Next();
  if (!payload.has_value()) return absl::nullopt;
  HostMessage message = ParseJson<HostMessage>(*payload);
  if (message.is_object() && message.contains("kind")) return message;
  Close();
  return absl::nullopt;
}

Hello HelloOfHost(const std::string& run_key) {
  Hello hello;
  hello.world_size = 1;
  hello.pid = getpid();
  hello.host = HostName().substr(0, kMaxNameBytes);
  hello.run_key = run_key;
  hello.nonce = RandomBytes(kNonceBytes);
  return hello;
}

bool HostHandshake::Answer(absl::string_view payload,
                           const std::string& run_key, const std::string& token,
                           HostConnection* connection) {
  const Admission admission(1, run_key, token);
  if (nonce_.empty()) {
    const absl::StatusOr<Hello> hello = ParseHello(payload);
    if (!hello.ok()) {
      connection->Close();
      return false;
    }
    const absl::optional<Refusal> refusal = admission.JudgeHello(*hello);
    if (refusal.has_value()) {
      connection->SendFrame(Encode(*refusal));
      connection->Close();
      return false;
    }
    const Challenge challenge = admission.ChallengeFor(payload);
    hello_payload_ = std::string(payload);
    nonce_ = challenge.nonce;
    connection->SendFrame(Encode(challenge));
    return false;
  }
  const absl::StatusOr<Proof> proof = ParseProof(payload);
  if (proof.ok() && SameProof(proof->proof, ProofOf(Prover::kRank, token,
                                                    hello_payload_, nonce_))) {
    return true;
  }
  connection->Close();
  return false;
}

}  // namespace capstan
