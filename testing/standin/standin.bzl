# SPDX-License-Identifier: Apache-2.0
"""Tests that run on stand-in CUDA devices."""

load("@cuda//:config.bzl", "HAS_CUDA")

def standin_test(name, srcs, deps = [], size = "medium", copts = ["-O1"], **kwargs):
    """A googletest that run.sh starts; nothing without the GPU parts.

    Args:
      name: as ever; NAME_program is the program itself.
      srcs: as ever.
      deps: as ever, but for googletest and LibTorch's CUDA part.
      size: as ever.
      copts: as ever.
      **kwargs: as ever.
    """
    if not HAS_CUDA:
        return
    native.cc_binary(
        name = name + "_program",
        testonly = True,
        srcs = srcs,
        copts = copts,
        deps = deps + [
            Label("//testing/standin/runtime:cudart"),
            "@libtorch//:torch_cuda",
            "@system//:gtest_main",
        ],
    )
    native.sh_test(
        name = name,
        size = size,
        srcs = [Label("//testing/standin:run.sh")],
        args = ["$(rootpath :%s_program)" % name],
        data = [
            ":%s_program" % name,
            Label("//testing/standin"),
        ],
        **kwargs
    )
