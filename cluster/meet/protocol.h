// SPDX-License-Identifier: Apache-2.0
//
// The messages between ranks and rank 0 when they meet, as bytes. Parsing is
// pure: any bytes give a message or an error, in memory of at most a small
// multiple of their length.
//
//   rank                        rank 0
//   Hello             ->
//                     <-        Challenge, or Refusal
//   Proof             ->
//                     <-        Admitted, or Refusal
//                     <-        Met, once all have come, or Refusal
//   StoreRequest      ->
//                     <-        StoreResponse
//   Bye               ->
//
// The token itself is never sent: each side proves that it has it by a keyed
// hash of both sides' random numbers (HMAC-SHA-256, RFC 2104).
//
// A frame is 4 bytes of length, little-endian, and as many of payload; a
// payload begins with its MessageKind. Integers are little-endian; a string is
// 4 bytes of length and its bytes; a list is 4 bytes of count and its elements.
#ifndef CAPSTAN_CLUSTER_MEET_PROTOCOL_H_
#define CAPSTAN_CLUSTER_MEET_PROTOCOL_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/optional.h"

namespace capstan {

constexpr uint64_t kMeetingMagic = 0x4d4e415453504143;  // "CAPSTANM"
constexpr uint16_t kMeetingVersion = 2;

constexpr size_t kNonceBytes = 32;
constexpr size_t kProofBytes = 32;
// The limit of a run key and of a host's name.
constexpr size_t kMaxNameBytes = 255;
// The limit of a refusal's text, which is truncated to it.
constexpr size_t kMaxTextBytes = 1024;
// The limit of payloads from peers that haven't proved the token yet.
constexpr size_t kMaxStrangerPayload = 2048;
// The limit of a request's keys and values, and of a response's values.
constexpr size_t kMaxValueBytes = 16 << 20;
constexpr size_t kMaxPayload = kMaxValueBytes + (2 << 20);

enum class MessageKind : uint8_t {
  kHello = 1,
  kChallenge = 2,
  kProof = 3,
  kRefusal = 4,
  kAdmitted = 5,
  kMet = 6,
  kRequest = 7,
  kResponse = 8,
  kBye = 9,
  kPlace = 10,
};

// A rank introduces itself. Magic and version have the same offsets in every
// version.
struct Hello {
  static constexpr MessageKind kKind = MessageKind::kHello;
  uint64_t magic = kMeetingMagic;
  uint16_t version = kMeetingVersion;
  int32_t world_size = 0;
  int32_t rank = 0;
  int32_t node_rank = 0;
  int32_t local_rank = 0;
  int64_t pid = 0;
  std::string host;
  std::string run_key;
  std::string nonce;  // kNonceBytes
};

struct Challenge {
  static constexpr MessageKind kKind = MessageKind::kChallenge;
  std::string nonce;  // kNonceBytes
  std::string proof;  // rank 0's: kProofBytes
};

struct Proof {
  static constexpr MessageKind kKind = MessageKind::kProof;
  std::string proof;  // the rank's: kProofBytes
  // How much longer the rank waits for the others.
  int64_t patience_ms = 0;
};

enum class RefusalReason : uint8_t {
  kOtherRun = 1,
  kOtherToken = 2,
  kOtherVersion = 3,
  kRankTaken = 4,
  kWorldSize = 5,
  // The meeting has failed.
  kTimedOut = 6,
  kRankLost = 7,
  // Hosts have not come back in time, and the others go on without them; the
  // text lists them: "1,3".
  kHostsGone = 8,
};

// Why the sender refuses to go on. Its layout is the same in every version.
struct Refusal {
  static constexpr MessageKind kKind = MessageKind::kRefusal;
  RefusalReason reason = RefusalReason::kOtherRun;
  std::string text;  // one clause, without a full stop
};

struct Met {
  static constexpr MessageKind kKind = MessageKind::kMet;
  // Rank 0's address in the traffic between hosts, numeric.
  std::string host_address;
};

// Where rank 0 is, in a file (meeting_file.h).
struct MeetingPlace {
  static constexpr MessageKind kKind = MessageKind::kPlace;
  uint64_t magic = kMeetingMagic;
  uint16_t version = kMeetingVersion;
  int32_t port = 0;
  int64_t pid = 0;    // of the process that wrote the file
  std::string host;   // its host
  std::string token;  // empty if the launcher has given one to all ranks
  std::vector<std::string> addresses;  // numeric, best first
};

enum class StoreVerb : uint8_t {
  kSet = 1,         // keys[0] to values[0]
  kAdd = 2,         // `number` to keys[0]; the sum is the response's `number`
  kCompareSet = 3,  // keys[0] from values[0] to values[1]
  kDelete = 4,      // keys[0]; `number`: whether it was there
  kCheck = 5,       // `number`: whether all of `keys` are there
  kCount = 6,       // `number`: of keys
  kWait = 7,        // until all of `keys` are there
  kGet = 8,         // as kWait; `values` of all of them
};

struct StoreRequest {
  static constexpr MessageKind kKind = MessageKind::kRequest;
  uint32_t id = 0;
  StoreVerb verb = StoreVerb::kSet;
  int64_t timeout_ms = 0;  // of kWait and kGet; 0: none
  int64_t number = 0;
  std::vector<std::string> keys;
  std::vector<std::string> values;
};

enum class StoreResult : uint8_t {
  kOk = 1,
  kTimedOut = 2,
  kRankLost = 3,  // the keys may never come
  kRejected = 4,
};

struct StoreResponse {
  static constexpr MessageKind kKind = MessageKind::kResponse;
  uint32_t id = 0;  // the request's
  StoreResult result = StoreResult::kOk;
  int64_t number = 0;
  std::vector<std::string> values;
  std::string text;  // unless kOk
};

// Encodes one of the messages above as a frame.
template <typename Message>
std::string Encode(const Message& message);
// Encodes a message without fields: kAdmitted, kBye.
std::string EncodeBare(MessageKind kind);

// The payload of an encoded frame; "" if `frame` is too short for one.
absl::string_view PayloadOf(absl::string_view frame);

// Returns nullopt unless the payload begins with a MessageKind.
absl::optional<MessageKind> KindOf(absl::string_view payload);

// Return INVALID_ARGUMENT unless `payload` is a message of that kind. Make a
// hello's host and a refusal's text safe to print. A hello of another version
// has only its version set.
absl::StatusOr<Hello> ParseHello(absl::string_view payload);
absl::StatusOr<Challenge> ParseChallenge(absl::string_view payload);
absl::StatusOr<Proof> ParseProof(absl::string_view payload);
absl::StatusOr<Refusal> ParseRefusal(absl::string_view payload);
absl::StatusOr<Met> ParseMet(absl::string_view payload);
absl::StatusOr<MeetingPlace> ParsePlace(absl::string_view payload);
absl::StatusOr<StoreRequest> ParseRequest(absl::string_view payload);
absl::StatusOr<StoreResponse> ParseResponse(absl::string_view payload);

// "rank 3 (host b, process 12)".
std::string Describe(const Hello& hello);

// Splits a connection's bytes into payloads.
class FrameBuffer {
 public:
  explicit FrameBuffer(size_t max_payload) : max_payload_(max_payload) {}
  void set_max_payload(size_t bytes) { max_payload_ = bytes; }

  void Append(absl::string_view bytes) {
    bytes_.append(bytes.data(), bytes.size());
  }
  // The buffer to read into; only append to it.
  std::string* bytes() { return &bytes_; }

  // Returns the next payload; nullopt until it is complete. INVALID_ARGUMENT,
  // as soon as its length is known, if it is empty or longer than allowed.
  absl::StatusOr<absl::optional<std::string>> Next();

 private:
  size_t max_payload_;
  std::string bytes_;
  size_t taken_ = 0;  // of bytes_
};

// Who proves that it has the token; a proof of one isn't one of the other.
enum class Prover { kRank0, kRank };

// Returns the kProofBytes of this handshake, a hash of the rank's hello and
// rank 0's nonce.
std::string ProofOf(Prover prover, absl::string_view token,
                    absl::string_view hello_payload,
                    absl::string_view challenge_nonce);

// Compares in a time that doesn't depend on the contents.
bool SameProof(absl::string_view a, absl::string_view b);

}  // namespace capstan

#endif  // CAPSTAN_CLUSTER_MEET_PROTOCOL_H_
