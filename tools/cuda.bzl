# SPDX-License-Identifier: Apache-2.0
"""How a shared library of CUDA kernels is built."""

load("@cuda//:config.bzl", "HAS_CUDA", "NVCC")

# Machine code for compute capability 8.x (A100), 9.0 (H100, H200), 10.x (B200)
# and 12.x, and PTX for others and later ones. kernels/cuda/machine_code_test.cc
# has the same list.
_ARCHITECTURES = [
    "-gencode=arch=compute_80,code=sm_80",
    "-gencode=arch=compute_90,code=sm_90",
    "-gencode=arch=compute_100,code=[sm_100,compute_100]",
    "-gencode=arch=compute_120,code=sm_120",
]

# nvcc names its temporary files by its process, which is number 3 in every
# sandbox: two at a time took each other's from /tmp.
_OWN_FOLDER = ("export TMPDIR=$$(mktemp -d); " +
               "trap 'rm -rf $$TMPDIR' EXIT; ")

def _compile(options):
    """The command that compiles, without what to compile."""
    repository = native.repository_name()[1:]
    root = "external/" + repository if repository else "."
    return " ".join([
        NVCC,
        "-std=c++17 -O3 -I%s -Xcompiler=-fPIC,-fvisibility=hidden" % root,
    ] + options)

def cuda_ptx(kernel, hdrs = [], options = []):
    """X.ptx of a file X.cu, with the source's lines; for tests.

    Args:
      kernel: the .cu file.
      hdrs: headers that it includes.
      options: more options of nvcc.
    """
    if not HAS_CUDA:
        return
    native.genrule(
        name = kernel.replace(".", "_") + "_ptx",
        srcs = [kernel] + hdrs,
        outs = [kernel[:-len(".cu")] + ".ptx"],
        cmd = _OWN_FOLDER + _compile(options) +
              " -arch=compute_90 -ptx -lineinfo $(location %s) -o $@" % kernel,
        message = "Compiling kernels",
    )

def cuda_library(name, kernels, srcs, hdrs, deps = [], kernel_opts = {}):
    """lib*.so of .cu files, to be opened at run time where a GPU is.

    Nothing where third_party/cuda.bzl decides so. Each .cu file is an action of
    its own, by nvcc with the g++ of the PATH. LibTorch's CUDA part is linked, not
    packed.
    NAME_code has what a test of the machine code reads of each file X.cu: X.cu.o,
    X.ptx, and X.ptxas.txt, in which ptxas says what each kernel takes.

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
    objects = []
    code = []
    for kernel in kernels:
        stem = kernel[:-len(".cu")]
        out = stem + ".cu.o"
        objects.append(out)
        options = kernel_opts.get(kernel, [])
        native.genrule(
            name = kernel.replace(".", "_") + "_object",
            srcs = [kernel] + hdrs,
            outs = [out, stem + ".ptxas.txt"],
            cmd = _OWN_FOLDER + " ".join(
                [_compile(options)] +
                ["'%s'" % flag for flag in _ARCHITECTURES] + [
                    "-Xptxas=-v -c $(location %s)" % kernel,
                    "-o $(location %s) 2> $(location %s.ptxas.txt)" % (out, stem),
                    "|| { cat $(location %s.ptxas.txt) >&2; exit 1; }" % stem,
                ],
            ),
            message = "Compiling kernels",
        )
        cuda_ptx(kernel, hdrs, options)
        code.extend([out, stem + ".ptxas.txt", stem + ".ptx"])
    native.filegroup(
        name = name + "_code",
        srcs = code,
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
