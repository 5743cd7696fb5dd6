// SPDX-License-Identifier: Apache-2.0
#include "cluster/comm/shm/shm_collectives.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "base/status.h"

namespace capstan {
namespace {

// Smaller all-reduces take one step instead of two: every rank computes the
// whole sum.
constexpr int64_t kSmallBytes = 16 << 10;

struct Range {
  int64_t begin;
  int64_t end;
  int64_t size() const { return end - begin; }
};

// Bytes of an element.
int64_t Width(c10::ScalarType type) {
  return static_cast<int64_t>(c10::elementSize(type));
}

int64_t CeilDivide(int64_t a, int64_t b) { return (a + b - 1) / b; }

}  // namespace

CollectiveCall ShmCollectives::Next(const char* operation, int64_t size,
                                    c10::ScalarType type, int root) {
  return MakeCall(++sequence_, operation, size, type, root);
}

void ShmCollectives::Reset() {
  meeting_->Reset();
  base_ = 0;
  sequence_ = 0;
}

absl::Status ShmCollectives::Run(const CollectiveCall& call, int64_t blocks,
                                 const Step& post, const Step& reduce,
                                 const Step& take) {
  const ShmStage ready = reduce != nullptr ? kReduced : kPosted;
  bool checked = false;
  int64_t posted = 0;
  int64_t reduced = 0;
  int64_t taken = 0;
  while (taken < blocks) {
    // Each step that can advance does one block. If none can, wait for the
    // last: the other ranks wait for it, too.
    bool went_on = false;
    int lagging = -1;
    ShmStage stage = kTaken;
    uint64_t wanted = 0;
    const auto all_have_done = [&](ShmStage before, uint64_t count) {
      const int behind = meeting_->Lagging(before, count);
      if (behind >= 0) {
        lagging = behind;
        stage = before;
        wanted = count;
      }
      return behind < 0;
    };
    const auto advance = [&](const Step& step, int64_t* done,
                             ShmStage done_is) {
      step((*done)++);
      meeting_->Publish(done_is, base_ + *done);
      went_on = true;
    };
    // A slot is free once all have taken its contents.
    const uint64_t next = base_ + posted + 1;
    if (posted < blocks &&
        (next <= kShmSlots || all_have_done(kTaken, next - kShmSlots))) {
      if (posted == 0) meeting_->Call(base_, call);
      advance(post, &posted, kPosted);
    }
    if (!checked && posted > 0 && all_have_done(kPosted, base_ + 1)) {
      CAPSTAN_RETURN_IF_ERROR(meeting_->CheckCalls(base_));
      checked = true;
    }
    if (reduce == nullptr) {
      reduced = posted;
    } else if (checked && reduced < posted &&
               all_have_done(kPosted, base_ + reduced + 1)) {
      advance(reduce, &reduced, kReduced);
    }
    if (checked && taken < reduced && all_have_done(ready, base_ + taken + 1)) {
      advance(take, &taken, kTaken);
    }
    if (!went_on) {
      CAPSTAN_RETURN_IF_ERROR(meeting_->Await(lagging, stage, wanted));
    }
  }
  base_ += blocks;
  return absl::OkStatus();
}

absl::Status ShmCollectives::Barrier() {
  const auto nothing = [](int64_t) {};
  return Run(Next("barrier", 0, c10::ScalarType::Byte), 1, nothing, nullptr,
             nothing);
}

absl::Status ShmCollectives::AllReduceSmall(char* data, int64_t count,
                                            c10::ScalarType type) {
  const int64_t bytes = count * Width(type);
  return Run(
      Next("all-reduce", count, type), 1,
      [&](int64_t k) { std::memcpy(slot(rank(), k), data, bytes); }, nullptr,
      [&](int64_t k) {
        std::vector<const void*> sources;
        for (int i = 0; i < size(); ++i) sources.push_back(slot(i, k));
        SumOf(type)(sources.data(), size(), data, count);
      });
}

absl::Status ShmCollectives::AllReduce(char* data, int64_t size,
                                       c10::ScalarType type) {
  const int64_t width = Width(type);
  const SumFunction sum = SumOf(type);
  if (size * width <= kSmallBytes) return AllReduceSmall(data, size, type);
  const int ranks = meeting_->size();
  const int64_t block = PieceBytes() / width * ranks;
  // The elements of block k that `rank` reduces.
  const auto piece = [&](int64_t k, int rank) {
    const int64_t count = std::min(block, size - k * block);
    const int64_t line = 64 / width;
    const int64_t part = CeilDivide(CeilDivide(count, ranks), line) * line;
    return Range{k * block + std::min(rank * part, count),
                 k * block + std::min((rank + 1) * part, count)};
  };
  const auto at = [&](int owner, int64_t k, int rank) {
    return slot(owner, k) + rank * PieceBytes();
  };
  return Run(
      Next("all-reduce", size, type), CeilDivide(size, block),
      [&](int64_t k) {
        for (int i = 0; i < ranks; ++i) {
          if (i == rank()) continue;
          const Range range = piece(k, i);
          std::memcpy(at(rank(), k, i), data + range.begin * width,
                      range.size() * width);
        }
      },
      [&](int64_t k) {
        const Range range = piece(k, rank());
        char* const mine = data + range.begin * width;
        std::vector<const void*> sources;
        for (int i = 0; i < ranks; ++i) {
          sources.push_back(i == rank() ? mine : at(i, k, rank()));
        }
        sum(sources.data(), ranks, mine, range.size());
        // No rank posts this rank's own piece to it, so its place is free.
        std::memcpy(at(rank(), k, rank()), mine, range.size() * width);
      },
      [&](int64_t k) {
        for (int i = 0; i < ranks; ++i) {
          if (i == rank()) continue;
          const Range range = piece(k, i);
          std::memcpy(data + range.begin * width, at(i, k, i),
                      range.size() * width);
        }
      });
}

absl::Status ShmCollectives::ReduceScatter(char* output, const char* input,
                                           int64_t size, c10::ScalarType type) {
  const int ranks = meeting_->size();
  const int64_t width = Width(type);
  const SumFunction sum = SumOf(type);
  const int64_t block = PieceBytes() / width;
  const auto at = [&](int owner, int64_t k, int rank) {
    return slot(owner, k) + rank * PieceBytes();
  };
  return Run(
      Next("reduce-scatter", size, type), CeilDivide(size, block),
      [&](int64_t k) {
        const int64_t count = std::min(block, size - k * block);
        for (int i = 0; i < ranks; ++i) {
          if (i == rank()) continue;
          std::memcpy(at(rank(), k, i), input + (i * size + k * block) * width,
                      count * width);
        }
      },
      nullptr,
      [&](int64_t k) {
        const char* const mine = input + (rank() * size + k * block) * width;
        std::vector<const void*> sources;
        for (int i = 0; i < ranks; ++i) {
          sources.push_back(i == rank() ? mine : at(i, k, rank()));
        }
        sum(sources.data(), ranks, output + k * block * width,
            std::min(block, size - k * block));
      });
}

absl::Status ShmCollectives::AllGather(char* output, const char* input,
                                       int64_t bytes) {
  const auto count = [&](int64_t k) {
    return std::min(kShmSlotBytes, bytes - k * kShmSlotBytes);
  };
  const int ranks = size();
  char* const mine = output + rank() * bytes;
  return Run(
      Next("all-gather", bytes, c10::ScalarType::Byte),
      CeilDivide(bytes, kShmSlotBytes),
      [&](int64_t k) {
        const char* const from = input + k * kShmSlotBytes;
        std::memcpy(slot(rank(), k), from, count(k));
        if (mine != input) {
          std::memcpy(mine + k * kShmSlotBytes, from, count(k));
        }
      },
      nullptr,
      [&](int64_t k) {
        for (int i = 0; i < ranks; ++i) {
          if (i == rank()) continue;
          std::memcpy(output + i * bytes + k * kShmSlotBytes, slot(i, k),
                      count(k));
        }
      });
}

absl::Status ShmCollectives::Broadcast(char* data, int64_t bytes, int root) {
  const auto count = [&](int64_t k) {
    return std::min(kShmSlotBytes, bytes - k * kShmSlotBytes);
  };
  return Run(
      Next("broadcast", bytes, c10::ScalarType::Byte, root),
      CeilDivide(bytes, kShmSlotBytes),
      [&](int64_t k) {
        if (rank() != root) return;
        std::memcpy(slot(root, k), data + k * kShmSlotBytes, count(k));
      },
      nullptr,
      [&](int64_t k) {
        if (rank() == root) return;
        std::memcpy(data + k * kShmSlotBytes, slot(root, k), count(k));
      });
}

absl::Status ShmCollectives::AllToAll(char* output, const char* input,
                                      int64_t bytes) {
  const int64_t piece = PieceBytes();
  const auto count = [&](int64_t k) {
    return std::min(piece, bytes - k * piece);
  };
  return Run(
      Next("all-to-all", bytes, c10::ScalarType::Byte),
      CeilDivide(bytes, piece),
      [&](int64_t k) {
        for (int i = 0; i < size(); ++i) {
          const char* const from = input + i * bytes + k * piece;
          std::memcpy(i == rank() ? output + i * bytes + k * piece
                                  : slot(rank(), k) + i * piece,
                      from, count(k));
        }
      },
      nullptr,
      [&](int64_t k) {
        for (int i = 0; i < size(); ++i) {
          if (i == rank()) continue;
          std::memcpy(output + i * bytes + k * piece,
                      slot(i, k) + rank() * piece, count(k));
        }
      });
}

absl::Status ShmCollectives::SendRecv(char* output, int from, const char* input,
                                      int to, int64_t bytes) {
  const auto count = [&](int64_t k) {
    return std::min(kShmSlotBytes, bytes - k * kShmSlotBytes);
  };
  return Run(
      Next("send-recv", bytes, c10::ScalarType::Byte),
      CeilDivide(bytes, kShmSlotBytes),
      [&](int64_t k) {
        if (to < 0) return;
        std::memcpy(slot(rank(), k), input + k * kShmSlotBytes, count(k));
      },
      nullptr,
      [&](int64_t k) {
        if (from < 0) return;
        std::memcpy(output + k * kShmSlotBytes, slot(from, k), count(k));
      });
}

}  // namespace capstan
