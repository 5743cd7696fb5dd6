// SPDX-License-Identifier: Apache-2.0
//
// Mirrors' images between hosts: each rank serves those in its files to the
// others, and takes in copies of one peer's.
//
// Who connects proves that it has the server's token, and the server proves it,
// as in the ranks' meeting and by its messages (meeting/protocol.h): Hello,
// Challenge, Proof, Admitted. Then it asks, any number of times:
//
//   Request        32 bytes; of kPut the image follows, from its second page on
//                  and then its first, which makes it whole
//   8 bytes        of kRead: as many bytes follow, or -1; of kPut: 0 once the
//                  image is there, or -1
//
// What follows the proof isn't encrypted.
#ifndef CAPSTAN_TRAINER_CHECKPOINT_MIRROR_LINK_H_
#define CAPSTAN_TRAINER_CHECKPOINT_MIRROR_LINK_H_

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/optional.h"
#include "cluster/launch/network.h"
#include "trainer/checkpoint/mirror.h"

namespace capstan {

// A rank's server, with a thread for each connection. A stranger has ten
// seconds to prove itself; there are at most `most_connections` at once.
class MirrorServer {
 public:
  struct Options {
    std::string host;  // numeric: where it listens
    // This rank's files, of which index numbers the others ask for bytes.
    std::vector<int> files;
    // The last ones of these hold a peer's images; each of them has the memory
    // for one (AllocateMirror).
    int held = 0;
    int most_connections = 64;
  };

  static absl::StatusOr<std::unique_ptr<MirrorServer>> Start(
      const Options& options);
  // Ends all connections.
  ~MirrorServer();
  MirrorServer(const MirrorServer&) = delete;
  MirrorServer& operator=(const MirrorServer&) = delete;

  // For MirrorConnection, on any host: "TOKEN PORT HOST". Secret.
  const std::string& address() const { return address_; }
  // Images can be put from now on. `source`: what the run goes on from; such an
  // image stays until a newer one is whole.
  void TakeIn(const absl::optional<MirrorKey>& source);

 private:
  explicit MirrorServer(const Options& options) : options_(options) {}

  void Accept();
  void Serve(const SocketFd& fd);
  absl::Status Admit(int fd) const;
  // One request; an error ends the connection.
  absl::Status Answer(int fd);
  absl::Status AnswerRead(int fd, int file, int64_t offset, int64_t bytes);
  absl::Status TakeImage(int fd, const MirrorKey& key, int64_t bytes);
  // The file that an image of `key` goes to.
  int FileFor(const MirrorKey& key) const;

  const Options options_;
  std::string address_;
  std::string token_;
  SocketFd listening_;
  SocketFd wake_;  // an eventfd
  std::thread accepting_;

  std::mutex mutex_;
  bool stopped_ = false;
  std::set<int> connections_;  // sockets, of as many threads
  std::condition_variable changed_;
  std::mutex put_mutex_;  // one image at a time
  bool takes_in_ = false;
  absl::optional<MirrorKey> source_;
  absl::optional<MirrorKey> last_;  // the newest that is whole
};

// A connection to a server, made when it is needed. One thread at a time, but
// Shutdown.
class MirrorConnection {
 public:
  // silence: how long the other host may not answer (NoticeSilence), while an
  // image is sent too; 0: for the system to say. A process there that is
  // stopped or busy isn't a host that doesn't answer.
  explicit MirrorConnection(std::string address,
                            std::chrono::milliseconds silence = {})
      : address_(std::move(address)), silence_(silence) {}

  // Bytes of an image in the server's file `file`.
  absl::Status Read(int file, int64_t offset, int64_t bytes, char* out);
  // Has the server hold an image, which doesn't change meanwhile.
  absl::Status Put(const Mirror::Copied& image);
  // Whether the connection is there; connects if it isn't. Between requests.
  absl::Status Check();
  bool connected() const { return fd_.valid(); }
  // Ends what is under way, for ever. Any thread.
  void Shutdown();

 private:
  absl::Status Connect();
  absl::Status Introduce(int fd, const std::string& token) const;
  absl::Status TryRead(int file, int64_t offset, int64_t bytes, char* out);
  absl::Status TryPut(const Mirror::Copied& image);
  absl::StatusOr<SocketFd> Reach() const;
  // Calls wait(deadline) until it isn't DEADLINE_EXCEEDED, for a minute at
  // most; after each silence_ makes sure that the other host is there.
  absl::Status Patiently(const std::function<absl::Status(Deadline)>& wait);
  absl::Status SendPatiently(const char* bytes, int64_t count);
  // Closes the connection after an error.
  absl::Status Checked(const absl::Status& status);

  const std::string address_;
  const std::chrono::milliseconds silence_;
  std::mutex mutex_;  // of what Shutdown needs
  SocketFd fd_;
  bool shut_down_ = false;
};

// Sends images to a server in the background, on a thread of its own.
class MirrorSender {
 public:
  // lost: called on the sender's thread, at most once, with what has become of
  // the server: its host hasn't answered for `silence`, as if it had lost its
  // power or its network, or its process is gone. Not when that is only busy or
  // stopped. Null: never.
  MirrorSender(const std::string& address, std::chrono::milliseconds silence,
               std::function<void(const std::string& how)> lost);
  // Breaks off.
  ~MirrorSender();
  MirrorSender(const MirrorSender&) = delete;
  MirrorSender& operator=(const MirrorSender&) = delete;

  // Begins to send `image`, which must stay as it is until through(); call only
  // then. What fails is tried again, once a second.
  void Send(const Mirror::Copied& image);
  // Whether all that was to be sent has arrived.
  bool through() const;
  // The server may go from now on: `lost` isn't called any more.
  void MayLeave();
  // What failed last; OK once something has arrived.
  absl::Status problem() const;

 private:
  void Run();
  // What became of a try; without mutex_. was_connected: before it.
  void Note(const absl::Status& status, bool was_connected);

  MirrorConnection connection_;
  const std::chrono::milliseconds silence_;
  std::function<void(const std::string&)> lost_;
  // Of the sender's thread: when the server was last there, and how often in a
  // row its host hasn't answered since.
  Deadline heard_ = MeetingClock::now();
  int silent_tries_ = 0;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  absl::optional<Mirror::Copied> image_;  // until it has arrived
  absl::Status problem_;
  bool stopped_ = false;
  std::thread thread_;
};

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_CHECKPOINT_MIRROR_LINK_H_
