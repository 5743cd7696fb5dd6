# SPDX-License-Identifier: Apache-2.0
"""How libcapstan_nccl.so is built."""

def nccl_library(name, srcs):
    """A shared library on the core, LibTorch's CUDA part and NCCL.

    NVIDIA's libraries that LibTorch's CUDA part needs in turn (cuDNN and more)
    need not be on the machine that builds, so they aren't looked for.

    Args:
      name: the file's name.
      srcs: its sources.
    """
    cuda_libraries = "@libtorch//:torch_cuda_libraries"
    native.cc_binary(
        name = name,
        srcs = srcs,
        additional_linker_inputs = [cuda_libraries],
        copts = ["-Wno-interference-size"],
        defines = ["USE_C10D_NCCL"],
        linkopts = [
            "$(locations %s)" % cuda_libraries,
            "-Wl,--allow-shlib-undefined",
            "-Wl,-soname," + name,
        ],
        linkshared = True,
        linkstatic = True,
        visibility = ["//visibility:public"],
        deps = [
            "//trainer:core",
            "@cuda//:toolkit",
        ],
    )
