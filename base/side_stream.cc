// SPDX-License-Identifier: Apache-2.0
#include "base/side_stream.h"

#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace capstan {
namespace {

c10::Stream StreamOf(c10::Device device) {
  if (device.is_cpu()) return c10::Stream(c10::Stream::DEFAULT, device);
  return c10::impl::VirtualGuardImpl(device.type())
      .getStreamFromGlobalPool(device);
}

}  // namespace

struct SideStream::Events {
  explicit Events(c10::DeviceType type) : guard(type), begin(type), end(type) {}

  const c10::impl::VirtualGuardImpl guard;
  c10::Event begin;
  c10::Event end;
};

SideStream::SideStream(c10::Device device) : stream_(StreamOf(device)) {
  if (!device.is_cpu()) events_ = std::make_unique<Events>(device.type());
}

SideStream::~SideStream() = default;

void SideStream::Run(const std::function<void()>& issue) {
  if (events_ == nullptr) return issue();
  events_->begin.record(events_->guard.getStream(stream_.device()));
  events_->begin.block(stream_);
  const c10::StreamGuard guard(stream_);
  issue();
}

void SideStream::Join() {
  if (events_ == nullptr) return;
  events_->end.record(stream_);
  events_->end.block(events_->guard.getStream(stream_.device()));
}

void SideStream::Wait() {
  if (events_ != nullptr) stream_.synchronize();
}

}  // namespace capstan
