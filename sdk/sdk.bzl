# SPDX-License-Identifier: Apache-2.0
"""The SDK folder: headers, libraries and files of given targets in one tree."""

def _relative(file, ctx):
    """The path in its repository, of a source or of what the build makes."""
    path = file.short_path
    return "/".join(path.split("/")[2:]) if path.startswith("../") else path

def _static_library(target):
    """The archive of the target itself."""
    for linked in target[CcInfo].linking_context.linker_inputs.to_list():
        if linked.owner != target.label:
            continue
        for library in linked.libraries:
            archive = library.pic_static_library or library.static_library
            if archive:
                return archive
    fail("%s has no archive" % target.label)

def _sdk_impl(ctx):
    out = ctx.actions.declare_directory(ctx.label.name)
    copies = [
        (target.files.to_list()[0], path)
        for target, path in ctx.attr.files.items()
    ] + [
        (_static_library(target), "lib/lib%s.a" % name)
        for target, name in ctx.attr.archives.items()
    ]
    headers = [
        file
        for file in depset(transitive = [
            target[CcInfo].compilation_context.headers
            for target in ctx.attr.archives.keys() + [ctx.attr.link]
        ]).to_list()
        if file.owner.workspace_name == ctx.label.workspace_name
    ]
    flags = []
    for linked in ctx.attr.link[CcInfo].linking_context.linker_inputs.to_list():
        flags.extend(linked.user_link_flags)
    manifest = ctx.actions.declare_file(ctx.label.name + ".json")
    ctx.actions.write(manifest, struct(
        copies = [[file.path, path] for file, path in copies],
        headers = [[file.path, _relative(file, ctx)] for file in headers],
        include = ctx.attr.include,
        link_flags = flags,
    ).to_json())
    ctx.actions.run(
        executable = "python3",
        arguments = [ctx.file._make.path, manifest.path, out.path],
        inputs = [manifest, ctx.file._make] + headers + [file for file, _ in copies],
        outputs = [out],
        mnemonic = "CapstanSdk",
        use_default_shell_env = True,
    )
    return [DefaultInfo(files = depset([out]), runfiles = ctx.runfiles([out]))]

capstan_sdk = rule(
    implementation = _sdk_impl,
    attrs = {
        "archives": attr.label_keyed_string_dict(
            providers = [CcInfo],
            doc = "Libraries, and the names of their archives in lib/.",
        ),
        "files": attr.label_keyed_string_dict(
            allow_files = True,
            doc = "Files, and where they go.",
        ),
        "include": attr.string_list(
            doc = "Headers, or folders of them, by the beginning of the path.",
        ),
        "link": attr.label(
            providers = [CcInfo],
            doc = "What a plugin links: its headers, and flags of the linker.",
        ),
        "_make": attr.label(
            default = ":make_sdk.py",
            allow_single_file = True,
        ),
    },
)
