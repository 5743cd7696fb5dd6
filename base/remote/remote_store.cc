// SPDX-License-Identifier: Apache-2.0
#include "base/remote/remote_store.h"

namespace capstan {
namespace {

const RemoteStore* the_store = nullptr;

}  // namespace

RemoteReader::~RemoteReader() = default;
RemoteStore::~RemoteStore() = default;

const RemoteStore* TheRemoteStore() { return the_store; }
void SetRemoteStore(const RemoteStore* store) { the_store = store; }

}  // namespace capstan
