// SPDX-License-Identifier: Apache-2.0
#include "cluster/meet/protocol.h"

#include <glog/logging.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>

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
  } else if constexpr (std::is_same_v<T, MeetingPlace>) {
    archive(m.magic, m.version, m.port, m.pid, m.host, m.token, m.addresses);
  } else if constexpr (std::is_same_v<T, StoreRequest>) {
    archive(m.id, m.verb, m.timeout_ms, m.number, m.keys, m.values);
  } else {
    static_assert(std::is_same_v<T, StoreResponse>);
    archive(m.id, m.result, m.number, m.values, m.text);
  }
}

absl::Status NoMessage() {
  return absl::InvalidArgumentError("it isn't a message of Capstan's meeting");
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

bool IsValid(const Hello& hello) {
  return hello.magic == kMeetingMagic && hello.world_size >= 1 &&
         IsBetween(hello.rank, 0, hello.world_size - 1) &&
         HasSize(hello.nonce, kNonceBytes) &&
         hello.host.size() <= kMaxNameBytes &&
         hello.run_key.size() <= kMaxNameBytes;
}
bool IsValid(const Challenge& challenge) {
  return HasSize(challenge.nonce, kNonceBytes) &&
         HasSize(challenge.proof, kProofBytes);
}
bool IsValid(const Proof& proof) {
  return HasSize(proof.proof, kProofBytes) && proof.patience_ms >= 0;
}
bool IsValid(const Refusal& refusal) {
  return IsBetween(refusal.reason, RefusalReason::kOtherRun,
                   RefusalReason::kHostsGone);
}
bool IsValid(const Met&) { return true; }
bool IsValid(const MeetingPlace& place) {
  return place.magic == kMeetingMagic && place.version == kMeetingVersion &&
         IsBetween(place.port, 1, 65535) && !place.addresses.empty();
}
bool IsValid(const StoreRequest& request) {
  const bool takes_keys =
      IsBetween(request.verb, StoreVerb::kCheck, StoreVerb::kGet);
  const size_t keys = request.verb == StoreVerb::kCount ? 0 : 1;
  const size_t values = request.verb == StoreVerb::kSet          ? 1
                        : request.verb == StoreVerb::kCompareSet ? 2
                                                                 : 0;
  return IsBetween(request.verb, StoreVerb::kSet, StoreVerb::kGet) &&
         request.timeout_ms >= 0 && request.values.size() == values &&
         (takes_keys || request.keys.size() == keys);
}
bool IsValid(const StoreResponse& response) {
  return IsBetween(response.result, StoreResult::kOk, StoreResult::kRejected);
}

template <typename Message>
absl::StatusOr<Message> Parse(absl::string_view payload) {
  Reader reader(payload);
  MessageKind kind{};
  Message message;
  reader(kind);
  Fields(reader, message);
  if (!reader.Complete() || kind != Message::kKind || !IsValid(message)) {
    return NoMessage();
  }
  return message;
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

template <typename Message>
std::string Encode(const Message& message) {
  Writer writer(Message::kKind);
  if constexpr (std::is_same_v<Message, Refusal>) {
    writer(message.reason, message.text.substr(0, kMaxTextBytes));
  } else {
    Fields(writer, message);
  }
  return writer.Finish();
}
template std::string Encode(const Hello&);
template std::string Encode(const Challenge&);
template std::string Encode(const Proof&);
template std::string Encode(const Refusal&);
template std::string Encode(const Met&);
template std::string Encode(const MeetingPlace&);
template std::string Encode(const StoreRequest&);
template std::string Encode(const StoreResponse&);

std::string EncodeBare(MessageKind kind) { return Writer(kind).Finish(); }

absl::string_view PayloadOf(absl::string_view frame) {
  return frame.substr(std::min(frame.size(), kLengthBytes));
}

absl::optional<MessageKind> KindOf(absl::string_view payload) {
  if (payload.empty()) return absl::nullopt;
  const auto kind = static_cast<MessageKind>(payload[0]);
  if (!IsBetween(kind, MessageKind::kHello, MessageKind::kPlace)) {
    return absl::nullopt;
  }
  return kind;
}

absl::StatusOr<Hello> ParseHello(absl::string_view payload) {
  Reader reader(payload);
  MessageKind kind{};
  Hello start;
  reader(kind, start.magic, start.version);
  if (kind == Hello::kKind && start.magic == kMeetingMagic &&
      start.version != kMeetingVersion) {
    return start;
  }
  CAPSTAN_ASSIGN_OR_RETURN(Hello hello, Parse<Hello>(payload));
  hello.host = absl::Utf8SafeCEscape(hello.host);
  return hello;
}

absl::StatusOr<Refusal> ParseRefusal(absl::string_view payload) {
  CAPSTAN_ASSIGN_OR_RETURN(Refusal refusal, Parse<Refusal>(payload));
  refusal.text = absl::Utf8SafeCEscape(refusal.text.substr(0, kMaxTextBytes));
  return refusal;
}

absl::StatusOr<Challenge> ParseChallenge(absl::string_view payload) {
  return Parse<Challenge>(payload);
}
absl::StatusOr<Proof> ParseProof(absl::string_view payload) {
  return Parse<Proof>(payload);
}
absl::StatusOr<Met> ParseMet(absl::string_view payload) {
  return Parse<Met>(payload);
}
absl::StatusOr<MeetingPlace> ParsePlace(absl::string_view payload) {
  return Parse<MeetingPlace>(payload);
}
absl::StatusOr<StoreRequest> ParseRequest(absl::string_view payload) {
  return Parse<StoreRequest>(payload);
}
absl::StatusOr<StoreResponse> ParseResponse(absl::string_view payload) {
  return Parse<StoreResponse>(payload);
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
  if (size == 0 || size > max_payload_) return NoMessage();
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

}  // namespace capstan
