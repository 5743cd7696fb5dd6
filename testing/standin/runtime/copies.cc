// SPDX-License-Identifier: Apache-2.0
//
// Copies and fills, with what CUDA promises of pageable and pinned memory: a
// pageable source has been read when the call returns; a pageable destination
// has been written (the host waits for it); pinned memory is read and written
// when the stream comes to it.
#include <cstring>
#include <memory>
#include <vector>

#include "testing/standin/runtime/graphs.h"
#include "testing/standin/runtime/machine.h"
#include "testing/standin/runtime/memory.h"
#include "testing/standin/runtime/settings.h"

namespace capstan::standin {
namespace {

// A copy of `rows` rows of `width` bytes each.
struct Shape {
  char* to = nullptr;
  const char* from = nullptr;
  size_t to_pitch = 0;
  size_t from_pitch = 0;
  size_t width = 0;
  size_t rows = 1;

  int64_t bytes() const { return static_cast<int64_t>(width * rows); }
  Span source() const {
    return {from, static_cast<int64_t>(from_pitch * (rows - 1) + width)};
  }
  Span target() const {
    return {to, static_cast<int64_t>(to_pitch * (rows - 1) + width)};
  }
};

void Move(const Shape& shape) {
  char* to = static_cast<char*>(HostView(shape.to));
  const char* from = static_cast<const char*>(HostView(shape.from));
  for (size_t row = 0; row < shape.rows; ++row) {
    std::memmove(to, from, shape.width);
    to += shape.to_pitch;
    from += shape.from_pitch;
  }
}

// The rows, one behind the other, as they are now.
std::shared_ptr<std::vector<char>> Stage(const Shape& shape) {
  auto staged = std::make_shared<std::vector<char>>(shape.bytes());
  for (size_t row = 0; row < shape.rows; ++row) {
    std::memcpy(staged->data() + row * shape.width,
                shape.from + row * shape.from_pitch, shape.width);
  }
  return staged;
}

const char* Direction(bool from_device, bool to_device) {
  if (from_device) return to_device ? "d2d" : "d2h";
  return to_device ? "h2d" : "h2h";
}

bool Fits(cudaMemcpyKind kind, bool from_device, bool to_device) {
  switch (kind) {
    case cudaMemcpyHostToHost:
      return !from_device && !to_device;
    case cudaMemcpyHostToDevice:
      return !from_device && to_device;
    case cudaMemcpyDeviceToHost:
      return from_device && !to_device;
    case cudaMemcpyDeviceToDevice:
      return from_device && to_device;
    default:
      return true;
  }
}

// On paper nothing is copied, and what the host reads is zeros.
void ZeroOnPaper(const Shape& shape) {
  for (size_t row = 0; row < shape.rows; ++row) {
    std::memset(shape.to + row * shape.to_pitch, 0, shape.width);
  }
}

// `waits`: the call returns when all is done (cudaMemcpy).
cudaError_t Copy2D(const Shape& shape, cudaMemcpyKind kind, cudaStream_t handle,
                   bool waits) {
  if (shape.bytes() == 0) return cudaSuccess;
  if (shape.to == nullptr || shape.from == nullptr ||
      shape.to_pitch < shape.width || shape.from_pitch < shape.width) {
    return cudaErrorInvalidValue;
  }
  const bool from_device = OnDevice(shape.from);
  const bool to_device = OnDevice(shape.to);
  if (!Fits(kind, from_device, to_device)) return cudaErrorInvalidValue;
  const bool from_pageable = PlaceOf(shape.from).memory == Memory::kPageable;
  const bool to_pageable = PlaceOf(shape.to).memory == Memory::kPageable;
  if (waits) {
    if (const cudaError_t unsafe = UnsafeCall()) return unsafe;
  }
  Work work;
  const Copy copy = {Direction(from_device, to_device), shape.bytes()};
  work.name = std::string("copy ") + copy.direction;
  work.cost.launches = 0;
  work.cost.bytes_read = from_device ? shape.bytes() : 0;
  work.cost.bytes_written = to_device ? shape.bytes() : 0;
  if (!from_pageable) work.reads.push_back(shape.source());
  if (!to_pageable) work.writes.push_back(shape.target());
  Machine& machine = TheMachine();
  {
    Lock lock(machine.mutex);
    Stream* const stream = FindStream(&machine, handle);
    if (stream == nullptr) return cudaErrorInvalidResourceHandle;
    if (from_pageable || to_pageable || waits) {
      if (const cudaError_t error = UnsupportedWhileCapturing(stream)) {
        return error;
      }
    }
    if (TheSettings().paper) {
      if (!to_device) ZeroOnPaper(shape);
    } else if (from_pageable) {
      work.run = [shape, staged = Stage(shape)] {
        Shape from_staged = shape;
        from_staged.from = staged->data();
        from_staged.from_pitch = shape.width;
        Move(from_staged);
        return Progress::kDone;
      };
    } else {
      work.run = [shape] {
        Move(shape);
        return Progress::kDone;
      };
    }
    if (const cudaError_t error =
            Submit(&machine, &lock, stream, std::move(work), &copy)) {
      return error;
    }
  }
  if (waits) return WaitForStream(handle, "memcpy");
  if (to_pageable) return WaitForStream(handle, "pageable_copy");
  return cudaSuccess;
}

cudaError_t CopyBytes(void* to, const void* from, size_t bytes,
                      cudaMemcpyKind kind, cudaStream_t stream, bool waits) {
  Shape shape;
  shape.to = static_cast<char*>(to);
  shape.from = static_cast<const char*>(from);
  shape.to_pitch = shape.from_pitch = shape.width = bytes;
  return Copy2D(shape, kind, stream, waits);
}

cudaError_t Fill(void* p, int value, size_t bytes, cudaStream_t handle) {
  if (bytes == 0) return cudaSuccess;
  if (PlaceOf(p).memory == Memory::kPageable) return cudaErrorInvalidValue;
  Work work;
  work.name = "memset";
  work.cost.launches = 0;
  work.cost.bytes_written = static_cast<int64_t>(bytes);
  work.writes.push_back({p, static_cast<int64_t>(bytes)});
  work.run = [=] {
    std::memset(HostView(p), value, bytes);
    return Progress::kDone;
  };
  const Copy copy = {"set", static_cast<int64_t>(bytes)};
  Machine& machine = TheMachine();
  Lock lock(machine.mutex);
  Stream* const stream = FindStream(&machine, handle);
  if (stream == nullptr) return cudaErrorInvalidResourceHandle;
  return Submit(&machine, &lock, stream, std::move(work), &copy);
}

}  // namespace
}  // namespace capstan::standin

extern "C" {

using capstan::standin::Begin;
using capstan::standin::Result;

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes,
                            cudaMemcpyKind kind, cudaStream_t stream) {
  if (const cudaError_t error = Begin()) return error;
  return Result(
      capstan::standin::CopyBytes(to, from, bytes, kind, stream, false));
}

cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes,
                       cudaMemcpyKind kind) {
  if (const cudaError_t error = Begin()) return error;
  return Result(
      capstan::standin::CopyBytes(to, from, bytes, kind, nullptr, true));
}

cudaError_t cudaMemcpyPeerAsync(void* to, int, const void* from, int,
                                size_t bytes, cudaStream_t stream) {
  return cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream);
}

cudaError_t cudaMemcpyPeer(void* to, int, const void* from, int, size_t bytes) {
  return cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, nullptr);
}

cudaError_t cudaMemcpy2DAsync(void* to, size_t to_pitch, const void* from,
                              size_t from_pitch, size_t width, size_t height,
                              cudaMemcpyKind kind, cudaStream_t stream) {
  if (const cudaError_t error = Begin()) return error;
  capstan::standin::Shape shape;
  shape.to = static_cast<char*>(to);
  shape.from = static_cast<const char*>(from);
  shape.to_pitch = to_pitch;
  shape.from_pitch = from_pitch;
  shape.width = width;
  shape.rows = height;
  return Result(capstan::standin::Copy2D(shape, kind, stream, false));
}

cudaError_t cudaMemsetAsync(void* p, int value, size_t bytes,
                            cudaStream_t stream) {
  if (const cudaError_t error = Begin()) return error;
  return Result(capstan::standin::Fill(p, value, bytes, stream));
}

cudaError_t cudaMemset(void* p, int value, size_t bytes) {
  return cudaMemsetAsync(p, value, bytes, nullptr);
}

}  // extern "C"
