// SPDX-License-Identifier: Apache-2.0
//
// Transfers mirrors' images between hosts: each rank serves the images in its
// files to the others, and receives copies of one peer's.
//
// Client and server prove to each other that they have the server's token, with
// the messages of the ranks' meeting (cluster/meet/protocol.h): Hello,
// Challenge, Proof, Admitted. Then the client sends any number of requests:
//
//   Request        32 bytes; after kPut the image follows, from its second page
//                  on and then its first, which makes it complete
//   8 bytes        the answer to kRead: the number of bytes that follow, or -1;
//                  to kPut: 0 once the image has been received, or -1
//
// Nothing after the proof is encrypted.
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

// A rank's server, with a thread for each connection, of which there are at
// most `most_connections` at once. A client has ten seconds to prove itself.
class MirrorServer {
 public:
  struct Options {
    std::string host;  // numeric: where it listens
    // This rank's files, which requests refer to by index.
    std::vector<int> files;
    // How many of the last of them hold a peer's images; each of these must
    // have the memory for one (AllocateMirror).
    int held = 0;
    int most_connections = 64;
  };

  static absl::StatusOr<std::unique_ptr<MirrorServer>> Start(
      const Options& options);
  // Ends all connections.
  ~MirrorServer();
  MirrorServer(const MirrorServer&) = delete;
  MirrorServer& operator=(const MirrorServer&) = delete;

  // Returns the address for a MirrorConnection on any host, "TOKEN PORT HOST",
  // which is secret.
  const std::string& address() const { return address_; }
  // Accepts images from now on. An image of `source`, which the run continues
  // from, is kept until a newer one is complete.
  void TakeIn(const absl::optional<MirrorKey>& source);

 private:
  explicit MirrorServer(const Options& options) : options_(options) {}

  void Accept();
  void Serve(const SocketFd& fd);
  absl::Status Admit(int fd) const;
  // Answers one request; an error ends the connection.
  absl::Status Answer(int fd);
  absl::Status AnswerRead(int fd, int file, int64_t offset, int64_t bytes);
  absl::Status TakeImage(int fd, const MirrorKey& key, int64_t bytes);
  // Returns the file that an image of `key` goes to.
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

// A connection to a server, made when it is needed. Only one thread may use it
// at a time, except for Shutdown.
class MirrorConnection {
 public:
  // `silence` limits how long the other host may be unreachable
  // (NoticeSilence), also while an image is being sent; 0: the system's own
  // limit. A host whose process is stopped or busy still answers.
  explicit MirrorConnection(std::string address,
                            std::chrono::milliseconds silence = {})
      : address_(std::move(address)), silence_(silence) {}

  // Reads bytes of an image in the server's file `file`.
  absl::Status Read(int file, int64_t offset, int64_t bytes, char* out);
  // Sends an image, which mustn't change meanwhile, to the server.
  absl::Status Put(const Mirror::Copied& image);
  // Checks that the connection is alive; connects if there is none. Call
  // between requests.
  absl::Status Check();
  bool connected() const { return fd_.valid(); }
  // Ends all use of the connection for good. Any thread may call it.
  void Shutdown();

 private:
  absl::Status Connect();
  absl::Status Introduce(int fd, const std::string& token) const;
  absl::Status TryRead(int file, int64_t offset, int64_t bytes, char* out);
  absl::Status TryPut(const Mirror::Copied& image);
  absl::StatusOr<SocketFd> Reach() const;
  // Calls wait(deadline) until it doesn't return DEADLINE_EXCEEDED, for at most
  // a minute; checks after each silence_ that the other host can be reached.
  absl::Status Patiently(const std::function<absl::Status(Deadline)>& wait);
  absl::Status SendPatiently(const char* bytes, int64_t count);
  // Closes the connection after an error.
  absl::Status Checked(const absl::Status& status);

  const std::string address_;
  const std::chrono::milliseconds silence_;
  std::mutex mutex_;  // guards what Shutdown uses
  SocketFd fd_;
  bool shut_down_ = false;
};

// Sends images to a server in the background, on a thread of its own.
class MirrorSender {
 public:
  // `lost` (may be null) is called on the sender's thread, at most once, with a
  // description if the server's host hasn't answered for `silence`, as after a
  // loss of power or network, or if its process is gone; but not if the process
  // is only busy or stopped.
  MirrorSender(const std::string& address, std::chrono::milliseconds silence,
               std::function<void(const std::string& how)> lost);
  // Aborts what is being sent.
  ~MirrorSender();
  MirrorSender(const MirrorSender&) = delete;
  MirrorSender& operator=(const MirrorSender&) = delete;

  // Begins to send `image`, which mustn't change until through(). Call only if
  // through(). Retries failures once a second.
  void Send(const Mirror::Copied& image);
  // Whether everything has arrived.
  bool through() const;
  // Tells that the server may end from now on, so that `lost` isn't called for
  // that. It still is if the server's host falls silent before.
  void MayLeave();
  // Returns the latest error; OK once something has arrived.
  absl::Status problem() const;

 private:
  void Run();
  // Notes the outcome of a try, before which the connection was alive if
  // `was_connected`. Call without mutex_.
  void Note(const absl::Status& status, bool was_connected);

  MirrorConnection connection_;
  const std::chrono::milliseconds silence_;
  std::function<void(const std::string&)> lost_;
  bool may_leave_ = false;
  // Used by the sender's thread: when the server was last reached, and how many
  // tries in a row its host hasn't answered since.
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
