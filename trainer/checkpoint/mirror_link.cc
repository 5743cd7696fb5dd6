// SPDX-License-Identifier: Apache-2.0
#include "trainer/checkpoint/mirror_link.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>
#include <utility>

#include "absl/memory/memory.h"
#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "base/quiet_thread.h"
#include "base/status.h"
#include "cluster/meet/protocol.h"

namespace capstan {
namespace {

using std::chrono::seconds;

constexpr int64_t kPage = 4096;
// Memory for each connection besides the images.
constexpr int64_t kBuffer = 1 << 20;
constexpr seconds kProofLimit{10};
// Limit for connecting, which Shutdown can't interrupt.
constexpr seconds kConnectLimit{1};
// How long nobody may listen at the server's address before it counts as gone.
// Meanwhile others notice a death by themselves, and can say more about it.
constexpr seconds kGone{1};
// Tries in a row that a host doesn't answer before it counts as lost.
constexpr int kSilentTries = 3;
// How often an idle connection is checked.
constexpr std::chrono::milliseconds kLook{500};
// Limit for sending and receiving: a network that moves nothing for so long is
// broken.
constexpr seconds kSilence{60};
constexpr std::chrono::hours kForEver{24 * 365};

enum Verb : uint32_t { kRead = 1, kPut = 2 };

// Ranks of one run are of one build (session/compare_ranks.h).
struct Request {
  uint32_t verb = kRead;
  int32_t file = 0;     // of kRead
  int32_t restart = 0;  // of kPut
  int32_t unused = 0;
  int64_t sequence_or_offset = 0;
  int64_t bytes = 0;  // of kPut: of the image
};
static_assert(sizeof(Request) == 32, "as the header says");

template <typename T>
absl::string_view BytesOf(const T& value) {
  return {reinterpret_cast<const char*>(&value), sizeof(value)};
}

Deadline Soon(seconds limit) { return MeetingClock::now() + limit; }

// Receives piece by piece, each within kSilence.
absl::Status ReceiveSlowly(int fd, char* out, int64_t count) {
  for (int64_t done = 0; done < count; done += kBuffer) {
    const int64_t piece = std::min(kBuffer, count - done);
    CAPSTAN_RETURN_IF_ERROR(
        ReceiveAll(fd, out + done, static_cast<size_t>(piece), Soon(kSilence)));
  }
  return absl::OkStatus();
}

// Receives the next message of the handshake. The other end sends nothing more
// before it gets an answer.
absl::StatusOr<std::string> ReceiveFrame(int fd, Deadline deadline) {
  FrameBuffer input(kMaxStrangerPayload);
  while (true) {
    CAPSTAN_ASSIGN_OR_RETURN(absl::optional<std::string> payload, input.Next());
    if (payload.has_value()) return *std::move(payload);
    CAPSTAN_RETURN_IF_ERROR(ReceiveSome(fd, deadline, input.bytes()));
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<MirrorServer>> MirrorServer::Start(
    const Options& options) {
  // In addition to what the rank has open.
  AllowOpenFiles(options.most_connections + 1024);
  auto server = absl::WrapUnique(new MirrorServer(options));
  absl::optional<SocketAddress> address =
      SocketAddress::Parse(options.host, /*port=*/0);
  if (!address.has_value()) {
    return absl::FailedPreconditionError(
        absl::StrCat("\"", options.host, "\" isn't this host's address"));
  }
  CAPSTAN_ASSIGN_OR_RETURN(server->listening_, ListenAt(&*address));
  server->wake_ = SocketFd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!server->wake_.valid()) return absl::ErrnoToStatus(errno, "eventfd");
  server->token_ = absl::BytesToHexString(RandomBytes(16));
  server->address_ =
      absl::StrCat(server->token_, " ", address->port(), " ", address->host());
  server->accepting_ = QuietThread([self = server.get()] { self->Accept(); });
  return server;
}

MirrorServer::~MirrorServer() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    stopped_ = true;
    for (const int fd : connections_) shutdown(fd, SHUT_RDWR);
  }
  const uint64_t one = 1;
  // It can't be full.
  if (wake_.valid() && write(wake_.get(), &one, sizeof(one)) < 0) return;
  if (accepting_.joinable()) accepting_.join();
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait(lock, [this] { return connections_.empty(); });
}

void MirrorServer::TakeIn(const absl::optional<MirrorKey>& source) {
  const std::lock_guard<std::mutex> lock(put_mutex_);
  takes_in_ = true;
  source_ = source;
}

void MirrorServer::Accept() {
  pthread_setname_np(pthread_self(), "mirror-accept");
  while (true) {
    pollfd fds[] = {{wake_.get(), POLLIN, 0}, {listening_.get(), POLLIN, 0}};
    if (poll(fds, 2, /*timeout=*/-1) < 0 && errno != EINTR) return;
    const std::lock_guard<std::mutex> lock(mutex_);
    if (stopped_) return;
    SocketFd fd(accept4(listening_.get(), nullptr, nullptr,
                        SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!fd.valid()) {
      // Out of descriptors: it would be reported again at once.
      if (errno == EMFILE || errno == ENFILE) usleep(10000);
      continue;
    }
    if (static_cast<int>(connections_.size()) >= options_.most_connections) {
      continue;
    }
    SetUpConnection(fd.get());
    connections_.insert(fd.get());
    QuietThread([this, raw = fd.Release()] { Serve(SocketFd(raw)); }).detach();
  }
}

void MirrorServer::Serve(const SocketFd& fd) {
  pthread_setname_np(pthread_self(), "mirror-serve");
  absl::Status status = Admit(fd.get());
  while (status.ok()) status = Answer(fd.get());
  const std::lock_guard<std::mutex> lock(mutex_);
  connections_.erase(fd.get());
  changed_.notify_all();
}

absl::Status MirrorServer::Admit(int fd) const {
  const Deadline deadline = Soon(kProofLimit);
  CAPSTAN_ASSIGN_OR_RETURN(const std::string said, ReceiveFrame(fd, deadline));
  CAPSTAN_RETURN_IF_ERROR(ParseHello(said).status());
  Challenge challenge;
  challenge.nonce = RandomBytes(kNonceBytes);
  challenge.proof = ProofOf(Prover::kRank0, token_, said, challenge.nonce);
  CAPSTAN_RETURN_IF_ERROR(SendAll(fd, Encode(challenge), deadline));
  CAPSTAN_ASSIGN_OR_RETURN(const std::string answer,
                           ReceiveFrame(fd, deadline));
  CAPSTAN_ASSIGN_OR_RETURN(const Proof proof, ParseProof(answer));
  if (!SameProof(proof.proof,
                 ProofOf(Prover::kRank, token_, said, challenge.nonce))) {
    return absl::PermissionDeniedError("it has another token");
  }
  return SendAll(fd, EncodeBare(MessageKind::kAdmitted), deadline);
}

absl::Status MirrorServer::Answer(int fd) {
  Request request;
  CAPSTAN_RETURN_IF_ERROR(ReceiveAll(fd, reinterpret_cast<char*>(&request),
                                     sizeof(request),
                                     MeetingClock::now() + kForEver));
  if (request.verb == kRead) {
    return AnswerRead(fd, request.file, request.sequence_or_offset,
                      request.bytes);
  }
  if (request.verb == kPut) {
    return TakeImage(fd, {request.restart, request.sequence_or_offset},
                     request.bytes);
  }
  return absl::InvalidArgumentError("no such request");
}

absl::Status MirrorServer::AnswerRead(int fd, int file, int64_t offset,
                                      int64_t bytes) {
  const bool there = file >= 0 &&
                     file < static_cast<int>(options_.files.size()) &&
                     offset >= 0 && bytes >= 0 && bytes <= kBuffer;
  std::string data(there ? static_cast<size_t>(bytes) : 0, '\0');
  const bool read =
      there && ReadMirrorIn(options_.files[file])(offset, bytes, &data[0]).ok();
  const int64_t answer = read ? bytes : -1;
  CAPSTAN_RETURN_IF_ERROR(SendAll(fd, BytesOf(answer), Soon(kSilence)));
  return read ? SendAll(fd, data, Soon(kSilence)) : absl::OkStatus();
}

int MirrorServer::FileFor(const MirrorKey& key) const {
  const size_t first = options_.files.size() - options_.held;
  int oldest = -1;
  MirrorKey oldest_key;
  for (size_t i = first; i < options_.files.size(); ++i) {
    const absl::optional<MirrorImage> image = MirrorImageIn(options_.files[i]);
    const MirrorKey found = image.has_value() ? image->key : MirrorKey();
    // It is sent again if the sender hasn't heard that it had arrived.
    if (found == key) return options_.files[i];
    if (source_.has_value() && !last_.has_value() && found == *source_) {
      continue;
    }
    if (oldest < 0 || found < oldest_key) {
      oldest = options_.files[i];
      oldest_key = found;
    }
  }
  return oldest;
}

absl::Status MirrorServer::TakeImage(int fd, const MirrorKey& key,
                                     int64_t bytes) {
  const std::lock_guard<std::mutex> lock(put_mutex_);
  const int file = takes_in_ ? FileFor(key) : -1;
  struct stat info = {};
  // Plugins' states may have grown.
  if (file < 0 || fstat(file, &info) != 0 || bytes <= kPage ||
      (bytes > info.st_size && !GrowMirror(file, bytes).ok())) {
    const int64_t refusal = -1;
    SendAll(fd, BytesOf(refusal), Soon(kSilence)).IgnoreError();
    return absl::FailedPreconditionError("there is no room for the image");
  }
  void* const memory =
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (memory == MAP_FAILED) return absl::ErrnoToStatus(errno, "mmap");
  char* const image = static_cast<char*>(memory);
  // Mark the image as incomplete until the end.
  std::memset(image, 0, kPage);
  const absl::Status received = [&]() -> absl::Status {
    CAPSTAN_RETURN_IF_ERROR(ReceiveSlowly(fd, image + kPage, bytes - kPage));
    char header[kPage];
    CAPSTAN_RETURN_IF_ERROR(ReceiveSlowly(fd, header, kPage));
    // The magic number, which makes the image complete, is written last.
    std::memcpy(image + sizeof(uint64_t), header + sizeof(uint64_t),
                kPage - sizeof(uint64_t));
    std::atomic_thread_fence(std::memory_order_seq_cst);
    std::memcpy(image, header, sizeof(uint64_t));
    last_ = key;
    return absl::OkStatus();
  }();
  munmap(memory, bytes);
  CAPSTAN_RETURN_IF_ERROR(received);
  const int64_t done = 0;
  return SendAll(fd, BytesOf(done), Soon(kSilence));
}

absl::StatusOr<SocketFd> MirrorConnection::Reach() const {
  const std::vector<std::string> parts = absl::StrSplit(address_, ' ');
  int port = 0;
  absl::optional<SocketAddress> address;
  if (parts.size() == 3 && absl::SimpleAtoi(parts[1], &port)) {
    address = SocketAddress::Parse(parts[2], port);
  }
  if (!address.has_value()) {
    return absl::UnavailableError("the other host's mirrors have no address");
  }
  return ConnectTo(*address, Soon(kConnectLimit));
}

absl::Status MirrorConnection::Connect() {
  if (fd_.valid()) return absl::OkStatus();
  CAPSTAN_ASSIGN_OR_RETURN(SocketFd fd, Reach());
  if (silence_.count() > 0) NoticeSilence(fd.get(), silence_);
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (shut_down_) return absl::CancelledError("shut down");
    fd_ = std::move(fd);
  }
  return Introduce(fd_.get(), address_.substr(0, address_.find(' ')));
}

absl::Status MirrorConnection::Introduce(int fd,
                                         const std::string& token) const {
  const Deadline deadline = Soon(kProofLimit);
  Hello hello;
  hello.world_size = 1;
  hello.pid = getpid();
  hello.nonce = RandomBytes(kNonceBytes);
  const std::string frame = Encode(hello);
  CAPSTAN_RETURN_IF_ERROR(SendAll(fd, frame, deadline));
  CAPSTAN_ASSIGN_OR_RETURN(const std::string said, ReceiveFrame(fd, deadline));
  CAPSTAN_ASSIGN_OR_RETURN(const Challenge challenge, ParseChallenge(said));
  const absl::string_view payload = PayloadOf(frame);
  if (!SameProof(challenge.proof,
                 ProofOf(Prover::kRank0, token, payload, challenge.nonce))) {
    return absl::NotFoundError("what answers there isn't this run");
  }
  Proof proof;
  proof.proof = ProofOf(Prover::kRank, token, payload, challenge.nonce);
  CAPSTAN_RETURN_IF_ERROR(SendAll(fd, Encode(proof), deadline));
  CAPSTAN_ASSIGN_OR_RETURN(const std::string answer,
                           ReceiveFrame(fd, deadline));
  return KindOf(answer) == MessageKind::kAdmitted
             ? absl::OkStatus()
             : absl::NotFoundError("what answers there isn't this run");
}

absl::Status MirrorConnection::Checked(const absl::Status& status) {
  if (status.ok()) return status;
  const std::lock_guard<std::mutex> lock(mutex_);
  fd_.Close();
  return status;
}

absl::Status MirrorConnection::TryRead(int file, int64_t offset, int64_t bytes,
                                       char* out) {
  CAPSTAN_RETURN_IF_ERROR(Connect());
  for (int64_t done = 0; done < bytes; done += kBuffer) {
    Request request;
    request.verb = kRead;
    request.file = file;
    request.sequence_or_offset = offset + done;
    request.bytes = std::min(kBuffer, bytes - done);
    CAPSTAN_RETURN_IF_ERROR(
        SendAll(fd_.get(), BytesOf(request), Soon(kSilence)));
    int64_t answer = 0;
    CAPSTAN_RETURN_IF_ERROR(ReceiveSlowly(
        fd_.get(), reinterpret_cast<char*>(&answer), sizeof(answer)));
    if (answer != request.bytes) {
      return absl::DataLossError("an image of it isn't where it was");
    }
    CAPSTAN_RETURN_IF_ERROR(
        ReceiveSlowly(fd_.get(), out + done, request.bytes));
  }
  return absl::OkStatus();
}

absl::Status MirrorConnection::Read(int file, int64_t offset, int64_t bytes,
                                    char* out) {
  return Checked(TryRead(file, offset, bytes, out));
}

absl::Status MirrorConnection::Patiently(
    const std::function<absl::Status(Deadline)>& wait) {
  const Deadline end = Soon(kSilence);
  while (true) {
    const Deadline look = silence_.count() > 0
                              ? std::min(end, MeetingClock::now() + silence_)
                              : end;
    const absl::Status status = wait(look);
    if (!absl::IsDeadlineExceeded(status) || look == end) return status;
    const absl::Status there = Reach().status();
    // This connection notices other errors by itself.
    if (IsSilentHost(there)) return there;
  }
}

absl::Status MirrorConnection::SendPatiently(const char* bytes, int64_t count) {
  while (count > 0) {
    CAPSTAN_RETURN_IF_ERROR(Patiently([&](Deadline deadline) -> absl::Status {
      const auto piece = static_cast<size_t>(std::min(kBuffer, count));
      CAPSTAN_ASSIGN_OR_RETURN(const size_t sent,
                               SendSome(fd_.get(), {bytes, piece}, deadline));
      bytes += sent;
      count -= static_cast<int64_t>(sent);
      return absl::OkStatus();
    }));
  }
  return absl::OkStatus();
}

absl::Status MirrorConnection::TryPut(const Mirror::Copied& image) {
  CAPSTAN_RETURN_IF_ERROR(Connect());
  Request request;
  request.verb = kPut;
  request.restart = image.key.restart;
  request.sequence_or_offset = image.key.sequence;
  request.bytes = image.bytes;
  CAPSTAN_RETURN_IF_ERROR(
      SendPatiently(BytesOf(request).data(), sizeof(request)));
  CAPSTAN_RETURN_IF_ERROR(
      SendPatiently(image.memory + kPage, image.bytes - kPage));
  CAPSTAN_RETURN_IF_ERROR(SendPatiently(image.memory, kPage));
  CAPSTAN_RETURN_IF_ERROR(Patiently(
      [this](Deadline deadline) { return AwaitInput(fd_.get(), deadline); }));
  int64_t answer = -1;
  CAPSTAN_RETURN_IF_ERROR(ReceiveSlowly(
      fd_.get(), reinterpret_cast<char*>(&answer), sizeof(answer)));
  return answer == 0
             ? absl::OkStatus()
             : absl::ResourceExhaustedError("the other host has no room");
}

absl::Status MirrorConnection::Put(const Mirror::Copied& image) {
  return Checked(TryPut(image));
}

absl::Status MirrorConnection::Check() {
  return Checked([this]() -> absl::Status {
    CAPSTAN_RETURN_IF_ERROR(Connect());
    // The server sends nothing unasked: either this times out, or the
    // connection has ended.
    char byte = 0;
    const absl::Status status =
        ReceiveAll(fd_.get(), &byte, 1, MeetingClock::now());
    return absl::IsDeadlineExceeded(status) ? absl::OkStatus() : status;
  }());
}

void MirrorConnection::Shutdown() {
  const std::lock_guard<std::mutex> lock(mutex_);
  shut_down_ = true;
  if (fd_.valid()) shutdown(fd_.get(), SHUT_RDWR);
}

MirrorSender::MirrorSender(const std::string& address,
                           std::chrono::milliseconds silence,
                           std::function<void(const std::string&)> lost)
    : connection_(address, silence), silence_(silence), lost_(std::move(lost)) {
  thread_ = QuietThread([this] { Run(); });
}

MirrorSender::~MirrorSender() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    stopped_ = true;
  }
  changed_.notify_all();
  connection_.Shutdown();
  thread_.join();
}

void MirrorSender::Send(const Mirror::Copied& image) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    image_ = image;
  }
  changed_.notify_all();
}

bool MirrorSender::through() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return !image_.has_value();
}

absl::Status MirrorSender::problem() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return problem_;
}

void MirrorSender::Run() {
  pthread_setname_np(pthread_self(), "mirror-send");
  std::unique_lock<std::mutex> lock(mutex_);
  while (!stopped_) {
    const absl::optional<Mirror::Copied> image = image_;
    lock.unlock();
    const bool was_connected = connection_.connected();
    const absl::Status status =
        image.has_value() ? connection_.Put(*image) : connection_.Check();
    Note(status, was_connected);
    lock.lock();
    problem_ = status;
    if (status.ok()) {
      if (image.has_value()) image_.reset();
      changed_.wait_for(lock, kLook,
                        [this] { return stopped_ || image_.has_value(); });
    } else {
      changed_.wait_for(lock, seconds(1), [this] { return stopped_; });
    }
  }
}

void MirrorSender::MayLeave() {
  const std::lock_guard<std::mutex> lock(mutex_);
  may_leave_ = true;
}

void MirrorSender::Note(const absl::Status& status, bool was_connected) {
  const Deadline now = MeetingClock::now();
  const bool silent = IsSilentHost(status);
  silent_tries_ = silent ? silent_tries_ + 1 : 0;
  if (!silent && !status.ok()) {
    const std::lock_guard<std::mutex> lock(mutex_);
    // It has left, and its host may be switched off.
    if (may_leave_) lost_ = nullptr;
  }
  if (silent && was_connected) {
    // A connection ends this way only after silence_.
    heard_ = std::min(heard_, now - silence_);
  } else if (was_connected || !absl::IsUnavailable(status)) {
    // Other errors come from a server that is alive, or was until now.
    heard_ = now;
  }
  // The end of a connection alone isn't enough: a host that is only slow
  // accepts the next one.
  if (was_connected || !absl::IsUnavailable(status)) return;
  const MeetingClock::duration since = now - heard_;
  const bool over = silent ? silent_tries_ >= kSilentTries && since >= silence_
                           : since >= kGone;
  if (!over) return;
  std::function<void(const std::string&)> lost;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (stopped_ || lost_ == nullptr) return;
    lost = std::exchange(lost_, nullptr);
  }
  const double seconds = std::chrono::duration<double>(silence_).count();
  lost(silent ? absl::StrCat("its host has not answered for ", seconds, " s")
              : absl::StrCat("its process is gone (", status.message(), ")"));
}

}  // namespace capstan
