// SPDX-License-Identifier: Apache-2.0
#include "cluster/meet/protocol.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cluster/launch/network.h"

namespace capstan {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

Hello SomeHello() {
  Hello hello;
  hello.world_size = 8;
  hello.rank = 3;
  hello.node_rank = 1;
  hello.local_rank = 2;
  hello.pid = 123456789012;
  hello.host = "n1";
  hello.run_key = "slurm-7.0";
  hello.nonce = std::string(kNonceBytes, 'n');
  return hello;
}

StoreRequest SomeRequest() {
  StoreRequest request;
  request.id = 17;
  request.verb = StoreVerb::kCompareSet;
  request.timeout_ms = 1000;
  request.number = -5;
  request.keys = {"key"};
  request.values = {std::string("\0\xff", 2), ""};
  return request;
}

StoreResponse SomeResponse() {
  StoreResponse response;
  response.id = 18;
  response.result = StoreResult::kTimedOut;
  response.number = -1;
  response.values = {"x", ""};
  response.text = "why";
  return response;
}

MeetingPlace SomePlace() {
  MeetingPlace place;
  place.port = 29500;
  place.addresses = {"10.0.0.1"};
  return place;
}

std::vector<std::string> SomeFrames() {
  return {Encode(SomeHello()),
          Encode(Challenge{std::string(kNonceBytes, 'a'),
                           std::string(kProofBytes, 'b')}),
          Encode(Proof{std::string(kProofBytes, 'c'), 300000}),
          Encode(Refusal{RefusalReason::kRankTaken, "taken"}),
          Encode(Met{"10.0.0.1"}),
          Encode(SomePlace()),
          Encode(SomeRequest()),
          Encode(SomeResponse()),
          EncodeBare(MessageKind::kAdmitted),
          EncodeBare(MessageKind::kBye)};
}

// How many of the parsers take it; none may crash.
int Parses(absl::string_view payload) {
  return ParseHello(payload).ok() + ParseChallenge(payload).ok() +
         ParseProof(payload).ok() + ParseRefusal(payload).ok() +
         ParseMet(payload).ok() + ParsePlace(payload).ok() +
         ParseRequest(payload).ok() + ParseResponse(payload).ok();
}

TEST(ProtocolTest, MessagesSurvive) {
  const Hello hello = ParseHello(PayloadOf(Encode(SomeHello()))).value();
  EXPECT_EQ(hello.world_size, 8);
  EXPECT_EQ(hello.rank, 3);
  EXPECT_EQ(hello.node_rank, 1);
  EXPECT_EQ(hello.local_rank, 2);
  EXPECT_EQ(hello.pid, 123456789012);
  EXPECT_EQ(hello.run_key, "slurm-7.0");
  EXPECT_EQ(Describe(hello), "rank 3 (host n1, process 123456789012)");

  const StoreRequest request =
      ParseRequest(PayloadOf(Encode(SomeRequest()))).value();
  EXPECT_EQ(request.id, 17u);
  EXPECT_EQ(request.verb, StoreVerb::kCompareSet);
  EXPECT_EQ(request.number, -5);
  EXPECT_THAT(request.keys, ElementsAre("key"));
  EXPECT_EQ(request.values, SomeRequest().values);

  const StoreResponse response =
      ParseResponse(PayloadOf(Encode(SomeResponse()))).value();
  EXPECT_EQ(response.result, StoreResult::kTimedOut);
  EXPECT_EQ(response.number, -1);
  EXPECT_THAT(response.values, ElementsAre("x", ""));
  EXPECT_EQ(response.text, "why");

  const std::string met = Encode(Met{"fd00::1"});
  EXPECT_EQ(ParseMet(PayloadOf(met)).value().host_address, "fd00::1");
}

TEST(ProtocolTest, EachPayloadIsOneKindOfMessage) {
  for (const std::string& frame : SomeFrames()) {
    const absl::string_view payload = PayloadOf(frame);
    const auto kind = KindOf(payload);
    ASSERT_TRUE(kind.has_value());
    const bool bare =
        *kind == MessageKind::kAdmitted || *kind == MessageKind::kBye;
    EXPECT_EQ(Parses(payload), bare ? 0 : 1);
  }
  EXPECT_FALSE(KindOf("").has_value());
  EXPECT_FALSE(KindOf("GET / HTTP/1.1\r\n").has_value());
}

TEST(ProtocolTest, PartsOfMessagesAndMoreAreErrors) {
  for (const std::string& frame : SomeFrames()) {
    const std::string payload(PayloadOf(frame));
    for (size_t size = 0; size < payload.size(); ++size) {
      EXPECT_EQ(Parses(payload.substr(0, size)), 0) << size;
    }
    if (payload.size() > 1) {
      EXPECT_EQ(Parses(payload + "x"), 0);
    }
  }
}

TEST(ProtocolTest, AnyBytesAreAMessageOrAnError) {
  std::mt19937 random(1);
  const std::vector<std::string> frames = SomeFrames();
  for (int i = 0; i < 20000; ++i) {
    std::string payload(PayloadOf(frames[random() % frames.size()]));
    for (unsigned changes = random() % 4 + 1; changes > 0; --changes) {
      payload[random() % payload.size()] = static_cast<char>(random());
    }
    Parses(payload);
    FrameBuffer buffer(kMaxStrangerPayload);
    buffer.Append(payload);
    for (auto next = buffer.Next(); next.ok() && next->has_value();
         next = buffer.Next()) {
      Parses(**next);
    }
  }
}

// A count or a length that the rest can't hold must not be allocated.
TEST(ProtocolTest, LengthsAreChecked) {
  std::string payload(PayloadOf(Encode(SomeRequest())));
  const size_t keys = 1 + 4 + 1 + 8 + 8;  // where the count of keys is
  for (size_t i = 0; i < 4; ++i) payload[keys + i] = '\xff';
  EXPECT_FALSE(ParseRequest(payload).ok());
}

TEST(ProtocolTest, ARequestHasTheKeysAndValuesOfItsVerb) {
  const auto parses = [](StoreVerb verb, size_t keys, size_t values) {
    StoreRequest request;
    request.verb = verb;
    request.keys.resize(keys);
    request.values.resize(values);
    return ParseRequest(PayloadOf(Encode(request))).ok();
  };
  EXPECT_TRUE(parses(StoreVerb::kSet, 1, 1));
  EXPECT_FALSE(parses(StoreVerb::kSet, 2, 1));
  EXPECT_FALSE(parses(StoreVerb::kSet, 1, 0));
  EXPECT_TRUE(parses(StoreVerb::kCompareSet, 1, 2));
  EXPECT_FALSE(parses(StoreVerb::kCompareSet, 1, 1));
  EXPECT_FALSE(parses(StoreVerb::kAdd, 0, 0));
  EXPECT_FALSE(parses(StoreVerb::kDelete, 2, 0));
  EXPECT_TRUE(parses(StoreVerb::kCount, 0, 0));
  for (const StoreVerb verb :
       {StoreVerb::kCheck, StoreVerb::kWait, StoreVerb::kGet}) {
    EXPECT_TRUE(parses(verb, 0, 0));
    EXPECT_TRUE(parses(verb, 3, 0));
    EXPECT_FALSE(parses(verb, 1, 1));
  }
  EXPECT_FALSE(parses(static_cast<StoreVerb>(0), 1, 0));
  EXPECT_FALSE(parses(static_cast<StoreVerb>(9), 1, 0));
}

TEST(ProtocolTest, AHelloMustMakeSense) {
  const auto parses = [](const Hello& hello) {
    return ParseHello(PayloadOf(Encode(hello))).ok();
  };
  EXPECT_TRUE(parses(SomeHello()));
  Hello hello = SomeHello();
  hello.rank = 8;
  EXPECT_FALSE(parses(hello));
  hello = SomeHello();
  hello.rank = -1;
  EXPECT_FALSE(parses(hello));
  hello = SomeHello();
  hello.nonce.pop_back();
  EXPECT_FALSE(parses(hello));
  hello = SomeHello();
  hello.host = std::string(kMaxNameBytes + 1, 'h');
  EXPECT_FALSE(parses(hello));
  hello = SomeHello();
  hello.magic += 1;
  EXPECT_FALSE(parses(hello));
}

TEST(ProtocolTest, AHelloOfAnotherVersionIsRecognized) {
  Hello hello = SomeHello();
  hello.version = 7;
  std::string payload(PayloadOf(Encode(hello)));
  EXPECT_EQ(ParseHello(payload).value().version, 7);
  EXPECT_EQ(ParseHello(payload + "what it will have").value().version, 7);
}

TEST(ProtocolTest, WhatIsPrintedIsPrintable) {
  Hello hello = SomeHello();
  hello.host = "a\n\x1b[31mb";
  EXPECT_THAT(ParseHello(PayloadOf(Encode(hello))).value().host,
              Not(HasSubstr("\n")));
  const std::string refusal =
      Encode(Refusal{RefusalReason::kOtherRun, std::string(5000, '\n')});
  EXPECT_LT(refusal.size(), kMaxStrangerPayload);
  EXPECT_THAT(ParseRefusal(PayloadOf(refusal)).value().text,
              Not(HasSubstr("\n")));
}

TEST(FrameBufferTest, CutsAStreamInPieces) {
  std::string stream;
  for (const std::string& frame : SomeFrames()) stream += frame;
  for (size_t piece : {1, 3, 100, 100000}) {
    FrameBuffer buffer(kMaxPayload);
    std::string again;
    for (size_t begin = 0; begin < stream.size(); begin += piece) {
      buffer.Append(stream.substr(begin, piece));
      for (auto next = buffer.Next().value(); next.has_value();
           next = buffer.Next().value()) {
        const auto size = static_cast<uint32_t>(next->size());
        for (int i = 0; i < 4; ++i) {
          again.push_back(static_cast<char>(size >> (8 * i)));
        }
        again += *next;
      }
    }
    EXPECT_EQ(again, stream);
  }
}

TEST(FrameBufferTest, RefusesLongAndEmptyFramesByTheirLength) {
  for (const std::string& start :
       {std::string("GET / HTTP/1.1\r\n"), std::string("SSH-2.0-x"),
        std::string("\x16\x03\x01\x02", 4), std::string(4, '\0')}) {
    FrameBuffer buffer(kMaxStrangerPayload);
    buffer.Append(start.substr(0, 3));
    EXPECT_TRUE(buffer.Next().ok());
    buffer.Append(start.substr(3));
    EXPECT_FALSE(buffer.Next().ok()) << start;
  }
}

TEST(ProofTest, DependsOnAllThatIsProved) {
  const std::string proof = ProofOf(Prover::kRank, "token", "hello", "nonce");
  EXPECT_EQ(proof.size(), kProofBytes);
  EXPECT_TRUE(
      SameProof(proof, ProofOf(Prover::kRank, "token", "hello", "nonce")));
  for (const std::string& other :
       {ProofOf(Prover::kRank0, "token", "hello", "nonce"),
        ProofOf(Prover::kRank, "token2", "hello", "nonce"),
        ProofOf(Prover::kRank, "", "hello", "nonce"),
        ProofOf(Prover::kRank, "token", "hello2", "nonce"),
        ProofOf(Prover::kRank, "token", "hello", "nonce2"), std::string()}) {
    EXPECT_FALSE(SameProof(proof, other));
  }
  EXPECT_NE(RandomBytes(32), RandomBytes(32));
}

}  // namespace
}  // namespace capstan
