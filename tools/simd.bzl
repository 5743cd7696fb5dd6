# SPDX-License-Identifier: Apache-2.0
"""Loops that are compiled once for each instruction set."""

_TARGETS = ["plain", "avx2", "avx512"]

def simd_library(
        name,
        loops,
        hdrs,
        textual_hdrs = [],
        deps = [],
        more_targets = [],
        **kwargs):
    """A library of loops, and tables of them by instruction set.

    Args:
      name: the library.
      loops: one .cc file, which includes base/simd/target.h last and defines
        SIMD_SYMBOL(kName); it is compiled for each instruction set.
      hdrs: where the table's type is, and SIMD_TABLES(Type, kName).
      textual_hdrs: .inc files that `loops` includes.
      deps: of all of them.
      more_targets: others of base/simd/target.h that `loops` is compiled for,
        whose tables aren't in SIMD_TABLES: "amx", "avx512bf16".
      **kwargs: as ever.
    """
    native.cc_library(
        name = name + "_hdrs",
        hdrs = hdrs,
        textual_hdrs = textual_hdrs,
        visibility = ["//visibility:private"],
        deps = deps + ["//base/simd:instruction_set"],
    )
    for target in _TARGETS + more_targets:
        native.cc_library(
            name = name + "_" + target,
            srcs = [loops],
            copts = ["-DSIMD_TARGET_" + target.upper()],
            linkstatic = True,
            visibility = ["//visibility:private"],
            deps = [":" + name + "_hdrs"],
        )
    native.cc_library(
        name = name,
        hdrs = hdrs,
        deps = [":%s_hdrs" % name, ":%s_plain" % name] + select({
            "@platforms//cpu:x86_64": [
                ":%s_%s" % (name, target)
                for target in _TARGETS[1:] + more_targets
            ],
            "//conditions:default": [],
        }),
        **kwargs
    )
