// SPDX-License-Identifier: Apache-2.0
//
// The stand-in libnccl.so.2: the functions of nccl.h that LibTorch's CUDA part
// calls. Those that it would only call if asked to (windows, device
// communicators, shrinking) say that they aren't there.
#include <cuda_runtime_api.h>
#include <nccl.h>
#include <stdlib.h>

#include <climits>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "testing/standin/device.h"
#include "testing/standin/nccl/arithmetic.h"
#include "testing/standin/nccl/board.h"
#include "testing/standin/nccl/communicator.h"

using capstan::standin::Arguments;
using capstan::standin::Communicator;
using capstan::standin::Kind;
using capstan::standin::Message;

struct ncclComm {
  std::shared_ptr<Communicator> communicator;
  // Its functions return before they are done.
  bool nonblocking = false;
};

namespace {

thread_local std::string last_error;  // ncclGetLastError

ncclResult_t Fail(ncclResult_t result, const std::string& text) {
  last_error = text;
  return result;
}

// What a thread has called since ncclGroupStart.
struct Group {
  struct Collective {
    std::shared_ptr<Communicator> communicator;
    Arguments arguments;
    void* stream;
  };
  struct Messages {
    std::shared_ptr<Communicator> communicator;
    void* stream;
    std::vector<Message> messages;
  };

  int depth = 0;
  std::vector<std::shared_ptr<Communicator>> joining;
  std::vector<Collective> collectives;
  std::vector<Messages> messages;

  bool open() const { return depth > 0; }
};

thread_local Group group;

ncclResult_t EndGroup() {
  Group done;
  std::swap(done, group);
  ncclResult_t result = ncclSuccess;
  const auto keep = [&result](ncclResult_t one) {
    if (result == ncclSuccess) result = one;
  };
  for (const auto& communicator : done.joining) {
    keep(communicator->AwaitOthers());
  }
  for (const Group::Collective& one : done.collectives) {
    keep(one.communicator->Start(one.arguments, one.stream));
  }
  for (const Group::Messages& one : done.messages) {
    keep(one.communicator->Start(one.messages, one.stream));
  }
  return result;
}

bool IsMemory(const void* p) {
  if (capstan::standin::OnDevice(p)) return true;
  cudaPointerAttributes attributes;
  return cudaPointerGetAttributes(&attributes, p) == cudaSuccess &&
         attributes.type != cudaMemoryTypeUnregistered;
}

ncclResult_t CheckReady(ncclComm_t comm) {
  if (comm == nullptr) return Fail(ncclInvalidArgument, "no communicator");
  const ncclResult_t ready = comm->communicator->Poll();
  if (ready == ncclInProgress) {
    return Fail(ncclInvalidUsage,
                "a communicator was used before all ranks had joined it");
  }
  return ready;
}

ncclResult_t CheckMemory(const std::string& name, const void* p) {
  if (IsMemory(p)) return ncclSuccess;
  const std::string text = name + " was given memory that no device can reach";
  capstan::standin::ReportFinding("host_access", text);
  return Fail(ncclInvalidArgument, text);
}

ncclResult_t Call(ncclComm_t comm, cudaStream_t stream, Arguments arguments) {
  const ncclResult_t ready = CheckReady(comm);
  if (ready != ncclSuccess) return ready;
  Communicator& communicator = *comm->communicator;
  auto& call = arguments.call;
  const std::string name = NameOf(call.kind);
  const bool reduces = call.kind == Kind::kAllReduce ||
                       call.kind == Kind::kReduce ||
                       call.kind == Kind::kReduceScatter;
  if (capstan::standin::WidthOf(call.type) == 0 ||
      (reduces && !capstan::standin::Reducible(call.type))) {
    return Fail(ncclInvalidArgument, name + ": its data type");
  }
  if (call.root < 0 || call.root >= communicator.size()) {
    return Fail(ncclInvalidArgument, name + ": its root");
  }
  if (reduces && call.op >= ncclNumOps) {
    if (!communicator.FindScale(call.op - ncclNumOps, &arguments)) {
      return Fail(ncclInvalidArgument, name + ": its reduction");
    }
    call.op = ncclNumOps;  // the ranks' numbers of it may differ
  } else {
    arguments.reduction.op = call.op;
  }
  if (call.count == 0) return ncclSuccess;
  for (const void* p :
       {arguments.input, static_cast<const void*>(arguments.output)}) {
    if (p == nullptr) continue;
    const ncclResult_t reachable = CheckMemory(name, p);
    if (reachable != ncclSuccess) return reachable;
  }
  if (!group.open()) return communicator.Start(arguments, stream);
  group.collectives.push_back({comm->communicator, arguments, stream});
  return ncclSuccess;
}

Arguments Make(Kind kind, const void* input, void* output, size_t count,
               ncclDataType_t type, ncclRedOp_t op = ncclSum, int root = 0) {
  Arguments arguments;
  arguments.call = {kind, type, op, root, static_cast<int64_t>(count)};
  arguments.input = input;
  arguments.output = output;
  return arguments;
}

ncclResult_t AddMessage(ncclComm_t comm, cudaStream_t stream,
                        const Message& message) {
  const ncclResult_t ready = CheckReady(comm);
  if (ready != ncclSuccess) return ready;
  const std::string name = message.send ? "nccl::send" : "nccl::receive";
  if (capstan::standin::WidthOf(message.type) == 0) {
    return Fail(ncclInvalidArgument, name + ": its data type");
  }
  if (message.peer < 0 || message.peer >= comm->communicator->size()) {
    return Fail(ncclInvalidArgument, name + ": its peer");
  }
  if (message.count > 0) {
    const ncclResult_t reachable = CheckMemory(name, message.data);
    if (reachable != ncclSuccess) return reachable;
  }
  if (!group.open()) return comm->communicator->Start({message}, stream);
  for (Group::Messages& one : group.messages) {
    if (one.communicator == comm->communicator && one.stream == stream) {
      one.messages.push_back(message);
      return ncclSuccess;
    }
  }
  group.messages.push_back({comm->communicator, stream, {message}});
  return ncclSuccess;
}

ncclResult_t CheckConfig(const ncclConfig_t* config) {
  if (config == nullptr) return ncclSuccess;
  const ncclConfig_t fresh = NCCL_CONFIG_INITIALIZER;
  if (config->magic != fresh.magic || config->size != fresh.size) {
    return Fail(ncclInvalidArgument,
                "the configuration wasn't made with NCCL_CONFIG_INITIALIZER");
  }
  const auto set = [](int value) { return value != NCCL_CONFIG_UNDEF_INT; };
  const int least = config->minCTAs, most = config->maxCTAs;
  if ((set(least) && least <= 0) || (set(most) && most <= 0) ||
      (set(least) && set(most) && least > most)) {
    return Fail(ncclInvalidArgument, "minCTAs and maxCTAs");
  }
  return ncclSuccess;
}

ncclResult_t Joined(std::shared_ptr<Communicator> communicator,
                    const ncclConfig_t* config, ncclComm_t* comm) {
  const bool nonblocking = config != nullptr && config->blocking == 0;
  *comm = new ncclComm{communicator, nonblocking};
  if (nonblocking) return communicator->Poll();
  if (group.open()) {
    group.joining.push_back(std::move(communicator));
    return ncclSuccess;
  }
  return communicator->AwaitOthers();
}

ncclResult_t Absent(const char* function) {
  return Fail(ncclInvalidUsage,
              std::string(function) + " isn't in the stand-in NCCL");
}

}  // namespace

#define CAPSTAN_NCCL extern "C" __attribute__((visibility("default")))

CAPSTAN_NCCL ncclResult_t ncclGetVersion(int* version) {
  *version = NCCL_VERSION_CODE;
  return ncclSuccess;
}

CAPSTAN_NCCL const char* ncclGetErrorString(ncclResult_t result) {
  switch (result) {
    case ncclSuccess:
      return "no error";
    case ncclUnhandledCudaError:
      return "unhandled cuda error";
    case ncclSystemError:
      return "unhandled system error";
    case ncclInternalError:
      return "internal error";
    case ncclInvalidArgument:
      return "invalid argument";
    case ncclInvalidUsage:
      return "invalid usage";
    case ncclRemoteError:
      return "remote process exited or there was a network error";
    case ncclInProgress:
      return "NCCL operation in progress";
    default:
      return "unknown result code";
  }
}

CAPSTAN_NCCL const char* ncclGetLastError(ncclComm_t) {
  return last_error.c_str();
}

CAPSTAN_NCCL ncclResult_t ncclMemAlloc(void** p, size_t bytes) {
  return cudaMalloc(p, bytes) == cudaSuccess ? ncclSuccess
                                             : ncclUnhandledCudaError;
}

CAPSTAN_NCCL ncclResult_t ncclMemFree(void* p) {
  return cudaFree(p) == cudaSuccess ? ncclSuccess : ncclUnhandledCudaError;
}

CAPSTAN_NCCL ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  std::memset(id, 0, sizeof(*id));
  snprintf(id->internal, sizeof(id->internal), "%s",
           capstan::standin::NewBoardName().c_str());
  return ncclSuccess;
}

CAPSTAN_NCCL ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int size,
                                                 ncclUniqueId id, int rank,
                                                 ncclConfig_t* config) {
  *comm = nullptr;
  if (size < 1 || rank < 0 || rank >= size) {
    return Fail(ncclInvalidArgument, "rank and number of ranks");
  }
  const ncclResult_t fine = CheckConfig(config);
  if (fine != ncclSuccess) return fine;
  std::string error;
  auto communicator = Communicator::Join(
      std::string(id.internal, strnlen(id.internal, sizeof(id.internal))), rank,
      size, &error);
  if (communicator == nullptr) {
    return Fail(error == capstan::standin::kOutOfMemory ? ncclUnhandledCudaError
                                                        : ncclSystemError,
                error);
  }
  return Joined(std::move(communicator), config, comm);
}

CAPSTAN_NCCL ncclResult_t ncclCommInitRank(ncclComm_t* comm, int size,
                                           ncclUniqueId id, int rank) {
  return ncclCommInitRankConfig(comm, size, id, rank, nullptr);
}

CAPSTAN_NCCL ncclResult_t ncclCommInitRankScalable(ncclComm_t* comm, int size,
                                                   int rank, int ids,
                                                   ncclUniqueId* id,
                                                   ncclConfig_t* config) {
  if (ids < 1) return Fail(ncclInvalidArgument, "number of unique ids");
  return ncclCommInitRankConfig(comm, size, id[0], rank, config);
}

CAPSTAN_NCCL ncclResult_t ncclCommInitAll(ncclComm_t* comms, int count,
                                          const int* devices) {
  ncclUniqueId id;
  ncclGetUniqueId(&id);
  int before = 0;
  cudaGetDevice(&before);
  ncclGroupStart();
  ncclResult_t result = ncclSuccess;
  for (int i = 0; i < count && result == ncclSuccess; ++i) {
    if (cudaSetDevice(devices == nullptr ? i : devices[i]) != cudaSuccess) {
      result = ncclUnhandledCudaError;
    } else {
      result = ncclCommInitRank(&comms[i], count, id, i);
    }
  }
  cudaSetDevice(before);
  if (result != ncclSuccess) {
    group = Group();
    return result;
  }
  return ncclGroupEnd();
}

CAPSTAN_NCCL ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key,
                                        ncclComm_t* made,
                                        ncclConfig_t* config) {
  *made = nullptr;
  const ncclResult_t ready = CheckReady(comm);
  if (ready != ncclSuccess) return ready;
  const ncclResult_t fine = CheckConfig(config);
  if (fine != ncclSuccess) return fine;
  if (color < 0 && color != NCCL_SPLIT_NOCOLOR) {
    return Fail(ncclInvalidArgument, "ncclCommSplit: color");
  }
  if (comm->communicator->splits() == capstan::standin::kMostSplits) {
    return Fail(ncclSystemError, "too many splits of one communicator");
  }
  auto part = Communicator::Split(comm->communicator, color, key);
  if (part == nullptr) return ncclSuccess;
  return Joined(std::move(part), config, made);
}

CAPSTAN_NCCL ncclResult_t ncclCommFinalize(ncclComm_t comm) {
  if (comm == nullptr) return ncclInvalidArgument;
  comm->communicator->Leave();
  return ncclSuccess;
}

CAPSTAN_NCCL ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  if (comm == nullptr) return ncclSuccess;
  comm->communicator->Leave();
  if (comm->communicator->error() == ncclSuccess) {
    comm->communicator->FreeBuffers();
  }
  delete comm;
  return ncclSuccess;
}

CAPSTAN_NCCL ncclResult_t ncclCommAbort(ncclComm_t comm) {
  if (comm == nullptr) return ncclSuccess;
  comm->communicator->Abort();
  delete comm;
  return ncclSuccess;
}

CAPSTAN_NCCL ncclResult_t ncclCommGetAsyncError(ncclComm_t comm,
                                                ncclResult_t* error) {
  if (comm == nullptr) return ncclInvalidArgument;
  *error = comm->communicator->AsyncError();
  return ncclSuccess;
}

CAPSTAN_NCCL ncclResult_t ncclCommCount(const ncclComm_t comm, int* count) {
  const ncclResult_t ready = CheckReady(comm);
  if (ready == ncclSuccess) *count = comm->communicator->size();
  return ready;
}

CAPSTAN_NCCL ncclResult_t ncclCommUserRank(const ncclComm_t comm, int* rank) {
  const ncclResult_t ready = CheckReady(comm);
  if (ready == ncclSuccess) *rank = comm->communicator->rank();
  return ready;
}

CAPSTAN_NCCL ncclResult_t ncclCommCuDevice(const ncclComm_t comm, int* device) {
  const ncclResult_t ready = CheckReady(comm);
  if (ready == ncclSuccess) *device = comm->communicator->device();
  return ready;
}

// Registered memory is only faster: nothing depends on it.
CAPSTAN_NCCL ncclResult_t ncclCommRegister(const ncclComm_t, void* buffer,
                                           size_t, void** handle) {
  *handle = buffer;
  return ncclSuccess;
}

CAPSTAN_NCCL ncclResult_t ncclCommDeregister(const ncclComm_t, void*) {
  return ncclSuccess;
}

CAPSTAN_NCCL ncclResult_t ncclCommWindowRegister(ncclComm_t, void*, size_t,
                                                 ncclWindow_t*, int) {
  return Absent("ncclCommWindowRegister");
}

CAPSTAN_NCCL ncclResult_t ncclCommWindowDeregister(ncclComm_t, ncclWindow_t) {
  return Absent("ncclCommWindowDeregister");
}

CAPSTAN_NCCL ncclResult_t ncclCommShrink(ncclComm_t, int*, int, ncclComm_t*,
                                         ncclConfig_t*, int) {
  return Absent("ncclCommShrink");
}

// Of nccl_device.h, whose types nothing here needs.
CAPSTAN_NCCL ncclResult_t ncclDevCommCreate(ncclComm_t, const void*, void*) {
  return Absent("ncclDevCommCreate");
}

CAPSTAN_NCCL ncclResult_t ncclDevCommDestroy(ncclComm_t, const void*) {
  return Absent("ncclDevCommDestroy");
}

CAPSTAN_NCCL ncclResult_t
ncclRedOpCreatePreMulSum(ncclRedOp_t* op, void* scalar, ncclDataType_t type,
                         ncclScalarResidence_t residence, ncclComm_t comm) {
  const ncclResult_t ready = CheckReady(comm);
  if (ready != ncclSuccess) return ready;
  if (!capstan::standin::Reducible(type)) {
    return Fail(ncclInvalidArgument, "ncclRedOpCreatePreMulSum: data type");
  }
  Arguments scale;
  scale.call.type = type;
  scale.reduction.op = ncclSum;
  scale.reduction.scaled = true;
  if (residence == ncclScalarHostImmediate) {
    scale.reduction.scale = capstan::standin::ScalarAt(scalar, type);
  } else {
    scale.scale = scalar;
  }
  *op = static_cast<ncclRedOp_t>(ncclNumOps +
                                 comm->communicator->AddScale(scale));
  return ncclSuccess;
}

// Its number isn't given away again.
CAPSTAN_NCCL ncclResult_t ncclRedOpDestroy(ncclRedOp_t, ncclComm_t) {
  return ncclSuccess;
}

CAPSTAN_NCCL ncclResult_t ncclAllReduce(const void* input, void* output,
                                        size_t count, ncclDataType_t type,
                                        ncclRedOp_t op, ncclComm_t comm,
                                        cudaStream_t stream) {
  return Call(comm, stream,
              Make(Kind::kAllReduce, input, output, count, type, op));
}

CAPSTAN_NCCL ncclResult_t ncclReduce(const void* input, void* output,
                                     size_t count, ncclDataType_t type,
                                     ncclRedOp_t op, int root, ncclComm_t comm,
                                     cudaStream_t stream) {
  const ncclResult_t ready = CheckReady(comm);
  if (ready != ncclSuccess) return ready;
  return Call(comm, stream,
              Make(Kind::kReduce, input,
                   comm->communicator->rank() == root ? output : nullptr, count,
                   type, op, root));
}

CAPSTAN_NCCL ncclResult_t ncclBroadcast(const void* input, void* output,
                                        size_t count, ncclDataType_t type,
                                        int root, ncclComm_t comm,
                                        cudaStream_t stream) {
  const ncclResult_t ready = CheckReady(comm);
  if (ready != ncclSuccess) return ready;
  return Call(comm, stream,
              Make(Kind::kBroadcast,
                   comm->communicator->rank() == root ? input : nullptr, output,
                   count, type, ncclSum, root));
}

CAPSTAN_NCCL ncclResult_t ncclBcast(void* data, size_t count,
                                    ncclDataType_t type, int root,
                                    ncclComm_t comm, cudaStream_t stream) {
  return ncclBroadcast(data, data, count, type, root, comm, stream);
}

CAPSTAN_NCCL ncclResult_t ncclReduceScatter(const void* input, void* output,
                                            size_t count, ncclDataType_t type,
                                            ncclRedOp_t op, ncclComm_t comm,
                                            cudaStream_t stream) {
  return Call(comm, stream,
              Make(Kind::kReduceScatter, input, output, count, type, op));
}

CAPSTAN_NCCL ncclResult_t ncclAllGather(const void* input, void* output,
                                        size_t count, ncclDataType_t type,
                                        ncclComm_t comm, cudaStream_t stream) {
  return Call(comm, stream, Make(Kind::kAllGather, input, output, count, type));
}

CAPSTAN_NCCL ncclResult_t ncclAlltoAll(const void* input, void* output,
                                       size_t count, ncclDataType_t type,
                                       ncclComm_t comm, cudaStream_t stream) {
  return Call(comm, stream, Make(Kind::kAllToAll, input, output, count, type));
}

CAPSTAN_NCCL ncclResult_t ncclSend(const void* data, size_t count,
                                   ncclDataType_t type, int peer,
                                   ncclComm_t comm, cudaStream_t stream) {
  return AddMessage(comm, stream,
                    {/*send=*/true, const_cast<void*>(data),
                     static_cast<int64_t>(count), type, peer});
}

CAPSTAN_NCCL ncclResult_t ncclRecv(void* data, size_t count,
                                   ncclDataType_t type, int peer,
                                   ncclComm_t comm, cudaStream_t stream) {
  return AddMessage(
      comm, stream,
      {/*send=*/false, data, static_cast<int64_t>(count), type, peer});
}

CAPSTAN_NCCL ncclResult_t ncclGroupStart() {
  ++group.depth;
  return ncclSuccess;
}

CAPSTAN_NCCL ncclResult_t ncclGroupEnd() {
  if (!group.open()) {
    return Fail(ncclInvalidUsage, "ncclGroupEnd without ncclGroupStart");
  }
  if (--group.depth > 0) return ncclSuccess;
  return EndGroup();
}

CAPSTAN_NCCL ncclResult_t ncclGroupSimulateEnd(ncclSimInfo_t*) {
  group = Group();
  return Absent("ncclGroupSimulateEnd");
}
