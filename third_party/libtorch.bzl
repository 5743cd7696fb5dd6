"""LibTorch 2.11.0: the C++ part of the torch wheel."""

LIBTORCH_WHEELS = {
    "torch==2.11.0": "0f68f4ac6d95d12e896c3b7a912b5871619542ec54d3649cf48cc1edd4dd2756",
    # libtorch_cpu links the CUDA runtime and CUPTI even where there is no GPU.
    "nvidia-cuda-runtime==13.0.96": "7f82250d7782aa23b6cfe765ecc7db554bd3c2870c43f3d1821f1d18aebf0548",
    "nvidia-cuda-cupti==13.0.85": "4eb01c08e859bf924d222250d2e8f8b8ff6d3db4721288cf35d14252a4d933c8",
}

# The CUDA libraries are linked by the CUDA parts and loaded only on a machine
# with a GPU.
LIBTORCH_FILES = [
    "torch/lib/libc10.so",
    "torch/lib/libc10_cuda.so",
    "torch/lib/libgomp*",
    "torch/lib/libtorch.so",
    "torch/lib/libtorch_cpu.so",
    "torch/lib/libtorch_cuda.so",
    "torch/lib/libtorch_nvshmem.so",
    "torch/include/*",
    "nvidia/*/lib/*",
]

# The wheel's copy of protobuf's headers would shadow the system's.
LIBTORCH_REMOVED = ["torch/include/google"]
