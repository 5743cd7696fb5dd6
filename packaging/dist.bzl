# SPDX-License-Identifier: Apache-2.0
"""The trainer, and all it needs but glibc, as an archive of one folder."""

def _target(file, place):
    """"configs/" is a folder to put the file in."""
    return place + file.basename if place.endswith("/") else place

def _dist_impl(ctx):
    if ctx.attr.unavailable:
        fail(ctx.attr.unavailable)
    folder = "capstan-" + ctx.attr.version
    out = ctx.actions.declare_file("%s-%s.tar.zst" % (folder, ctx.attr.platform))
    copies = [
        (file, _target(file, place))
        for files in [ctx.attr.files, ctx.attr.more_files]
        for target, place in files.items()
        for file in target.files.to_list()
    ]
    manifest = ctx.actions.declare_file(ctx.label.name + ".json")
    ctx.actions.write(manifest, struct(
        copies = [[file.path, path] for file, path in copies],
        folder = folder,
        libraries = [file.path for file in ctx.files.libraries],
        licenses = [file.path for file in ctx.files.licenses],
        shim = ctx.file._shim.path,
    ).to_json())
    ctx.actions.run(
        executable = "python3",
        arguments = [ctx.files._make[0].path, manifest.path, out.path],
        inputs = [manifest, ctx.file._shim] + ctx.files._make +
                 [file for file, _ in copies] +
                 ctx.files.libraries + ctx.files.licenses,
        outputs = [out],
        # It asks dpkg for the packages' licences, and copies half a gigabyte.
        execution_requirements = {
            "no-cache": "1",
            "no-sandbox": "1",
        },
        mnemonic = "CapstanDist",
        progress_message = "Packing %s" % out.short_path,
        use_default_shell_env = True,
    )
    return [DefaultInfo(files = depset([out]))]

capstan_dist = rule(
    implementation = _dist_impl,
    attrs = {
        "files": attr.label_keyed_string_dict(
            allow_files = True,
            doc = "What goes into the folder, and where.",
        ),
        "libraries": attr.label_list(
            allow_files = True,
            doc = "What may be carried; what is needed of it is.",
        ),
        "licenses": attr.label_list(
            allow_files = True,
            doc = "Of the wheels; those of Debian's packages are found.",
        ),
        "more_files": attr.label_keyed_string_dict(
            allow_files = True,
            doc = "Likewise.",
        ),
        "platform": attr.string(
            mandatory = True,
            doc = "What it runs on, for the archive's name.",
        ),
        "unavailable": attr.string(
            doc = "Why it can't be built here; empty if it can.",
        ),
        "version": attr.string(
            mandatory = True,
            doc = "Of Capstan.",
        ),
        "_make": attr.label(
            default = ":make_dist",
            allow_files = True,
        ),
        "_shim": attr.label(
            default = ":libcapstan_glibc.so",
            allow_single_file = True,
        ),
    },
)
