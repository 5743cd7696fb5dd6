# SPDX-License-Identifier: Apache-2.0
"""Precompiled headers: what most objects include is parsed once."""

load("@bazel_tools//tools/build_defs/cc:action_names.bzl", "CPP_COMPILE_ACTION_NAME")
load("@bazel_tools//tools/cpp:toolchain_utils.bzl", "find_cpp_toolchain")

def _precompile(ctx, toolchain, context, header):
    """NAME.h.gch, made with the options of the objects that will read it."""
    features = cc_common.configure_features(
        ctx = ctx,
        cc_toolchain = toolchain,
        requested_features = ctx.features,
        unsupported_features = ctx.disabled_features,
    )
    cpp = ctx.fragments.cpp
    variables = cc_common.create_compile_variables(
        feature_configuration = features,
        cc_toolchain = toolchain,
        user_compile_flags = cpp.copts + cpp.cxxopts + ctx.attr.copts,
        include_directories = context.includes,
        quote_include_directories = context.quote_includes,
        system_include_directories = context.system_includes,
        preprocessor_defines = context.defines,
        use_pic = True,
    )
    precompiled = ctx.actions.declare_file(header.basename + ".gch")
    args = ctx.actions.args()
    args.add_all(cc_common.get_memory_inefficient_command_line(
        feature_configuration = features,
        action_name = CPP_COMPILE_ACTION_NAME,
        variables = variables,
    ))

    # -MD records the headers in the precompiled one, and -fpch-deps copies them
    # into each object's .d, which tells Bazel what to rebuild.
    args.add_all(["-MD", "-MF", "/dev/null"])
    args.add_all(["-x", "c++-header", ctx.file.src, "-o", precompiled])
    ctx.actions.run(
        executable = cc_common.get_tool_for_action(
            feature_configuration = features,
            action_name = CPP_COMPILE_ACTION_NAME,
        ),
        arguments = [args],
        inputs = depset(
            [ctx.file.src] + ctx.files._system,
            transitive = [context.headers, toolchain.all_files],
        ),
        outputs = [precompiled],
        env = cc_common.get_environment_variables(
            feature_configuration = features,
            action_name = CPP_COMPILE_ACTION_NAME,
            variables = variables,
        ),
        # As for objects: sandboxing 9,000 links costs more than it finds.
        execution_requirements = {"no-sandbox": "1"},
        mnemonic = "CppPrecompile",
        progress_message = "Precompiling %s" % ctx.file.src.short_path,
    )
    return precompiled

def _precompiled_header_impl(ctx):
    toolchain = find_cpp_toolchain(ctx)
    deps = [dep[CcInfo] for dep in ctx.attr.deps]
    context = cc_common.merge_cc_infos(cc_infos = deps).compilation_context

    # g++ uses NAME.h.gch for NAME.h if its options are those that made it.
    # NAME.h is empty for the other cases: each file includes what it uses.
    header = ctx.actions.declare_file(ctx.label.name + ".h")
    ctx.actions.write(header, "")
    files = [header, _precompile(ctx, toolchain, context, header)]
    own = CcInfo(compilation_context = cc_common.create_compilation_context(
        headers = depset(files + [ctx.file.src]),
    ))
    return [
        DefaultInfo(files = depset(files)),
        cc_common.merge_cc_infos(direct_cc_infos = [own], cc_infos = deps),
    ]

precompiled_header = rule(
    implementation = _precompiled_header_impl,
    attrs = {
        "src": attr.label(
            allow_single_file = [".h"],
            mandatory = True,
            doc = "includes what is to be precompiled",
        ),
        "copts": attr.string_list(doc = "those of the objects"),
        "deps": attr.label_list(providers = [CcInfo]),
        "_cc_toolchain": attr.label(
            default = "@bazel_tools//tools/cpp:current_cc_toolchain",
        ),
        "_system": attr.label(default = "@system//:precompiled"),
    },
    fragments = ["cpp"],
    toolchains = ["@bazel_tools//tools/cpp:toolchain_type"],
    doc = "A header that objects include first (see tools/pch/BUILD).",
)
