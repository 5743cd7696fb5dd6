"""The build macros of Capstan: protos, parts of the core, plugins, tests."""

def capstan_proto(name, src, deps = [], in_core = False, keyword = ""):
    """A .proto file as a C++ library.

    Each .proto is compiled into exactly one shared object: into the plugin
    that owns it, or (in_core) into libcapstan_core.so. Two copies of one
    generated file in a process abort inside protobuf.

    Args:
      name: the library; NAME_hdrs holds only the generated header.
      src: the .proto file.
      deps: header targets (*_hdrs) of the protos that it imports.
      in_core: keep every symbol, for the core's shared library.
      keyword: a part of the package that is a C++ keyword, which protoc takes
        for a namespace: the namespace gets a '_' behind it.
    """
    rename = "" if not keyword else (
        " && sed -i 's/namespace {0} {{/namespace {0}_ {{/; s/::{0}::/::{0}_::/g'".format(keyword) +
        " $(OUTS)"
    )
    stem = src[:-len(".proto")]
    native.genrule(
        name = name + "_gen",
        srcs = [src],
        outs = [stem + ".pb.h", stem + ".pb.cc"],
        cmd = "$(location @system//:bin/protoc) -I. -I/usr/include " +
              "--cpp_out=$(BINDIR) $(location %s)" % src + rename,
        exec_tools = ["@system//:bin/protoc", "//plugins/sdk:options.proto"],
    )
    native.cc_library(
        name = name + "_hdrs",
        hdrs = [stem + ".pb.h"],
        visibility = ["//visibility:public"],
        deps = deps + ["@system//:protobuf"],
    )
    native.cc_library(
        name = name,
        srcs = [stem + ".pb.cc"],
        alwayslink = in_core,
        linkstatic = True,
        visibility = ["//visibility:public"],
        deps = [":" + name + "_hdrs"],
    )

def core_library(name, srcs = [], hdrs = [], deps = [], **kwargs):
    """A part of libcapstan_core.so; NAME_hdrs holds only the headers.

    Tests and plugins take the headers, and the code from the one shared
    library, so that there is one copy of the core's state in a process.
    """
    native.cc_library(
        name = name + "_hdrs",
        hdrs = hdrs,
        visibility = ["//visibility:public"],
        deps = ["@libtorch//:headers"],
    )
    native.cc_library(
        name = name,
        srcs = srcs,
        hdrs = hdrs,
        alwayslink = True,
        linkstatic = True,
        visibility = ["//visibility:public"],
        deps = deps,
        **kwargs
    )

def capstan_plugin(name, deps, visibility = ["//visibility:public"]):
    """libPACKAGE_NAME.so: a plugin, with nothing visible but its descriptor.

    Args:
      name: the proto package with '_' for '.': "capstan_ddp".
      deps: the library that holds the plugin's code, CAPSTAN_PLUGIN included.
      visibility: as ever.
    """
    native.cc_binary(
        name = "lib%s.so" % name,
        additional_linker_inputs = ["//tools:plugin.lds"],
        linkopts = [
            "-Wl,--version-script=$(location //tools:plugin.lds)",
            "-Wl,-soname,lib%s.so" % name,
            "-Wl,--no-undefined",
        ],
        linkshared = True,
        linkstatic = True,
        visibility = visibility,
        deps = deps + ["//plugins/sdk"],
    )

def plugin_library(name, srcs, hdrs = [], deps = [], **kwargs):
    """A plugin's code: sees the SDK's headers, and nothing else of the core."""
    native.cc_library(
        name = name,
        srcs = srcs,
        hdrs = hdrs,
        alwayslink = True,
        linkstatic = True,
        deps = deps + ["//plugins/sdk"],
        **kwargs
    )

def capstan_test(name, srcs, deps = [], size = "small", **kwargs):
    """A googletest against the core's shared library."""
    native.cc_test(
        name = name,
        srcs = srcs,
        linkstatic = True,
        size = size,
        deps = deps + ["//trainer:core", "@system//:gtest_main"],
        **kwargs
    )
