// SPDX-License-Identifier: Apache-2.0
#include "cluster/meet/protocol.h"

#include <errno.h>
#include <glog/logging.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <sys/random.h>

#include <algorithm>
#include <type_traits>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace capstan {
namespace {

constexpr size_t kLengthBytes = 4;

template <typename T>
constexpr bool kIsNumber = std::is_integral_v<T> || std::is_enum_v<T>;

class Writer {
 public:
  explicit Writer(MessageKind kind) : bytes_(kLengthBytes, '\0') {
    (*this)(kind);
  }

  template <typename... Fields>
  void operator()(const Fields&... fields) {
    (Put(fields), ...);
  }

  std::string Finish() {
    const size_t payload = bytes_.size() - kLengthBytes;
    for (size_t i = 0; i < kLengthBytes; ++i) {
      bytes_[i] = static_cast<char>(payload >> (8 * i));
    }
    return std::move(bytes_);
  }

 private:
  template <typename T, std::enable_if_t<kIsNumber<T>, int> = 0>
  void Put(T value) {
    const auto bits = static_cast<uint64_t>(value);
    for (size_t i = 0; i < sizeof(T); ++i) {
      bytes_.push_back(static_cast<char>(bits >> (8 * i)));
    }
  }
  void Put(const std::string& text) {
    Put(static_cast<uint32_t>(text.size()));
    bytes_.append(text);
  }
  void Put(const std::vector<std::string>& list) {
    Put(static_cast<uint32_t>(list.size()));
    for (const std::string& text : list) Put(text);
  }

  std::string bytes_;
};

// After an error all further fields keep their values.
class Reader {
 public:
  explicit Reader(absl::string_view bytes) : bytes_(bytes) {}

  template <typename... Fields>
  void operator()(Fields&... fields) {
    (Take(&fields), ...);
  }

  // Whether all was there, and nothing else is.
  bool Complete() const { return ok_ && bytes_.empty(); }

 private:
  template <typename T, std::enable_if_t<kIsNumber<T>, int> = 0>
  void Take(T* value) {
    if (!Has(sizeof(T))) return;
    uint64_t bits = 0;
    for (size_t i = 0; i < sizeof(T); ++i) {
      bits |= static_cast<uint64_t>(static_cast<uint8_t>(bytes_[i])) << (8 * i);
    }
    *value = static_cast<T>(bits);
    bytes_.remove_prefix(sizeof(T));
  }
  void Take(std::string* text) {
    uint32_t size = 0;
    Take(&size);
    if (!Has(size)) return;
    text->assign(bytes_.data(), size);
    bytes_.remove_prefix(size);
  }
  void Take(std::vector<std::string>* list) {
    uint32_t count = 0;
    Take(&count);
    // Each has a length, at least.
    if (!Has(size_t{count} * kLengthBytes)) return;
    list->resize(count);
    for (std::string& text : *list) Take(&text);
  }
  bool Has(size_t bytes) {
    ok_ = ok_ && bytes_.size() >= bytes;
    return ok_;
  }

  absl::string_view bytes_;
  bool ok_ = true;
};

// The fields of each message in their order, for writing and for reading.
template <typename Archive, typename Message>
void Fields(Archive& archive, Message& m) {
  using T = std::remove_const_t<Message>;
  if constexpr (std::is_same_v<T, Hello>) {
    archive(m.magic, m.version, m.world_size, m.rank, m.node_rank, m.local_rank,
            m.pid, m.host, m.run_key, m.nonce);
  } else if constexpr (std::is_same_v<T, Challenge>) {
    archive(m.nonce, m.proof);
  } else if constexpr (std::is_same_v<T, Proof>) {
    archive(m.proof, m.patience_ms);
  } else if constexpr (std::is_same_v<T, Refusal>) {
    archive(m.reason, m.text);
  } else if constexpr (std::is_same_v<T, Met>) {
    archive(m.host_address);
  } else if constexpr (std::is_same_v<T, StoreRequest>) {
    archive(m.id, m.verb, m.timeout_ms, m.number, m.keys, m.values);
  } else {
    static_assert(std::is_same_v<T, StoreResponse>);
    archive(m.id, m.result, m.number, m.values, m.text);
  }
}

template <typename Message>
std::string EncodeAs(MessageKind kind, const Message& message) {
  Writer writer(kind);
  Fields(writer, message);
  return writer.Finish();
}

absl::Status NoMessage(absl::string_view what) {
  return absl::InvalidArgumentError(
      absl::StrCat("it isn't ", what, " of Capstan's meeting"));
}

template <typename Message>
absl::StatusOr<Message> ParseAs(MessageKind kind, absl::string_view what,
                                absl::string_view payload) {
  Reader reader(payload);
  MessageKind found{};
  reader(found);
  Message message;
  Fields(reader, message);
  if (!reader.Complete() || found != kind) return NoMessage(what);
  return message;
}

// Not inline: g++ 12 sees the length, and takes the move of a string that long
// for one of a short string, past its buffer.
__attribute__((noinline)) bool HasSize(const std::string& text, size_t size) {
  return text.size() == size;
}

template <typename T>
bool IsBetween(T value, T first, T last) {
  return value >= first && value <= last;
}

// At most kMaxNameBytes of it, safe to print.
std::string Printable(absl::string_view text) {
  return absl::Utf8SafeCEscape(text.substr(0, kMaxNameBytes));
}

std::string Hmac(absl::string_view key, absl::string_view text) {
  // A system's configuration of another OpenSSL must not matter here.
  static const int ready =
      OPENSSL_init_crypto(OPENSSL_INIT_NO_LOAD_CONFIG, nullptr);
  CHECK_EQ(ready, 1);
  unsigned char hash[EVP_MAX_MD_SIZE];
  unsigned int size = 0;
  const unsigned char* done =
      HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()),
           reinterpret_cast<const unsigned char*>(text.data()), text.size(),
           hash, &size);
  CHECK(done != nullptr && size == kProofBytes) << "SHA-256 isn't available";
  return std::string(reinterpret_cast<const char*>(hash), size);
}

}  // namespace

std::string Encode(const Hello& message) {
  return EncodeAs(MessageKind::kHello, message);
}
std::string Encode(const Challenge& message) {
  return EncodeAs(MessageKind::kChallenge, message);
}
std::string Encode(const Proof& message) {
  return EncodeAs(MessageKind::kProof, message);
}
std::string Encode(const Refusal& message) {
  Refusal cut = message;
  if (cut.text.size() > kMaxTextBytes) cut.text.resize(kMaxTextBytes);
  return EncodeAs(MessageKind::kRefusal, cut);
}
std::string Encode(const Met& message) {
  return EncodeAs(MessageKind::kMet, message);
}
std::string Encode(const StoreRequest& message) {
  return EncodeAs(MessageKind::kRequest, message);
}
std::string Encode(const StoreResponse& message) {
  return EncodeAs(MessageKind::kResponse, message);
}
std::string EncodeBare(MessageKind kind) { return Writer(kind).Finish(); }

absl::string_view PayloadOf(absl::string_view frame) {
  CHECK_GE(frame.size(), kLengthBytes);
  return frame.substr(kLengthBytes);
}

absl::optional<MessageKind> KindOf(absl::string_view payload) {
  if (payload.empty()) return absl::nullopt;
  const auto kind = static_cast<MessageKind>(payload[0]);
  if (!IsBetween(kind, MessageKind::kHello, MessageKind::kBye)) {
    return absl::nullopt;
  }
  return kind;
}

absl::StatusOr<Hello> ParseHello(absl::string_view payload) {
  constexpr char kWhat[] = "a greeting";
  Reader first(payload);
  MessageKind kind{};
  Hello start;
  first(kind, start.magic, start.version);
  if (kind != MessageKind::kHello || start.magic != kMeetingMagic) {
    return NoMessage(kWhat);
  }
  if (start.version != kMeetingVersion) return start;
  CAPSTAN_ASSIGN_OR_RETURN(Hello hello,
                           ParseAs<Hello>(MessageKind::kHello, kWhat, payload));
  if (hello.world_size < 1 || !IsBetween(hello.rank, 0, hello.world_size - 1) ||
      !HasSize(hello.nonce, kNonceBytes) || hello.host.size() > kMaxNameBytes ||
      hello.run_key.size() > kMaxNameBytes) {
    return NoMessage(kWhat);
  }
  hello.host = Printable(hello.host);
  return hello;
}

absl::StatusOr<Challenge> ParseChallenge(absl::string_view payload) {
  constexpr char kWhat[] = "a challenge";
  CAPSTAN_ASSIGN_OR_RETURN(
      Challenge challenge,
      ParseAs<Challenge>(MessageKind::kChallenge, kWhat, payload));
  if (!HasSize(challenge.nonce, kNonceBytes) ||
      !HasSize(challenge.proof, kProofBytes)) {
    return NoMessage(kWhat);
  }
  return challenge;
}

absl::StatusOr<Proof> ParseProof(absl::string_view payload) {
  constexpr char kWhat[] = "a proof";
  CAPSTAN_ASSIGN_OR_RETURN(Proof proof,
                           ParseAs<Proof>(MessageKind::kProof, kWhat, payload));
  if (!HasSize(proof.proof, kProofBytes) || proof.patience_ms < 0) {
    return NoMessage(kWhat);
  }
  return proof;
}

absl::StatusOr<Refusal> ParseRefusal(absl::string_view payload) {
  constexpr char kWhat[] = "a refusal";
  CAPSTAN_ASSIGN_OR_RETURN(
      Refusal refusal, ParseAs<Refusal>(MessageKind::kRefusal, kWhat, payload));
  if (!IsBetween(refusal.reason, RefusalReason::kOtherRun,
                 RefusalReason::kHostsGone)) {
    return NoMessage(kWhat);
  }
  refusal.text = absl::Utf8SafeCEscape(
      absl::string_view(refusal.text).substr(0, kMaxTextBytes));
  return refusal;
}

absl::StatusOr<Met> ParseMet(absl::string_view payload) {
  return ParseAs<Met>(MessageKind::kMet, "a word", payload);
}

absl::StatusOr<StoreRequest> ParseRequest(absl::string_view payload) {
  constexpr char kWhat[] = "a request";
  CAPSTAN_ASSIGN_OR_RETURN(
      StoreRequest request,
      ParseAs<StoreRequest>(MessageKind::kRequest, kWhat, payload));
  if (!IsBetween(request.verb, StoreVerb::kSet, StoreVerb::kGet) ||
      request.timeout_ms < 0) {
    return NoMessage(kWhat);
  }
  return request;
}

absl::StatusOr<StoreResponse> ParseResponse(absl::string_view payload) {
  constexpr char kWhat[] = "a response";
  CAPSTAN_ASSIGN_OR_RETURN(
      StoreResponse response,
      ParseAs<StoreResponse>(MessageKind::kResponse, kWhat, payload));
  if (!IsBetween(response.result, StoreResult::kOk, StoreResult::kRejected)) {
    return NoMessage(kWhat);
  }
  return response;
}

std::string Describe(const Hello& hello) {
  return absl::StrCat("rank ", hello.rank, " (host ", hello.host, ", process ",
                      hello.pid, ")");
}

absl::StatusOr<absl::optional<std::string>> FrameBuffer::Next() {
  const absl::string_view left = absl::string_view(bytes_).substr(taken_);
  if (left.size() < kLengthBytes) return absl::optional<std::string>();
  size_t size = 0;
  for (size_t i = 0; i < kLengthBytes; ++i) {
    size |= static_cast<size_t>(static_cast<uint8_t>(left[i])) << (8 * i);
  }
  if (size == 0 || size > max_payload_) return NoMessage("a message");
  if (left.size() < kLengthBytes + size) return absl::optional<std::string>();
  absl::optional<std::string> payload(
      std::string(left.substr(kLengthBytes, size)));
  taken_ += kLengthBytes + size;
  // Seldom enough that a buffer of many small frames isn't moved for each.
  if (taken_ == bytes_.size() || taken_ > (64 << 10)) {
    bytes_.erase(0, taken_);
    taken_ = 0;
  }
  return payload;
}

std::string RandomBytes(size_t count) {
  std::string bytes(count, '\0');
  for (size_t done = 0; done < count;) {
    const ssize_t n = getrandom(&bytes[done], count - done, 0);
    PCHECK(n >= 0 || errno == EINTR) << "no random numbers";
    done += static_cast<size_t>(std::max<ssize_t>(n, 0));
  }
  return bytes;
}

std::string ProofOf(Prover prover, absl::string_view token,
                    absl::string_view hello_payload,
                    absl::string_view challenge_nonce) {
  // Both parts after the label have lengths that the label and the hello give.
  return Hmac(absl::StrCat("capstan", token),
              absl::StrCat(prover == Prover::kRank0 ? "rank 0," : "a rank,",
                           challenge_nonce, hello_payload));
}

bool SameProof(absl::string_view a, absl::string_view b) {
  return a.size() == b.size() &&
         CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

std::string ShortHash(absl::string_view text) {
  return absl::BytesToHexString(Hmac("capstan", text).substr(0, 8));
}

}  // namespace capstan
