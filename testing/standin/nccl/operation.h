// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TESTING_STANDIN_NCCL_OPERATION_H_
#define CAPSTAN_TESTING_STANDIN_NCCL_OPERATION_H_

#include <chrono>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "testing/standin/device.h"
#include "testing/standin/nccl/communicator.h"

namespace capstan::standin {

// What is wrong with a call because the setting `fault` wants it: it fails, or
// the device stays in it.
enum class Fault { kNone, kFails, kStalls };

// A call of a communicator. Host threads make it; then it belongs to the
// device's thread.
class Operation {
 public:
  // `ticket`: its place among the communicator's calls; negative for one that a
  // graph captures, which begins whenever the communicator is free.
  Operation(std::shared_ptr<Communicator> communicator, Fault fault)
      : communicator_(std::move(communicator)), fault_(fault) {}
  virtual ~Operation() = default;

  void set_ticket(int64_t ticket) { ticket_ = ticket; }

  // Work::run. Afterwards it can be run again.
  Progress Run();

  virtual std::string name() const = 0;
  virtual void Describe(Work* work) const = 0;

 protected:
  // Shows the others that this call has begun.
  virtual void Begin() = 0;
  // Does what can be done without waiting; true if something was, and *done if
  // nothing is left.
  virtual bool Advance(bool* done) = 0;
  // Among the communicator's collectives, from 1.
  virtual int64_t number() const = 0;
  // What it waits for, for people.
  virtual std::string WaitsFor() const = 0;

  Board& board() const { return *communicator_->board_; }
  Communicator& communicator() const { return *communicator_; }
  int64_t& last_round() const { return communicator_->round_; }
  // Reports that ranks disagree. The call will never be done.
  void Disagree(const std::string& text);

 private:
  Progress End();
  bool Broken();

  const std::shared_ptr<Communicator> communicator_;
  const Fault fault_;
  int64_t ticket_ = -1;
  bool begun_ = false;
  bool disagrees_ = false;
  bool reported_ = false;
  std::chrono::steady_clock::time_point idle_since_;
};

class Collective final : public Operation {
 public:
  Collective(std::shared_ptr<Communicator> communicator, Fault fault,
             const Arguments& arguments);

  std::string name() const override { return NameOf(arguments_.call.kind); }
  void Describe(Work* work) const override;

 private:
  void Begin() override;
  bool Advance(bool* done) override;
  int64_t number() const override { return number_; }
  std::string WaitsFor() const override;

  // Whether all have begun this call; reports if they disagree.
  bool Agreed();
  void Write(int64_t round);
  void Read(int64_t round);
  // Elements [begin, begin + length) of `count` are in this round.
  int64_t RoundBegin(int64_t round) const;
  int64_t RoundLength(int64_t round) const;
  // Whether each rank gets another part of a rank's input.
  bool Scatters() const;

  const Arguments arguments_;
  const int64_t width_;
  int64_t per_round_ = 0;  // elements
  int64_t rounds_ = 0;
  int64_t number_ = 0;  // of this call, from 1
  bool agreed_ = false;
  Reduction reduction_;
  // Rounds of the communicator that this call is.
  int64_t first_ = 0;
  int64_t next_write_ = 0;
  int64_t next_read_ = 0;
};

// Sends and receives of a group on one communicator.
class Messages final : public Operation {
 public:
  Messages(std::shared_ptr<Communicator> communicator, Fault fault,
           std::vector<Message> messages);

  std::string name() const override;
  void Describe(Work* work) const override;

 private:
  struct Way {
    Message message;
    int64_t bytes = 0;
    int64_t moved = 0;
    bool done = false;
  };

  void Begin() override;
  bool Advance(bool* done) override;
  // Of any collective's failure it learns.
  int64_t number() const override {
    return std::numeric_limits<int64_t>::max();
  }
  std::string WaitsFor() const override;
  bool Send(Way* way);
  bool Receive(Way* way);

  std::vector<Way> ways_;
};

}  // namespace capstan::standin

#endif  // CAPSTAN_TESTING_STANDIN_NCCL_OPERATION_H_
