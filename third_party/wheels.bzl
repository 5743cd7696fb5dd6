"""Files of Python wheels, by package name and hash. Nothing of Python is kept, but for tests.

pip downloads them from whatever index the machine is set up with and checks the
hashes.
"""

# Wheels are tagged for a CPython version and platforms; only their C++ files
# are used.
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

# //:dist hands on the licences, found by what is in RECORD.
_LICENSES = [
    "*.dist-info/RECORD",
    "*.dist-info/licenses/*",
    "nvidia/*/LICENSE.txt",
]

def _run(ctx, what, args):
    result = ctx.execute(args, timeout = 3600)
    if result.return_code != 0:
        fail("@%s: %s failed (%s)%s:\n%s\n%s" % (
            ctx.name,
            what,
            result.return_code,
            ctx.attr.otherwise,
            result.stdout,
            result.stderr,
        ))

_DOWNLOAD = [
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
] + ["--platform=manylinux%s_x86_64" % p for p in _PLATFORMS]

def _require(ctx, wheels):
    ctx.file("requirements.txt", "".join([
        "%s --hash=sha256:%s\n" % (wheel, sha256)
        for wheel, sha256 in wheels.items()
    ]))

def _unpack(ctx):
    for wheel in ctx.path("wheels").readdir():
        # unzip's exit code 11 says that a pattern isn't in this one.
        _run(ctx, "unpacking " + wheel.basename, [
            "sh",
            "-c",
            'unzip -q -o "$@" -d site 2>/dev/null || [ $? -eq 11 ]',
            "unzip",
            str(wheel),
        ] + ctx.attr.keep + _LICENSES)
    ctx.delete("wheels")

def _wheels_impl(ctx):
    _require(ctx, ctx.attr.wheels)
    _run(ctx, "downloading the wheels", _DOWNLOAD)
    _unpack(ctx)
    for path in ctx.attr.remove:
        ctx.delete("site/" + path)
    ctx.symlink(ctx.attr.build_file, "BUILD")

wheels_repository = repository_rule(
    implementation = _wheels_impl,
    attrs = {
        "build_file": attr.label(allow_single_file = True),
        "keep": attr.string_list(
            doc = "What the build uses of a wheel: unzip's patterns.",
        ),
        "otherwise": attr.string(
            doc = "For errors: how to do without it.",
        ),
        "remove": attr.string_list(doc = "Of what is kept."),
        "wheels": attr.string_dict(doc = "NAME==VERSION: its SHA-256."),
    },
    doc = "Unpacks wheels below site/, with the BUILD file `build_file`. Fetched " +
          "when something first asks for it, and again only if an attribute changes.",
)

def _optional_wheels_impl(ctx):
    _require(ctx, ctx.attr.wheels)
    got = ctx.execute(_DOWNLOAD, timeout = 600)
    has = got.return_code == 0
    if has:
        _unpack(ctx)
    else:
        # buildifier: disable=print
        print("%s can't be fetched, so %s (`bazel sync --only=%s` tries again):\n%s" % (
            " and ".join(ctx.attr.wheels.keys()),
            ctx.attr.otherwise,
            ctx.name,
            got.stderr,
        ))
    ctx.file("config.bzl", "%s = %s\n" % (ctx.attr.flag, has))
    ctx.symlink(ctx.attr.build_file, "BUILD")

optional_wheels_repository = repository_rule(
    implementation = _optional_wheels_impl,
    attrs = {
        "build_file": attr.label(allow_single_file = True),
        "flag": attr.string(doc = "config.bzl's name of whether it is there."),
        "keep": attr.string_list(doc = "As in wheels_repository."),
        "otherwise": attr.string(doc = "What goes without it."),
        "wheels": attr.string_dict(doc = "NAME==VERSION: its SHA-256."),
    },
    doc = "Unpacks wheels below site/. Where one can't be fetched the build goes on " +
          "without them.",
)
