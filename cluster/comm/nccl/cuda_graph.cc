// SPDX-License-Identifier: Apache-2.0
#include "cluster/comm/nccl/cuda_graph.h"

#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>

#include <memory>
#include <type_traits>
#include <vector>

#include "absl/strings/str_cat.h"

namespace capstan {
namespace {

namespace allocator = c10::cuda::CUDACachingAllocator;

// Graphs of one pool share memory: they run one after the other.
c10::MempoolId_t Pool() {
  static const c10::MempoolId_t pool = at::cuda::graph_pool_handle();
  return pool;
}

bool OnHost(const void* p) {
  cudaPointerAttributes attributes;
  if (cudaPointerGetAttributes(&attributes, p) != cudaSuccess) {
    (void)cudaGetLastError();
    return true;
  }
  return attributes.type == cudaMemoryTypeHost ||
         attributes.type == cudaMemoryTypeUnregistered;
}

// Returns why a node can't be repeated, or null if it can. A copy would read or
// write host memory that may have been freed by then.
const char* Obstacle(cudaGraphNode_t node) {
  cudaGraphNodeType type;
  C10_CUDA_CHECK(cudaGraphNodeGetType(node, &type));
  switch (type) {
    case cudaGraphNodeTypeMemcpy: {
      cudaMemcpy3DParms copy = {};
      C10_CUDA_CHECK(cudaGraphMemcpyNodeGetParams(node, &copy));
      if (OnHost(copy.srcPtr.ptr)) {
        return "it copies host memory to the device";
      }
      if (OnHost(copy.dstPtr.ptr)) return "it copies results to the host";
      return nullptr;
    }
    case cudaGraphNodeTypeHost:
      return "it calls the host";
    default:
      return nullptr;
  }
}

struct DestroyGraph {
  void operator()(cudaGraph_t graph) const {
    C10_CUDA_CHECK_WARN(cudaGraphDestroy(graph));
  }
};
using OwnedGraph =
    std::unique_ptr<std::remove_pointer_t<cudaGraph_t>, DestroyGraph>;

class CudaGraph final : public DeviceGraph {
 public:
  CudaGraph() : device_(c10::cuda::current_device()) {}
  CudaGraph(const CudaGraph&) = delete;
  CudaGraph& operator=(const CudaGraph&) = delete;

  // A running execution completes.
  ~CudaGraph() override {
    if (executable_ != nullptr) {
      C10_CUDA_CHECK_WARN(cudaGraphExecDestroy(executable_));
    }
    if (in_pool_) allocator::releasePool(device_, Pool());
  }

  void Begin() override {
    stream_ = c10::cuda::getCurrentCUDAStream().stream();
    // During a capture the allocator can't release cached memory.
    C10_CUDA_CHECK(cudaDeviceSynchronize());
    allocator::emptyCache();
    allocator::beginAllocateToPool(
        device_, Pool(), [this](cudaStream_t stream) { return Owns(stream); });
    in_pool_ = allocating_ = true;
    // Other threads load data and save checkpoints meanwhile.
    C10_CUDA_CHECK(
        cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal));
    capturing_ = true;
    cudaStreamCaptureStatus status;
    C10_CUDA_CHECK(cudaStreamGetCaptureInfo(stream_, &status, &id_, nullptr,
                                            nullptr, nullptr, nullptr));
  }

  absl::Status End() override {
    const bool began = capturing_;
    cudaGraph_t graph = nullptr;
    cudaError_t error = cudaSuccess;
    if (began) error = cudaStreamEndCapture(stream_, &graph);
    capturing_ = false;
    if (allocating_) allocator::endAllocateToPool(device_, Pool());
    allocating_ = false;
    if (!began) {
      return absl::FailedPreconditionError("nothing was recorded");
    }
    // Clear the error, which the next call would report otherwise.
    if (error != cudaSuccess) (void)cudaGetLastError();
    if (error != cudaSuccess || graph == nullptr) {
      return absl::FailedPreconditionError(
          absl::StrCat("CUDA refused: ", cudaGetErrorString(error)));
    }
    const OwnedGraph owned(graph);  // Instantiate may throw
    return Instantiate(graph);
  }

  void Replay() override {
    C10_CUDA_CHECK(cudaGraphLaunch(executable_,
                                   c10::cuda::getCurrentCUDAStream().stream()));
  }

 private:
  // Whether memory for the stream is to come from the pool.
  bool Owns(cudaStream_t stream) const {
    cudaStreamCaptureStatus status;
    unsigned long long id = 0;  // NOLINT: CUDA's type
    C10_CUDA_CHECK(cudaStreamGetCaptureInfo(stream, &status, &id, nullptr,
                                            nullptr, nullptr, nullptr));
    return status == cudaStreamCaptureStatusActive && id == id_;
  }

  absl::Status Instantiate(cudaGraph_t graph) {
    size_t count = 0;
    C10_CUDA_CHECK(cudaGraphGetNodes(graph, nullptr, &count));
    std::vector<cudaGraphNode_t> nodes(count);
    C10_CUDA_CHECK(cudaGraphGetNodes(graph, nodes.data(), &count));
    for (const cudaGraphNode_t node : nodes) {
      const char* const obstacle = Obstacle(node);
      if (obstacle != nullptr) return absl::FailedPreconditionError(obstacle);
    }
    C10_CUDA_CHECK(cudaGraphInstantiate(&executable_, graph, 0));
    return absl::OkStatus();
  }

  const c10::DeviceIndex device_;
  cudaStream_t stream_ = nullptr;
  unsigned long long id_ = 0;  // NOLINT: CUDA's type
  bool in_pool_ = false;
  bool allocating_ = false;
  bool capturing_ = false;
  cudaGraphExec_t executable_ = nullptr;
};

}  // namespace

std::unique_ptr<DeviceGraph> NewCudaGraph() {
  return std::make_unique<CudaGraph>();
}

int64_t IdleGraphMemory() {
  int64_t bytes = 0;
  for (const auto& segment :
       allocator::snapshot(Pool(), /*include_traces=*/false).segments) {
    bytes += static_cast<int64_t>(segment.total_size - segment.allocated_size);
  }
  return bytes;
}

}  // namespace capstan
