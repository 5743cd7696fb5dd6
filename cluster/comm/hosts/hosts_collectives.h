// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_CLUSTER_COMM_HOSTS_HOSTS_COLLECTIVES_H_
#define CAPSTAN_CLUSTER_COMM_HOSTS_HOSTS_COLLECTIVES_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <vector>

#include "absl/status/status.h"
#include "cluster/comm/hosts/host_failures.h"
#include "cluster/comm/hosts/host_layout.h"
#include "cluster/comm/hosts/host_links.h"
#include "cluster/comm/hosts/host_pipeline.h"
#include "cluster/comm/shm/shm_meeting.h"
#include "cluster/comm/shm/shm_sum.h"
#include "cluster/comm/sync_collectives.h"

namespace capstan {

// Collectives of ranks on several hosts, over shared memory inside a host and
// messages between the hosts' leaders, pipelined in blocks. Results are
// bit-identical to ShmCollectives', wherever the ranks are: a sum passes along
// the segments of the layout, each of which adds its ranks' values, and the
// result returns the same way. Errors name the rank, or the other host's
// leader, that has left.
class HostsCollectives final : public SyncCollectives {
 public:
  // More would need more steps than HostPipeline has.
  static constexpr int kMaxSegments = 16;
  // Buffers of the meeting's segment for a host of `segments` segments.
  static int Buffers(int segments) { return 1 + segments; }

  // Connects the leaders, by host, with keys of this prefix; throws.
  using Connect = std::function<c10::intrusive_ptr<c10d::Backend>(
      const std::string& prefix)>;

  // `names` are the ranks' numbers in the run. `meeting` joins this host's
  // ranks, in order, and has Buffers() buffers. Leaders call `connect` at once,
  // and again when first needed after a failure; `prefix` is the group's own.
  // If `failures` is null, the group makes its own from `store`.
  HostsCollectives(HostLayout layout, std::vector<int> names,
                   std::unique_ptr<ShmMeeting> meeting, std::string prefix,
                   Connect connect, std::shared_ptr<HostFailures> failures,
                   c10::intrusive_ptr<c10d::Store> store);

  // The links' threads use the pipeline, so they end first.
  ~HostsCollectives() override { Disconnect(); }

  const std::shared_ptr<HostFailures>& failures() const { return failures_; }

  int rank() const override { return layout_.rank(); }
  int size() const override { return layout_.size(); }
  int name(int rank) const override { return names_[rank]; }

  absl::Status Barrier() override;
  absl::Status AllReduce(char* data, int64_t size,
                         c10::ScalarType type) override;
  absl::Status ReduceScatter(char* output, const char* input, int64_t size,
                             c10::ScalarType type) override;
  absl::Status AllGather(char* output, const char* input,
                         int64_t bytes) override;
  absl::Status Broadcast(char* data, int64_t bytes, int root) override;
  absl::Status AllToAll(char* output, const char* input,
                        int64_t bytes) override;
  absl::Status SendRecv(char* output, int from, const char* input, int to,
                        int64_t bytes) override;
  void Leave() override;
  void Stop() override { meeting_->Stop(); }
  ShmMeeting* meeting() override { return meeting_.get(); }
  void TellHosts(const PhaseFailure& failure) override {
    failures_->Tell(failure);
  }
  void Disconnect() override {
    if (links_ != nullptr) links_->Close();
  }
  void Reset() override;

 private:
  struct Range {
    int64_t begin;
    int64_t end;
    int64_t size() const { return end - begin; }
  };
  // How a collective's data is divided. A row is a rank's slice, or all data if
  // ranks have no slices; a block is a range of columns of every row. Buffers
  // hold the rows in the order of HostLayout::position, without gaps.
  struct Blocks {
    int64_t rows;
    int64_t columns;  // elements per row
    int64_t width;    // bytes per element
    int64_t block;    // columns of all blocks but the last
    int64_t count() const { return (columns + block - 1) / block; }
    int64_t ColumnsOf(int64_t k) const {
      return k + 1 < count() ? block : columns - k * block;
    }
  };
  struct Reduction {
    const char* input;
    Blocks blocks;
    PartialSum sum;
    // The first segment sends its single rank's values as they are.
    bool first_is_plain;
  };
  using Take = std::function<void(int64_t block)>;

  // `buffer_width`: bytes that an element takes in buffers, at most.
  static Blocks Cut(int64_t rows, int64_t columns, int64_t width,
                    int64_t buffer_width);
  // The elements of block k, counted as in a buffer, that this rank sums.
  Range Piece(const Blocks& blocks, int64_t k) const;
  // Calls run(offset in a buffer, offset in the user's memory, length), in
  // elements, for each run that is contiguous in both.
  void ForRuns(const Blocks& blocks, int64_t k, Range range,
               const std::function<void(int64_t, int64_t, int64_t)>& run) const;

  // Sums over the ranks; calls `take` once the result, or this host's rows of
  // it, is in result().
  absl::Status Reduce(const CollectiveCall& call, const Reduction& reduction,
                      const Take& take);
  // For a few elements: every host sends its ranks' values to host 0.
  absl::Status AllReduceAtHost0(char* data, int64_t size, c10::ScalarType type);

  // Writes what the other local ranks sum into this rank's slot.
  void Post(const Reduction& reduction, int64_t k) const;
  // Adds the values of a segment's ranks to this rank's piece of the sum.
  void AddValues(const Reduction& reduction, int segment, int buffer,
                 int64_t k) const;
  // Bytes that an element takes in buffers, at most.
  int64_t BufferWidth(int64_t width, const PartialSum& sum) const;
  // Bytes per element of the sum that a segment passes on.
  int64_t WidthAfter(const Reduction& reduction, int segment) const;

  // Adds the steps of one of this host's segments, which uses partial(buffer),
  // to those that begin with step `post`. Returns the step that sums.
  int AddSegment(const Reduction& reduction, int segment, int buffer, int post,
                 HostSteps* steps) const;
  // Adds the steps that bring the result to all hosts. On host `from` it is in
  // result() after step `ready`, which then waits until result() is free; a
  // host gets its own rows and those that it passes on.
  void AddReturn(const Blocks& blocks, int from, int ready, const Take& take,
                 HostSteps* steps) const;
  // The rows that `host` gets from the host below or above.
  Range ReturnedRows(const Blocks& blocks, bool from_above, int host) const;
  HostMessage RowsMessage(const Blocks& blocks, bool send, int host, Range rows,
                          int64_t k) const;

  // A local rank's slot for block k, and the host's buffers.
  char* slot(int local, int64_t k) const {
    return meeting_->segment()->slot(local, pipeline_.base() + k);
  }
  char* result(int64_t k) const {
    return meeting_->segment()->buffer(0, pipeline_.base() + k);
  }
  char* partial(int buffer, int64_t k) const {
    return meeting_->segment()->buffer(1 + buffer, pipeline_.base() + k);
  }
  int local() const { return layout_.local(rank()); }

  // Makes links_ on a leader that has none; throws what connect_ throws.
  void ConnectLinks();
  // This rank's next collective.
  CollectiveCall Next(const char* operation, int64_t size, c10::ScalarType type,
                      int root = -1);
  absl::Status Run(const CollectiveCall& call, const HostSteps& steps,
                   int64_t blocks);

  const HostLayout layout_;
  const std::vector<int> names_;
  const std::unique_ptr<ShmMeeting> meeting_;
  const std::string prefix_;
  const Connect connect_;
  const bool owns_failures_;
  const std::shared_ptr<HostFailures> failures_;
  std::unique_ptr<HostLinks> links_;
  HostPipeline pipeline_;
  int64_t sequence_ = 0;
};

}  // namespace capstan

#endif  // CAPSTAN_CLUSTER_COMM_HOSTS_HOSTS_COLLECTIVES_H_
