"""Whether the GPU parts are built, and with what.

--repo_env=CAPSTAN_GPU=on, off or (the default) auto:
  on    the GPU parts and NVIDIA's libraries.
  off   neither.
  auto  both on a machine with a GPU; without one the GPU parts alone if there is
        a CUDA Toolkit with NCCL, as where they are only compiled and tested.

The compiler is that of the CUDA Toolkit in CUDA_HOME, or in /usr/local/cuda if it
fits, else that of NVIDIA's wheels. Here is only decided; what is fetched is in
repositories of its own (@nvidia, @nvcc), which stay when the answer changes.
tools/bazel asks for the GPU at each call of Bazel.
"""

load(":nvidia.bzl", "NVCC_VERSION")

# What LibTorch 2.11.0 is built with. NCCL: its interface holds NCCL's config
# struct, whose size changes with NCCL's minor version.
_CUDA_VERSION = "13.0"
_NCCL_VERSION = "2.28"

_BUILD = """package(default_visibility = ["//visibility:public"])

cc_library(
    name = "toolkit",
    hdrs = glob({hdrs}, allow_empty = True),
    includes = {includes},
)

# For run time: empty where they aren't fetched.
filegroup(
    name = "nvidia_libraries",
    srcs = {libraries},
)
"""

def _say(text):
    # buildifier: disable=print
    print(text)

def _choice(ctx):
    choice = ctx.os.environ.get("CAPSTAN_GPU", "") or "auto"
    choice = {"0": "off", "1": "on"}.get(choice, choice)
    if choice not in ["auto", "off", "on"]:
        fail("CAPSTAN_GPU must be on, off or auto, is \"%s\"" % choice)
    return choice

def _gpu_is_here(ctx):
    answer = ctx.os.environ.get("CAPSTAN_GPU_HERE", "")
    if not answer:
        # Another workspace, without our tools/bazel.
        answer = ctx.execute(
            [ctx.path(Label("//third_party:gpu_here.sh"))],
        ).stdout.strip()
    return answer == "yes"

def _nvcc_version(ctx, nvcc):
    """What nvcc says it is, "13.0.88"."""
    for line in ctx.execute([nvcc, "--version"]).stdout.splitlines():
        for word in line.split(" "):
            if word.startswith("V") and word.count(".") >= 1:
                return word[1:]
    return "unknown"

def _toolkit(ctx):
    """The system's CUDA Toolkit: its folder, "" for none, and nvcc's version."""
    chosen = ctx.os.environ.get("CUDA_HOME", "")
    home = chosen or "/usr/local/cuda"
    nvcc = ctx.path(home + "/bin/nvcc")
    if not nvcc.exists:
        if chosen:
            fail(("CUDA_HOME is %s, which has no bin/nvcc: set it to a CUDA " +
                  "Toolkit, or unset it to take NVIDIA's wheels") % chosen)
        return "", ""
    version = _nvcc_version(ctx, nvcc)
    if chosen:
        major = _CUDA_VERSION.split(".")[0]
        if version.split(".")[0] != major:
            fail(("CUDA_HOME is %s, of CUDA %s, but LibTorch needs CUDA %s: set " +
                  "it to such a Toolkit, or unset it to take NVIDIA's wheels") % (
                chosen,
                version,
                major,
            ))
    elif not version.startswith(_CUDA_VERSION + "."):
        _say("%s is CUDA %s, LibTorch's is %s: not taken" % (
            home,
            version,
            _CUDA_VERSION,
        ))
        return "", ""
    return home, version

def _nccl_version(header):
    """MAJOR.MINOR, as nccl.h defines them."""
    numbers = {}
    for line in header.splitlines():
        words = [word for word in line.split(" ") if word]
        if len(words) == 3 and words[0] == "#define":
            numbers[words[1]] = words[2]
    return numbers.get("NCCL_MAJOR", "?") + "." + numbers.get("NCCL_MINOR", "?")

def _toolkit_has_nccl(ctx, home):
    header = ctx.path(home + "/include/nccl.h")
    return (header.exists and
            _nccl_version(ctx.read(str(header))) == _NCCL_VERSION)

def _site(ctx, repository, path):
    """A folder of a repository of wheels, which is fetched now if it wasn't."""
    build = ctx.path(Label("@%s//:BUILD" % repository))
    return ctx.path("%s/site/nvidia/%s" % (build.dirname, path))

def _write(ctx, has_cuda, version, nvcc, folders, libraries):
    ctx.file("BUILD", _BUILD.format(
        hdrs = repr([folder + "/**" for folder in folders]),
        includes = repr(folders),
        libraries = repr(libraries),
    ))
    ctx.file("config.bzl", "HAS_CUDA = %s\nCUDA_VERSION = %s\nNVCC = %s\n" % (
        has_cuda,
        repr(version),
        repr(nvcc),
    ))

def _cuda_impl(ctx):
    choice = _choice(ctx)
    gpu = choice == "on" or (choice == "auto" and _gpu_is_here(ctx))
    home, version = ("", "") if choice == "off" else _toolkit(ctx)
    nccl = home and _toolkit_has_nccl(ctx, home)
    if not gpu and not nccl:
        why = "CAPSTAN_GPU=off"
        if choice == "auto":
            why = "no GPU is here; --repo_env=CAPSTAN_GPU=on builds its parts, too"
        _say("building for CPU only (%s)" % why)
        _write(ctx, False, "none", "none", [], [])
        return
    folders = ["include"]
    if home:
        # The real path, for a new Toolkit to be another command.
        nvcc = str(ctx.path(home + "/bin/nvcc").realpath)
        ctx.symlink(ctx.path(home + "/include").realpath, "include")
    else:
        version = NVCC_VERSION
        cu13 = _site(ctx, "nvcc", "cu13")

        # Another version would be at the same path: this makes it another command.
        nvcc = "CAPSTAN_NVCC=%s %s/bin/nvcc" % (version, cu13)
        ctx.symlink(ctx.path("%s/include" % cu13), "include")
        ctx.symlink(_site(ctx, "nvidia", "cu13/include"), "libraries")
        folders.append("libraries")
    if not nccl:
        ctx.symlink(_site(ctx, "nvidia", "nccl/include"), "nccl")
        folders.append("nccl")
    _write(
        ctx,
        True,
        version,
        nvcc,
        folders,
        ["@nvidia//:libraries"] if gpu else [],
    )

cuda_repository = repository_rule(
    implementation = _cuda_impl,
    environ = [
        "CAPSTAN_GPU",
        "CAPSTAN_GPU_HERE",
        "CUDA_HOME",
    ],
    local = True,
    configure = True,
    doc = "Makes @cuda//:toolkit, @cuda//:nvidia_libraries and @cuda//:config.bzl " +
          "(HAS_CUDA, CUDA_VERSION, NVCC).",
)
