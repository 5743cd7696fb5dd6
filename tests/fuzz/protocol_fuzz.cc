// SPDX-License-Identifier: Apache-2.0
//
// What comes on a connection of the ranks' meeting, from anyone.
#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"
#include "cluster/meet/protocol.h"
#include "glog/logging.h"

namespace {

// What is parsed is written as it was read.
template <typename Message>
void CheckSame(const absl::StatusOr<Message>& message,
               absl::string_view payload) {
  if (!message.ok()) return;
  const std::string frame = capstan::Encode(*message);
  CHECK(capstan::PayloadOf(frame) == payload);
}

void ParseAll(absl::string_view payload) {
  using namespace capstan;  // NOLINT
  CheckSame(ParseChallenge(payload), payload);
  CheckSame(ParseProof(payload), payload);
  CheckSame(ParseMet(payload), payload);
  CheckSame(ParsePlace(payload), payload);
  CheckSame(ParseRequest(payload), payload);
  CheckSame(ParseResponse(payload), payload);
  // Of these, texts come back safe to print.
  const auto hello = ParseHello(payload);
  if (hello.ok()) Describe(*hello);
  const auto refusal = ParseRefusal(payload);
  if (refusal.ok()) Encode(*refusal);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const absl::string_view bytes(reinterpret_cast<const char*>(data), size);
  ParseAll(bytes);
  // As it comes: in two pieces.
  capstan::FrameBuffer buffer(capstan::kMaxStrangerPayload);
  for (const absl::string_view piece :
       {bytes.substr(0, size / 2), bytes.substr(size / 2)}) {
    buffer.Append(piece);
    while (true) {
      const auto payload = buffer.Next();
      if (!payload.ok()) return 0;
      if (!payload->has_value()) break;
      capstan::KindOf(**payload);
      ParseAll(**payload);
    }
  }
  return 0;
}
