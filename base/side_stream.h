// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_BASE_SIDE_STREAM_H_
#define CAPSTAN_BASE_SIDE_STREAM_H_

#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include <functional>
#include <memory>

namespace capstan {

// A stream of a GPU beside the current one, for copies that shall not hold up
// computation. On the CPU everything happens at once.
//
// Memory is the current stream's: tensors that Run uses are made before it, and
// released after Join (or after something that waits for Run's work).
class SideStream {
 public:
  explicit SideStream(c10::Device device);
  ~SideStream();

  // Calls `issue` with this as the current stream. What it starts there begins
  // when the current stream has done all that it has been given so far.
  void Run(const std::function<void()>& issue);
  // The current stream goes on when this one has done all that it has been
  // given so far.
  void Join();
  // Blocks the host until this stream is idle.
  void Wait();

 private:
  struct Events;

  c10::Stream stream_;
  std::unique_ptr<Events> events_;  // null: on the CPU
};

}  // namespace capstan

#endif  // CAPSTAN_BASE_SIDE_STREAM_H_
