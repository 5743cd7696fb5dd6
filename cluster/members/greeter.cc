// SPDX-License-Identifier: Apache-2.0
#include "cluster/members/greeter.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "cluster/meet/protocol.h"

namespace capstan {

void Greeter::Ask(const std::vector<SocketAddress>& addresses) {
  connection_.reset();
  problem_ = absl::OkStatus();
  addresses_.assign(addresses.begin(), addresses.end());
}

void Greeter::Connect(const SocketAddress& address, Deadline now) {
  SocketFd fd(
      socket(address.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  const bool begun =
      fd.valid() && (connect(fd.get(), address.get(), address.size()) == 0 ||
                     errno == EINPROGRESS);
  const int error = errno;
  SetUpConnection(fd.get());
  address_ = address;
  until_ = now + limit_;
  hello_ = Encode(HelloOfHost(run_key_));
  connection_ = std::make_unique<HostConnection>(std::move(fd));
  if (!begun) connection_->Fail(error);
  connection_->SendFrame(hello_);
}

absl::optional<absl::Status> Greeter::Shake(Deadline now) {
  connection_->Flush();
  connection_->Receive();
  const absl::optional<std::string> answer = connection_->Next();
  if (!answer.has_value()) {
    if (!connection_->alive()) {
      return absl::UnavailableError(connection_->error() == 0
                                        ? "the connection was closed"
                                        : strerror(connection_->error()));
    }
    if (now >= until_) return absl::UnavailableError("no answer");
    return absl::nullopt;
  }
  const absl::StatusOr<Refusal> refusal = ParseRefusal(*answer);
  if (refusal.ok()) return absl::NotFoundError(refusal->text);
  const absl::StatusOr<Challenge> challenge = ParseChallenge(*answer);
  if (!challenge.ok() ||
      !SameProof(challenge->proof,
                 ProofOf(Prover::kRank0, token_, PayloadOf(hello_),
                         challenge->nonce))) {
    return absl::NotFoundError("what answers there isn't of this run");
  }
  Proof proof;
  proof.proof =
      ProofOf(Prover::kRank, token_, PayloadOf(hello_), challenge->nonce);
  connection_->SendFrame(Encode(proof));
  return absl::OkStatus();
}

std::unique_ptr<HostConnection> Greeter::Continue(Deadline now) {
  while (asks()) {
    if (connection_ == nullptr) {
      const SocketAddress next = addresses_.front();
      addresses_.pop_front();
      Connect(next, now);
    }
    const absl::optional<absl::Status> ended = Shake(now);
    if (!ended.has_value()) {
      connection_->Watch(epoll_);
      return nullptr;
    }
    std::unique_ptr<HostConnection> connection = std::move(connection_);
    if (ended->ok()) {
      addresses_.clear();
      return connection;
    }
    problem_ = absl::Status(
        ended->code(), absl::StrCat(address_.text(), ": ", ended->message()));
  }
  return nullptr;
}

void Greeter::CloseInChild() const {
  if (connection_ != nullptr) close(connection_->fd());
}

}  // namespace capstan
