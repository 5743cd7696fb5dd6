"""The CUDA Toolkit and NCCL, where they are installed.

CUDA_HOME, or /usr/local/cuda. Without one the repository is empty, HAS_CUDA
is False, and the build is the complete CPU build.
"""

_LIBRARIES = ["cudart", "nccl"]

# What LibTorch 2.11.0 is built with: its interface holds NCCL's config struct,
# whose size changes with NCCL's minor version.
_NCCL_VERSION = "2.28"

_BUILD = """package(default_visibility = ["//visibility:public"])

cc_library(
    name = "toolkit",
    hdrs = glob(["include/**"]),
    includes = ["include"],
    linkopts = {linkopts},
)
"""

def _nccl_version(header):
    """MAJOR.MINOR, as nccl.h defines them."""
    numbers = {}
    for line in header.splitlines():
        words = [word for word in line.split(" ") if word]
        if len(words) == 3 and words[0] == "#define":
            numbers[words[1]] = words[2]
    return numbers.get("NCCL_MAJOR", "?") + "." + numbers.get("NCCL_MINOR", "?")

def _cuda_impl(ctx):
    home = ctx.os.environ.get("CUDA_HOME", "") or "/usr/local/cuda"
    include = ctx.path(home + "/include")
    found = ctx.path(home + "/bin/nvcc").exists
    nccl = found and ctx.path(home + "/include/nccl.h").exists
    if not found:
        # buildifier: disable=print
        print("no CUDA Toolkit at %s (set CUDA_HOME): building for CPU only" % home)
    elif not nccl:
        # buildifier: disable=print
        print("no NCCL beside the CUDA Toolkit at %s: building for CPU only" % home)
    else:
        version = _nccl_version(ctx.read(home + "/include/nccl.h"))
        if version != _NCCL_VERSION:
            nccl = False

            # buildifier: disable=print
            print("NCCL %s at %s, but LibTorch needs NCCL %s: building for CPU only" % (version, home, _NCCL_VERSION))
    linkopts = []
    if nccl:
        ctx.symlink(include.realpath, "include")
        for folder in ["lib64", "lib"]:
            if ctx.path(home + "/" + folder).exists:
                linkopts.append("-L%s/%s" % (ctx.path(home).realpath, folder))
        linkopts += ["-l" + name for name in _LIBRARIES]
    ctx.file("BUILD", _BUILD.format(linkopts = repr(linkopts)))
    version = "none"
    nvcc = "none"
    if nccl:
        # The real path, for a new Toolkit to be another command.
        nvcc = str(ctx.path(home + "/bin/nvcc").realpath)
        result = ctx.execute([nvcc, "--version"])
        for word in result.stdout.replace(",", " ").split(" "):
            if word.startswith("V") and word.count(".") >= 1:
                version = word[1:].split("\n")[0]
    ctx.file("config.bzl", "HAS_CUDA = %s\nCUDA_VERSION = %s\nNVCC = %s\n" % (
        nccl,
        repr(version),
        repr(nvcc),
    ))

cuda_repository = repository_rule(
    implementation = _cuda_impl,
    environ = ["CUDA_HOME"],
    local = True,
    doc = "Makes @cuda//:toolkit and @cuda//:config.bzl (HAS_CUDA, CUDA_VERSION, NVCC).",
)
