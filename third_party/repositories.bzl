"""Everything that Capstan builds on, for its own workspace and for others."""

load(":arrow.bzl", "ARROW_FILES", "ARROW_OTHERWISE", "ARROW_WHEELS")
load(":cuda.bzl", "cuda_repository")
load(":libtorch.bzl", "LIBTORCH_FILES", "LIBTORCH_REMOVED", "LIBTORCH_WHEELS")
load(":nvidia.bzl", "DISASSEMBLER_FILES", "DISASSEMBLER_WHEELS", "NVCC_FILES", "NVCC_WHEELS", "NVIDIA_FILES", "NVIDIA_WHEELS", "SANITIZER_FILES", "SANITIZER_REMOVED", "SANITIZER_WHEELS")
load(":plugins.bzl", "plugins_repository")
load(":store_servers.bzl", "STORE_SERVERS_FILES", "STORE_SERVERS_OTHERWISE", "STORE_SERVERS_WHEELS")
load(":wheels.bzl", "optional_wheels_repository", "wheels_repository")

# Debian's Bazel is built to work offline, but its embedded tools still name
# these. The stand-ins map them to the native rules, so that nothing is fetched.
_SHIMS = {
    "rules_cc": Label("//third_party/shims/rules_cc:WORKSPACE"),
    "rules_java": Label("//third_party/shims/rules_java:WORKSPACE"),
    "remote_coverage_tools": Label("//third_party/shims/coverage:WORKSPACE"),
}

def _shim_impl(ctx):
    for entry in ctx.path(ctx.attr.workspace_file).dirname.readdir():
        ctx.symlink(entry, entry.basename)

_shim_repository = repository_rule(
    implementation = _shim_impl,
    attrs = {"workspace_file": attr.label(allow_single_file = True)},
    local = True,
)

def capstan_repositories():
    """Declares the repositories that a workspace doesn't have yet.

    @arrow, @libtorch, @cuda, @nvidia, @nvcc, @disassembler, @sanitizer, @store_servers, @system (the
    distribution's packages), @capstan_plugins (Capstan's own) and the stand-ins for Debian's Bazel.
    """
    have = native.existing_rules()
    for name, workspace_file in _SHIMS.items():
        if name not in have:
            _shim_repository(name = name, workspace_file = workspace_file)
    if "arrow" not in have:
        optional_wheels_repository(
            name = "arrow",
            build_file = Label("//third_party:arrow.BUILD"),
            flag = "HAS_ARROW",
            keep = ARROW_FILES,
            otherwise = ARROW_OTHERWISE,
            wheels = ARROW_WHEELS,
        )
    if "libtorch" not in have:
        wheels_repository(
            name = "libtorch",
            build_file = Label("//third_party:libtorch.BUILD"),
            keep = LIBTORCH_FILES,
            remove = LIBTORCH_REMOVED,
            wheels = LIBTORCH_WHEELS,
        )

    # These two are fetched only if @cuda decides so, or //:dist_gpu is packed.
    if "nvidia" not in have:
        wheels_repository(
            name = "nvidia",
            build_file = Label("//third_party:nvidia.BUILD"),
            keep = NVIDIA_FILES,
            otherwise = " (--repo_env=CAPSTAN_GPU=off builds without it)",
            wheels = NVIDIA_WHEELS,
        )
    if "nvcc" not in have:
        wheels_repository(
            name = "nvcc",
            build_file = Label("//third_party:nvcc.BUILD"),
            keep = NVCC_FILES,
            otherwise = " (set CUDA_HOME to a CUDA Toolkit to do without it)",
            wheels = NVCC_WHEELS,
        )
    if "disassembler" not in have:
        wheels_repository(
            name = "disassembler",
            build_file = Label("//third_party:disassembler.BUILD"),
            keep = DISASSEMBLER_FILES,
            otherwise = " (only //kernels/cuda:machine_code_test needs it)",
            wheels = DISASSEMBLER_WHEELS,
        )
    if "sanitizer" not in have:
        wheels_repository(
            name = "sanitizer",
            build_file = Label("//third_party:sanitizer.BUILD"),
            keep = SANITIZER_FILES,
            otherwise = " (only //tests/gpu:compute-sanitizer needs it)",
            remove = SANITIZER_REMOVED,
            wheels = SANITIZER_WHEELS,
        )
    if "store_servers" not in have:
        optional_wheels_repository(
            name = "store_servers",
            build_file = Label("//third_party:store_servers.BUILD"),
            flag = "HAS_STORE_SERVERS",
            keep = STORE_SERVERS_FILES,
            otherwise = STORE_SERVERS_OTHERWISE,
            wheels = STORE_SERVERS_WHEELS,
        )
    if "cuda" not in have:
        cuda_repository(name = "cuda")
    if "system" not in have:
        native.new_local_repository(
            name = "system",
            build_file = str(Label("//third_party:system.BUILD")),
            path = "/usr",
        )
    if "capstan_plugins" not in have:
        plugins_repository(name = "capstan_plugins")
