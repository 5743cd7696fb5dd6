// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_DATASETS_STREAM_CELLS_H_
#define CAPSTAN_DATASETS_STREAM_CELLS_H_

#include <sys/types.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "datasets/stream/cell_store.h"
#include "datasets/stream/shard.h"
#include "datasets/stream/texts.h"
#include "plugins/sdk/tokenizer.h"
#include "text/tokens/token_file.h"

namespace capstan::stream {

// Where tokens of cells come from, in the shard's order. Thread-safe.
class CellSource {
 public:
  virtual ~CellSource() = default;
  virtual absl::StatusOr<CellTokens> Read(int64_t shard, int64_t cell) = 0;
  // -1: not known without reading it.
  virtual std::vector<int64_t> Counts(int64_t shard, int64_t first,
                                      int64_t count) const = 0;
  virtual void EndHelpers() {}
};

// What all processes of a host that read the same reader count together.
struct Tally {
  std::atomic<int64_t> made{0};     // tokens
  std::atomic<int64_t> busy_ns{0};  // while they were made
  std::atomic<int64_t> read{0};     // tokens that training has taken
  std::atomic<int64_t> waited_ns{0};
  std::atomic<int64_t> began_ns{0};
  std::atomic<int64_t> bad_rows{0};
  std::atomic<int64_t> readers{0};  // processes that have read
  std::atomic<int> said{0};
  std::atomic<int> said_bad{0};
  std::atomic<int> said_speed{0};
  std::atomic<int> said_counting{0};
};

// Tokenizes texts, and keeps what it has made in a CellStore.
struct TextSourceOptions {
  const std::vector<Shard>* shards = nullptr;
  std::shared_ptr<const Tokenizer> tokenizer;
  Texts* texts = nullptr;
  const CellStore* store = nullptr;
  const bool* keep = nullptr;  // the tokens; may change between reads
  bool skip_bad = false;       // rows
  Tally* tally = nullptr;
};
std::unique_ptr<CellSource> NewTextSource(const TextSourceOptions& options);

// Reads files of tokens, and fills in the shards' cells. With eos >= 0 a bare
// token file's documents end behind each such token.
absl::StatusOr<std::unique_ptr<CellSource>> NewTokenSource(
    std::vector<Shard>* shards, int64_t vocab_size, uint64_t tokenizer_hash,
    int64_t eos, int64_t token_bytes);

// The cells that were read last and those that are to be read next, made by
// threads that start in the process that first asks.
class Cells {
 public:
  struct Id {
    int64_t epoch = 0;
    int64_t shard = 0;
    int64_t cell = 0;
    bool operator<(const Id& other) const {
      return std::tie(epoch, shard, cell) <
             std::tie(other.epoch, other.shard, other.cell);
    }
  };
  struct Options {
    int workers = 0;
    size_t most = 8;  // cells in memory, beside those that are being read
    int64_t most_bytes = int64_t{1} << 30;  // of them, where documents are long
    bool shuffle = false;
    uint64_t seed = 0;
  };

  Cells(CellSource* source, const Options& options);
  ~Cells();

  // Its documents in the epoch's order.
  absl::StatusOr<std::shared_ptr<const CellTokens>> Get(const Id& id);
  // Has threads make it, if there are any.
  void Ahead(const Id& id);
  bool has_threads() const { return options_.workers > 0; }

 private:
  struct Slot {
    enum { kWanted, kBusy, kDone } state = kWanted;
    absl::Status status;
    std::shared_ptr<const CellTokens> tokens;
    std::list<Id>::iterator place;  // of one that is done, in `used`
  };
  // Of one process: a fork has no threads, and gets a new one.
  struct State {
    pid_t owner = 0;
    std::mutex mutex;
    std::condition_variable done;
    std::condition_variable wanted;
    std::map<Id, Slot> slots;
    std::list<Id> used;  // the last was used last
    int64_t bytes = 0;   // of all slots' tokens
    std::deque<Id> queue;
    bool stopping = false;
    std::vector<std::thread> threads;
  };

  State& OfThisProcess();
  static int64_t BytesOf(const Slot& slot);
  absl::StatusOr<std::shared_ptr<const CellTokens>> Make(const Id& id) const;
  void MakeSlot(State& state, const Id& id, std::unique_lock<std::mutex>* lock);
  void Run(State& state);

  CellSource& source_;
  const Options options_;
  std::mutex mutex_;
  std::unique_ptr<State> state_;
};

}  // namespace capstan::stream

#endif  // CAPSTAN_DATASETS_STREAM_CELLS_H_
