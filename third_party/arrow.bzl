"""Arrow's C++ libraries, of the pyarrow wheel, by package name and hash.

Where the wheel can't be fetched, HAS_ARROW of @arrow//:config.bzl is False, and
the build goes on: the trainer then says of a Parquet or CSV file what it lacks.
"""

_WHEEL = "pyarrow==26.0.1"
_SHA256 = "c718bf97a92a6dea97fd1062c3b9f9e2e83cb9cc926e752289fa4ffff41738f9"

# What the build uses of it, and the licences for //:dist.
_KEEP = [
    "pyarrow/include/arrow/*",
    "pyarrow/include/parquet/*",
    "pyarrow/libarrow.so.*",
    "pyarrow/libparquet.so.*",
    "*.dist-info/RECORD",
    "*.dist-info/licenses/*",
]

# The wheel is tagged for a CPython version; only its C++ files are used.
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
    "--platform=manylinux_2_28_x86_64",
    "--dest=wheels",
    "--requirement=requirements.txt",
]

def _arrow_impl(ctx):
    ctx.file("requirements.txt", "%s --hash=sha256:%s\n" % (_WHEEL, _SHA256))
    got = ctx.execute(_DOWNLOAD, timeout = 600)
    has = got.return_code == 0
    if has:
        for wheel in ctx.path("wheels").readdir():
            unpacked = ctx.execute(
                ["unzip", "-q", "-o", str(wheel)] + _KEEP + ["-d", "site"],
            )
            if unpacked.return_code != 0:
                fail("Arrow: unpacking %s failed:\n%s" % (
                    wheel.basename,
                    unpacked.stderr,
                ))
    else:
        # buildifier: disable=print
        print(("%s can't be fetched, so Parquet, CSV and TSV won't be read " +
               "(`bazel sync --only=arrow` tries again):\n%s") % (
            _WHEEL,
            got.stderr,
        ))
    ctx.delete("wheels")
    ctx.file("config.bzl", "HAS_ARROW = %s\n" % has)
    ctx.symlink(ctx.attr.build_file, "BUILD")

arrow_repository = repository_rule(
    implementation = _arrow_impl,
    attrs = {"build_file": attr.label(allow_single_file = True)},
    doc = "Fetches Arrow and gives it the BUILD file `build_file`.",
)
