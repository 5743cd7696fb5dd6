# SPDX-License-Identifier: Apache-2.0
"""How a shared library of CUDA kernels is built."""

load("@cuda//:config.bzl", "HAS_CUDA", "NVCC")

# Machine code for compute capability 8.x and 9.x, and PTX for later ones.
_ARCHITECTURES = [
    "-gencode=arch=compute_80,code=sm_80",
    "-gencode=arch=compute_90,code=[sm_90,compute_90]",
]

def cuda_library(name, kernels, srcs, hdrs, deps = [], kernel_opts = {}):
    """lib*.so of .cu files, to be opened at run time where a GPU is.

    Nothing without the GPU parts (third_party/cuda.bzl). Each .cu file is an action of its own, by
    nvcc with the g++ of the PATH. LibTorch's CUDA part is linked, not packed.

    Args:
      name: the file's name.
      kernels: .cu files, which need no headers but the Toolkit's and `hdrs`.
      srcs: C++ files.
      hdrs: headers of both.
      deps: libraries of the C++ files.
      kernel_opts: more options of nvcc by .cu file.
    """
    if not HAS_CUDA:
        return
    repository = native.repository_name()[1:]
    root = "external/" + repository if repository else "."
    objects = []
    for kernel in kernels:
        out = kernel[:-len(".cu")] + ".cu.o"
        objects.append(out)
        native.genrule(
            name = kernel.replace(".", "_") + "_object",
            srcs = [kernel] + hdrs,
            outs = [out],
            cmd = " ".join([
                NVCC,
                "-std=c++17 -O3 -I%s -Xcompiler=-fPIC,-fvisibility=hidden" % root,
            ] + ["'%s'" % flag for flag in _ARCHITECTURES] +
            kernel_opts.get(kernel, []) +
            ["-c $(location %s) -o $@" % kernel]),
            message = "Compiling kernels",
        )
    cuda_libraries = "@libtorch//:torch_cuda_libraries"
    native.cc_binary(
        name = name,
        srcs = srcs + hdrs + objects,
        additional_linker_inputs = [cuda_libraries],
        copts = ["-fvisibility=hidden"],
        linkopts = [
            "-Wl,--as-needed",
            "$(locations %s)" % cuda_libraries,
            "-Wl,--allow-shlib-undefined",
            "-Wl,-soname," + name,
        ],
        linkshared = True,
        linkstatic = True,
        visibility = ["//visibility:public"],
        deps = deps + [
            "@cuda//:toolkit",
            "@libtorch//:torch_cpu",
        ],
    )
