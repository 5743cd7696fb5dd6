# SPDX-License-Identifier: Apache-2.0
"""Fuzz targets: what reads bytes from outside, given bytes that nobody meant."""

def fuzz_target(name, srcs, parts, deps = [], corpus = None, data = [], seconds = 2):
    """A fuzz target, by clang's convention:

        extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size)

    `bazel test` runs it on its corpus and, for two seconds, on mutations of that
    (replay_main.cc). tests/fuzz/run.sh builds it with libFuzzer and keeps what
    it finds in the corpus.

    Args:
      name: of the target, NAME_fuzz; its corpus is the folder corpus/NAME_fuzz
        beside the BUILD file, one input a file, of a few KiB.
      srcs: the code.
      parts: of the core, whose code the target runs: "//text/tokenizer". With
        libFuzzer they are linked into it, so that only they are built anew.
        Otherwise it takes the core's shared library, as tests do.
      deps: what else it needs: a plugin's code, libraries.
      corpus: the corpus's files; default: those of its folder.
      data: what else it reads.
      seconds: of mutations in `bazel test`.
    """
    folder = "corpus/" + name
    if corpus == None:
        corpus = native.glob([folder + "/*"])
    native.cc_test(
        name = name,
        srcs = srcs,
        args = [
            native.package_name() + "/" + folder,
            "--seconds=%d" % seconds,
        ],
        copts = ["-O1"],
        data = corpus + data,
        linkopts = select({
            "//tests/fuzz:libfuzzer": ["-fsanitize=fuzzer"],
            "//conditions:default": [],
        }),
        linkstatic = True,
        size = "small",
        tags = ["fuzz"],
        deps = deps + select({
            "//tests/fuzz:libfuzzer": parts,
            "//conditions:default": [
                "//tests/fuzz:replay_main",
                "//trainer:desk",
            ],
        }),
    )
