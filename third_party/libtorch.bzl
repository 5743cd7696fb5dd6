"""LibTorch 2.11.0: the C++ part of the torch wheel, by package name.

pip downloads the wheels from whatever index the machine is set up with and
checks the hashes below; nothing of Python is kept or run.
"""

_WHEELS = {
    "torch==2.11.0": "0f68f4ac6d95d12e896c3b7a912b5871619542ec54d3649cf48cc1edd4dd2756",
    # libtorch_cpu links the CUDA runtime and CUPTI even where there is no GPU.
    "nvidia-cuda-runtime==13.0.96": "7f82250d7782aa23b6cfe765ecc7db554bd3c2870c43f3d1821f1d18aebf0548",
    "nvidia-cuda-cupti==13.0.85": "4eb01c08e859bf924d222250d2e8f8b8ff6d3db4721288cf35d14252a4d933c8",
}

# The wheel is tagged for a CPython version; only its C++ files are used.
_PLATFORMS = ["2_28", "2_25", "2_17", "2014"]

# What the build uses of a wheel; the CUDA libraries are linked by the CUDA
# parts and loaded only on a machine with a GPU.
_KEEP = [
    "torch/lib/libc10.so",
    "torch/lib/libc10_cuda.so",
    "torch/lib/libgomp*",
    "torch/lib/libtorch.so",
    "torch/lib/libtorch_cpu.so",
    "torch/lib/libtorch_cuda.so",
    "torch/include/*",
    "nvidia/*/lib/*",
]

def _run(ctx, what, args):
    result = ctx.execute(args, timeout = 3600)
    if result.return_code != 0:
        fail("LibTorch: %s failed (%s):\n%s\n%s" % (
            what,
            result.return_code,
            result.stdout,
            result.stderr,
        ))

def _libtorch_impl(ctx):
    ctx.file("requirements.txt", "".join([
        "%s --hash=sha256:%s\n" % (wheel, sha256)
        for wheel, sha256 in _WHEELS.items()
    ]))
    platforms = [
        "--platform=manylinux%s_x86_64" % (p if p == "2014" else "_" + p)
        for p in _PLATFORMS
    ]
    _run(ctx, "downloading the wheels", [
        "python3",
        "-m",
        "pip",
        "download",
        "--quiet",
        "--no-deps",
        "--require-hashes",
        "--only-binary=:all:",
        "--python-version=3.12",
        "--implementation=cp",
        "--dest=wheels",
        "--requirement=requirements.txt",
    ] + platforms)
    for wheel in ctx.path("wheels").readdir():
        # unzip's exit code 11 says that a pattern of _KEEP isn't in this one.
        _run(ctx, "unpacking " + wheel.basename, [
            "sh",
            "-c",
            'unzip -q -o "$@" -d site 2>/dev/null || [ $? -eq 11 ]',
            "unzip",
            str(wheel),
        ] + _KEEP)
    ctx.delete("wheels")

    # The wheel's copy of protobuf's headers would shadow the system's.
    ctx.delete("site/torch/include/google")
    ctx.symlink(ctx.attr.build_file, "BUILD")

libtorch_repository = repository_rule(
    implementation = _libtorch_impl,
    attrs = {"build_file": attr.label(allow_single_file = True)},
    doc = "Fetches LibTorch and gives it the BUILD file `build_file`.",
)
