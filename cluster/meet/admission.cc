// SPDX-License-Identifier: Apache-2.0
#include "cluster/meet/admission.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "cluster/launch/network.h"

namespace capstan {

namespace {

// "run slurm-7", or "a run without a name".
std::string RunName(absl::string_view run_key) {
  if (run_key.empty()) return "a run without a name";
  return absl::StrCat("run ",
                      absl::Utf8SafeCEscape(run_key.substr(0, kMaxNameBytes)));
}

// "1, 2, 3 and 1021 more".
std::string ListOfRanks(const std::vector<int>& ranks) {
  constexpr size_t kMost = 8;
  const size_t listed = std::min(ranks.size(), kMost);
  std::string text = absl::StrJoin(ranks.begin(), ranks.begin() + listed, ", ");
  if (ranks.size() > listed) {
    absl::StrAppend(&text, " and ", ranks.size() - listed, " more");
  }
  return text;
}

}  // namespace

Admission::Admission(int world_size, std::string run_key, std::string token)
    : run_key_(std::move(run_key)),
      token_(std::move(token)),
      ranks_(world_size) {}

absl::optional<Refusal> Admission::JudgeHello(const Hello& hello) const {
  if (hello.version != kMeetingVersion) {
    return Refusal{RefusalReason::kOtherVersion,
                   absl::StrCat("it is of another build of Capstan (version ",
                                hello.version, " of the meeting, here ",
                                kMeetingVersion, ")")};
  }
  if (hello.run_key != run_key_) {
    return Refusal{
        RefusalReason::kOtherRun,
        absl::StrCat("it belongs to ", RunName(hello.run_key),
                     ", and this is the meeting of ", RunName(run_key_))};
  }
  return failure_;
}

Challenge Admission::ChallengeFor(absl::string_view hello_payload) const {
  Challenge challenge;
  challenge.nonce = RandomBytes(kNonceBytes);
  challenge.proof =
      ProofOf(Prover::kRank0, token_, hello_payload, challenge.nonce);
  return challenge;
}

absl::optional<Refusal> Admission::JudgeProof(const Hello& hello,
                                              absl::string_view hello_payload,
                                              absl::string_view nonce,
                                              const Proof& proof) {
  if (!SameProof(proof.proof,
                 ProofOf(Prover::kRank, token_, hello_payload, nonce))) {
    return Refusal{
        RefusalReason::kOtherToken,
        absl::StrCat("it doesn't have the token of ", RunName(run_key_))};
  }
  if (failed()) return failure_;
  const int world_size = static_cast<int>(ranks_.size());
  if (hello.world_size != world_size) {
    return Refusal{
        RefusalReason::kWorldSize,
        absl::StrCat(Describe(hello), " was started as one of ",
                     hello.world_size, " ranks, and rank 0 as one of ",
                     world_size, ": start all with the same number")};
  }
  absl::optional<Hello>& place = ranks_[hello.rank];
  if (place.has_value()) {
    return Refusal{
        RefusalReason::kRankTaken,
        absl::StrCat("rank ", hello.rank, " is there already (host ",
                     place->host, ", process ", place->pid,
                     "), and came again (host ", hello.host, ", process ",
                     hello.pid, "): give each process a rank of its own")};
  }
  place = hello;
  ++joined_;
  return absl::nullopt;
}

void Admission::Leave(int rank) {
  if (!ranks_[rank].has_value()) return;
  ranks_[rank].reset();
  --joined_;
}

std::vector<int> Admission::MissingRanks() const {
  std::vector<int> missing;
  for (size_t rank = 0; rank < ranks_.size(); ++rank) {
    if (!ranks_[rank].has_value()) missing.push_back(static_cast<int>(rank));
  }
  return missing;
}

std::string AreMissing(const std::vector<int>& ranks) {
  return absl::StrCat(ranks.size() == 1 ? "rank " : "ranks ",
                      ListOfRanks(ranks),
                      ranks.size() == 1 ? " is missing" : " are missing");
}

std::string OnlySomeCame(int world_size, const std::vector<int>& missing) {
  return absl::StrCat("only ", world_size - static_cast<int>(missing.size()),
                      " of ", world_size,
                      " ranks came; missing: ", ListOfRanks(missing));
}

}  // namespace capstan
