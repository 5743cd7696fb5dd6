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

# NVIDIA's libraries as LibTorch 2.11.0 was built with; 2 GB, so only fetched on
# a machine with a GPU (or with CAPSTAN_GPU=1 set).
_GPU_WHEELS = {
    "nvidia-cublas==13.1.0.3": "ee8722c1f0145ab246bccb9e452153b5e0515fd094c3678df50b2a0888b8b171",
    "nvidia-cuda-nvrtc==13.0.88": "ad9b6d2ead2435f11cbb6868809d2adeeee302e9bb94bcf0539c7a40d80e8575",
    "nvidia-cudnn-cu13==9.19.0.56": "d20e1734305e9d68889a96e3f35094d733ff1f83932ebe462753973e53a572bf",
    "nvidia-cufft==12.0.0.61": "6c44f692dce8fd5ffd3e3df134b6cdb9c2f72d99cf40b62c32dde45eea9ddad3",
    "nvidia-cufile==1.15.1.6": "08a3ecefae5a01c7f5117351c64f17c7c62efa5fffdbe24fc7d298da19cd0b44",
    "nvidia-curand==10.4.0.35": "1aee33a5da6e1db083fe2b90082def8915f30f3248d5896bcec36a579d941bfc",
    "nvidia-cusolver==12.0.4.66": "0a759da5dea5c0ea10fd307de75cdeb59e7ea4fcb8add0924859b944babf1112",
    "nvidia-cusparse==12.6.3.3": "2b3c89c88d01ee0e477cb7f82ef60a11a4bcd57b6b87c33f789350b59759360b",
    "nvidia-cusparselt-cu13==0.8.0": "25e30a8a7323935d4ad0340b95a0b69926eee755767e8e0b1cf8dd85b197d3fd",
    "nvidia-nccl-cu13==2.28.9": "e4553a30f34195f3fa1da02a6da3d6337d28f2003943aa0a3d247bbc25fefc42",
    "nvidia-nvjitlink==13.0.88": "13a74f429e23b921c1109976abefacc69835f2f433ebd323d3946e11d804e47b",
    "nvidia-nvshmem-cu13==3.4.5": "290f0a2ee94c9f3687a02502f3b9299a9f9fe826e6d0287ee18482e78d495b80",
    "nvidia-nvtx==13.0.85": "4936d1d6780fbe68db454f5e72a42ff64d1fd6397df9f363ae786930fd5c1cd4",
}

# The wheel is tagged for a CPython version; only its C++ files are used.
_PLATFORMS = [
    "_2_28",
    "_2_27",
    "_2_25",
    "_2_18",
    "_2_17",
    "2014",
    "2010",
    "1",
]

# What the build uses of a wheel; the CUDA libraries are linked by the CUDA
# parts and loaded only on a machine with a GPU.
_KEEP = [
    "torch/lib/libc10.so",
    "torch/lib/libc10_cuda.so",
    "torch/lib/libgomp*",
    "torch/lib/libtorch.so",
    "torch/lib/libtorch_cpu.so",
    "torch/lib/libtorch_cuda.so",
    "torch/lib/libtorch_nvshmem.so",
    "torch/include/*",
    "nvidia/*/lib/*",
    # //:dist hands on the licences, found by what is in RECORD.
    "*.dist-info/RECORD",
    "*.dist-info/licenses/*",
    "nvidia/*/LICENSE.txt",
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
    wheels = dict(_WHEELS)
    if (ctx.path("/proc/driver/nvidia/version").exists or
        ctx.os.environ.get("CAPSTAN_GPU", "") == "1"):
        wheels.update(_GPU_WHEELS)
    ctx.file("requirements.txt", "".join([
        "%s --hash=sha256:%s\n" % (wheel, sha256)
        for wheel, sha256 in wheels.items()
    ]))
    platforms = ["--platform=manylinux%s_x86_64" % p for p in _PLATFORMS]
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
    environ = ["CAPSTAN_GPU"],
    doc = "Fetches LibTorch and gives it the BUILD file `build_file`.",
)
