"""The build macros of Capstan: protos, parts of the core, plugins, tests.

They serve other workspaces, too: labels of Capstan's own targets are resolved
in the repository that this file is in.
"""

load("@capstan_plugins//:plugins.bzl", "PLUGINS")
load("//trainer:parts.bzl", "CORE_PARTS")

_CORE = Label("//trainer:core")
_LINKER_SCRIPT = Label("//tools:plugin.lds")
_OPTIONS_PROTO = Label("//plugins/sdk:options.proto")
_OPTIONS_PROTO_HDRS = Label("//plugins/sdk:options_proto_hdrs")
_SDK = Label("//plugins/sdk")
_SEPARATE = "//tools:separate"

def _root():
    """The folder, below the execution root, of the BUILD file's repository."""
    repository = native.repository_name()[1:]
    return "external/" + repository if repository else "."

# Parsing headers and instantiating their templates is most of what an object
# costs, so an object is made of up to so many sources.
_JOINED = 16

def cc_library(name, srcs = [], deps = [], copts = [], pch = None, alone = [], textual_hdrs = [], **kwargs):
    """native.cc_library, whose objects are several sources each.

    --define=join=off compiles each source for itself: for those who edit them,
    and to check that each file includes what it uses.

    Args:
      name: as ever.
      srcs: as ever.
      deps: as ever.
      copts: as ever.
      pch: a header of tools/pch, or None. It saves only time: each file still
        includes what it uses.
      alone: those of `srcs` that can't be joined with others.
      textual_hdrs: as ever.
      **kwargs: as ever.
    """
    # Another workspace's flags may differ from those of the header.
    if pch and srcs and not _SDK.workspace_root:
        deps = deps + _pch_deps(pch)
        copts = copts + _pch_copts(pch)
    joined = [] if _SDK.workspace_root else _join(name, srcs, alone)
    if joined:
        parts = [src for src in srcs if _joins(src, alone)]
        others = [src for src in srcs if not _joins(src, alone)]
        srcs = others + select({
            _SEPARATE: parts,
            "//conditions:default": joined,
        })
        textual_hdrs = textual_hdrs + select({
            _SEPARATE: [],
            "//conditions:default": parts,
        })
    native.cc_library(
        name = name,
        srcs = srcs,
        copts = copts,
        textual_hdrs = textual_hdrs,
        deps = deps,
        **kwargs
    )

def _joins(src, alone):
    return src.endswith(".cc") and not src.endswith(".pb.cc") and src not in alone and ":" not in src

def _join(name, srcs, alone):
    """Sources that include up to _JOINED of `srcs` each; their names."""
    if type(srcs) != "list":
        return []
    parts = [src for src in srcs if _joins(src, alone)]
    if len(parts) < 2:
        return []
    count = (len(parts) + _JOINED - 1) // _JOINED
    joined = []
    for i in range(count):
        # As even as can be: the last is no shorter than the others by two.
        some = parts[len(parts) * i // count:len(parts) * (i + 1) // count]
        out = "%s_joined_%d.cc" % (name, i)
        lines = ["#include \\\"%s/%s\\\"" % (native.package_name(), src) for src in some]
        native.genrule(
            name = "%s_joined_%d" % (name, i),
            outs = [out],
            cmd = "printf '%s\\n' " + " ".join(["\"%s\"" % line for line in lines]) + " > $@",
            visibility = ["//visibility:private"],
        )
        joined.append(out)
    return joined

def _pch_deps(pch):
    if _SDK.workspace_root:
        return []
    return select({
        "//tools/pch:off": [],
        "//conditions:default": ["//tools/pch:pch_" + pch],
    })

def _pch_copts(pch):
    if _SDK.workspace_root:
        return []
    return select({
        "//tools/pch:off": [],
        "//conditions:default": [
            "-include tools/pch/pch_%s.h" % pch,
            "-fpch-deps",
            "-Winvalid-pch",
        ],
    })

def capstan_proto(
        name,
        src,
        deps = [],
        imports = [],
        in_core = False,
        keyword = "",
        visibility = ["//visibility:public"]):
    """A .proto file as a C++ library.

    Each .proto is compiled into exactly one shared object: into the plugin
    that owns it, or (in_core) into libcapstan_core.so or libcapstan_desk.so. Two copies of one
    generated file in a process abort inside protobuf.

    The object has a section capstan_docs: the file's descriptor with its
    comments, as a FileDescriptorSet (host/plugins: ReadConfigDocs). Those of
    several files in one library, one behind the other, are one set, too.

    Args:
      name: the library; NAME_hdrs holds only the generated header.
      src: the .proto file. Its name, by which protobuf knows it in a process,
        is its path in its repository.
      deps: header targets (*_hdrs) of the core's protos that it imports.
      imports: capstan_proto targets of other protos that it imports.
      in_core: keep every symbol, for the core's shared library.
      keyword: a part of the package that is a C++ keyword, which protoc takes
        for a namespace: the namespace gets a '_' behind it.
      visibility: as ever.
    """
    rename = "" if not keyword else (
        " && sed -i 's/namespace {0} {{/namespace {0}_ {{/; s/::{0}::/::{0}_::/g'".format(keyword) +
        " $(OUTS)"
    )
    stem = src[:-len(".proto")]
    root = _root()
    out = "$(BINDIR)" if root == "." else "$(BINDIR)/" + root
    protoc = "$(location @system//:bin/protoc) -I%s -I%s -I/usr/include $(location %s) " % (
        root,
        _OPTIONS_PROTO.workspace_root or ".",
        src,
    )
    native.filegroup(
        name = name + "_src",
        srcs = [src],
        visibility = visibility,
    )
    native.genrule(
        name = name + "_gen",
        srcs = [src] + [label + "_src" for label in imports],
        outs = [stem + ".pb.h", stem + ".pb.cc"],
        cmd = protoc + "--cpp_out=%s" % out + rename + " && " + protoc +
              "--include_source_info --descriptor_set_out=/dev/stdout | " +
              "od -An -v -tx1 -w64 | sed " +
              "-e '1i asm(\".pushsection capstan_docs,\\\\\"aR\\\\\"\\\\n\"' " +
              "-e 's/ /,0x/g; s/^,/\".byte /; s/$$/\\\\n\"/' " +
              "-e '$$a \".popsection\");' >> $(RULEDIR)/" + stem + ".pb.cc",
        exec_tools = ["@system//:bin/protoc", _OPTIONS_PROTO],
    )
    native.cc_library(
        name = name + "_hdrs",
        hdrs = [stem + ".pb.h"],
        visibility = visibility,
        deps = deps + [label + "_hdrs" for label in imports] + ["@system//:protobuf"],
    )
    cc_library(
        name = name,
        srcs = [stem + ".pb.cc"],
        alwayslink = in_core,
        linkstatic = True,
        pch = "plain",
        visibility = visibility,
        deps = [":" + name + "_hdrs"] + imports,
    )

def embedded_files(name, symbol, folder):
    """NAME.cc, which defines `const EmbeddedFile SYMBOL[]` of a folder's files.

    Args:
      name: of the target.
      symbol: of the array, in namespace capstan.
      folder: below the package.
    """
    files = native.glob([folder + "/**"])
    native.genrule(
        name = name,
        srcs = files,
        outs = [name + ".cc"],
        cmd = "{ echo '#include \"base/embedded_files.h\"';" +
              " echo 'namespace capstan {';" +
              " echo 'extern const EmbeddedFile %s[];';" % symbol +
              " echo 'const EmbeddedFile %s[] = {';" % symbol +
              "".join([
                  " printf '{\"%s\", R\"capstan_file(';" % file[len(folder) + 1:] +
                  " cat $(location %s); echo ')capstan_file\"},';" % file
                  for file in files
              ]) +
              " echo '{nullptr, nullptr}};'; echo '}  // namespace capstan'; } > $@",
    )

def core_library(name, srcs = [], hdrs = [], deps = [], pch = "plain", **kwargs):
    """A part of libcapstan_core.so (trainer/parts.bzl); NAME_hdrs holds only the headers.

    Tests and plugins take the headers, and the code from the one shared
    library, so that there is one copy of the core's state in a process.

    Args:
      name: as ever.
      srcs: as ever.
      hdrs: as ever.
      deps: as ever.
      pch: "tensor" where most files see at::Tensor.
      **kwargs: as ever.
    """
    native.cc_library(
        name = name + "_hdrs",
        hdrs = hdrs,
        deps = ["@libtorch//:headers"],
    )
    cc_library(
        name = name,
        srcs = srcs,
        hdrs = hdrs,
        alwayslink = True,
        linkstatic = True,
        pch = pch,
        deps = deps,
        **kwargs
    )

# As BUILD files name them: //base, //trainer/metrics:run_end.
_CORE_LABELS = [
    folder if folder.split("/")[-1] == name else "%s:%s" % (folder, name)
    for folder, name in CORE_PARTS
]

def desk_library(name, deps, **kwargs):
    """A part of libcapstan_desk.so, or of another one beside the core.

    It takes the core's code from its library.

    Args:
      name: as ever.
      deps: as ever; the core's parts among them are said for the reader.
      **kwargs: as core_library's.
    """
    core_library(
        name = name,
        deps = select({
            # One program without the core's library.
            "//tests/fuzz:libfuzzer": deps,
            "//conditions:default": ["//trainer:core"] + [
                dep
                for dep in deps
                if dep not in _CORE_LABELS
            ],
        }),
        **kwargs
    )

def plugin_library(name, srcs, hdrs = [], deps = [], pch = "ops", **kwargs):
    """A plugin's code: sees the SDK's headers, and nothing else of the core.

    Args:
      name: as ever.
      srcs: as ever.
      hdrs: as ever.
      deps: as ever.
      pch: "plain" where no file sees at::Tensor.
      **kwargs: as ever.
    """
    cc_library(
        name = name,
        srcs = srcs,
        hdrs = hdrs,
        alwayslink = True,
        linkstatic = True,
        pch = pch,
        deps = deps + [_SDK],
        **kwargs
    )

def _check_listed(library):
    """Bazel can't see that a folder has appeared; a new server looks anew."""
    package = native.package_name()
    if native.repository_name() != "@" or _SDK.workspace_root:
        return  # not a package of Capstan's own workspace
    if package.split("/")[0] not in ["plugins", "strategies", "datasets"]:
        return
    label = "//%s:%s" % (package, library)
    if label not in PLUGINS:
        fail("%s is new: type `bazel sync --only=capstan_plugins` once" % label)

def capstan_plugin(
        name,
        srcs = None,
        hdrs = None,
        alone = [],
        deps = [],
        keyword = "",
        proto_imports = [],
        code = "",
        pch = "ops",
        tests = None,
        test_deps = [],
        test_data = [],
        conformance = [],
        visibility = ["//visibility:private"]):
    """A plugin, all of it: proto, code, shared library and tests.

    For the plugin acme.lion, whose config is the message Config of lion.proto:
      lion           its code, with CAPSTAN_PLUGIN in one file
      lion_proto     lion.proto, if there is one, with Capstan's field options to import
      libacme_lion.so  with nothing visible but its descriptor
      *_test         a test a file
    In plugins/, strategies/ and datasets/ it is one of the trainer's own by
    being there; elsewhere it is found by --plugin_path.

    Args:
      name: the proto package with '_' for '.': "acme_lion".
      srcs: the code; default: the folder's .cc files that are no test or
        benchmark. A file plugin.cc, or *_plugin.cc, which holds CAPSTAN_PLUGIN
        where several plugins' code is linked into one program, goes into the
        shared library alone.
      hdrs: default: the folder's .h files that aren't for tests.
      alone: of code and tests: see cc_library.
      deps: what the code needs beside the SDK.
      keyword: see capstan_proto.
      proto_imports: see capstan_proto's `imports`.
      pch: see plugin_library.
      code: the name of the code's target; default: the last part of `name`.
      tests: default: the folder's *_test.cc.
      test_deps, test_data: what all of the tests need besides.
      conformance: suites of tests/conformance ("optimizer") that
        conformance_test.cc has lines of; it runs on the shared library.
      visibility: of the code. The shared library is visible in its repository.
    """
    stem = name[name.index("_") + 1:]
    code = code or stem
    library = "lib%s.so" % name
    _check_listed(library)
    headers_of_tests = native.glob(["*_testing.h", "*_fixture.h", "fake_*.h"])
    entry = native.glob(["plugin.cc", "*_plugin.cc"])
    if srcs == None:
        srcs = native.glob(["*.cc"], exclude = ["*_test.cc", "*_bench.cc"] + entry)
    if hdrs == None:
        hdrs = native.glob(["*.h"], exclude = headers_of_tests)
    proto = native.glob([stem + ".proto"])
    if proto:
        capstan_proto(
            name = stem + "_proto",
            src = stem + ".proto",
            deps = [_OPTIONS_PROTO_HDRS],
            imports = proto_imports,
            keyword = keyword,
            visibility = visibility,
        )
    plugin_library(
        name = code,
        srcs = srcs,
        hdrs = hdrs,
        alone = alone,
        pch = pch,
        visibility = visibility,
        deps = [":%s_proto" % stem for _ in proto] + deps,
    )
    if entry:
        plugin_library(
            name = code + "_entry",
            srcs = entry,
            pch = pch,
            visibility = ["//visibility:private"],
            deps = [":" + code],
        )
    native.cc_binary(
        name = library,
        additional_linker_inputs = [_LINKER_SCRIPT],
        linkopts = [
            "-Wl,--version-script=$(location %s)" % _LINKER_SCRIPT,
            "-Wl,-soname," + library,
            "-Wl,--no-undefined",
        ],
        linkshared = True,
        linkstatic = True,
        visibility = ["//:__subpackages__"],
        deps = [":" + code + ("_entry" if entry else ""), _SDK],
    )
    if tests == None:
        tests = native.glob(
            ["*_test.cc"],
            exclude = ["conformance_test.cc"],
        )
    joined = [] if _SDK.workspace_root else [test for test in tests if test not in alone]
    if len(joined) > 1:
        joined_tests(
            name = name + "_tests",
            tests = [test[:-len(".cc")] for test in joined],
            hdrs = headers_of_tests,
            data = test_data,
            deps = [":" + code] + test_deps,
        )
        tests = [test for test in tests if test in alone]
    for test in tests:
        capstan_test(
            name = test[:-len(".cc")],
            srcs = [test] + headers_of_tests,
            data = test_data,
            deps = [":" + code] + test_deps,
        )
    if conformance:
        capstan_test(
            name = "conformance_test",
            srcs = ["conformance_test.cc"],
            size = "medium",
            data = [":" + library] + test_data,
            deps = [Label("//tests/conformance:" + suite) for suite in conformance] + test_deps,
        )

# Folders whose tests see no at::Tensor. They are compiled without optimisation.
_PLAIN_TESTS = ["base", "cluster/launch", "cluster/members", "desk", "host", "text"]

def _test_pch():
    """The header of tools/pch for the package's tests, and its level of optimisation."""
    package = native.package_name()
    for folder in _PLAIN_TESTS:
        if (package + "/").startswith(folder + "/"):
            return "plain_test", "-O0"
    return "test", "-O1"

def _core_of_tests():
    return "//trainer:desk" if native.package_name().startswith("desk/") else _CORE

def capstan_test(name, srcs, deps = [], size = "small", **kwargs):
    """A googletest against the core's shared library.

    Its own code is hardly optimised, which halves what it takes to compile; what
    it tests is the same objects that the trainer is made of.
    """
    pch, level = _test_pch()
    native.cc_test(
        name = name,
        srcs = srcs,
        copts = [level] + _pch_copts(pch),
        linkstatic = True,
        size = size,
        deps = deps + _pch_deps(pch) + [
            _core_of_tests(),
            "@system//:gtest_main",
        ],
        **kwargs
    )

def program_test(name, deps = [], **kwargs):
    """A googletest that mostly starts programs; its own code isn't optimised.

    Args:
      name: as cc_test's.
      deps: as cc_test's.
      **kwargs: as cc_test's.
    """
    native.cc_test(
        name = name,
        copts = ["-O0"] + _pch_copts("plain_test"),
        linkstatic = True,
        deps = deps + _pch_deps("plain_test"),
        **kwargs
    )

# An edit of one compiles the others, too.
_JOINED_TESTS = 8

def _joined_test_impl(ctx):
    program = ctx.attr.program
    test = ctx.actions.declare_file(ctx.label.name)
    ctx.actions.symlink(output = test, target_file = ctx.executable.program, is_executable = True)
    runfiles = ctx.runfiles(files = ctx.files.data)
    for target in [program] + ctx.attr.data:
        runfiles = runfiles.merge(target[DefaultInfo].default_runfiles)
    return [DefaultInfo(executable = test, runfiles = runfiles)]

_joined_test = rule(
    doc = "A program by the name of one of its tests, by which it runs that one's.",
    implementation = _joined_test_impl,
    test = True,
    attrs = {
        "data": attr.label_list(allow_files = True),
        "program": attr.label(executable = True, cfg = "target"),
    },
)

def joined_tests(name, tests, hdrs = [], deps = [], data = [], program = False, **kwargs):
    """Googletests, a target and a source each, of which several are one program.

    They are compiled as one object, in a namespace each, and linked once;
    tests/testing/joined_main.cc runs those of one source. Not for sources
    that can't share a program: for two plugins that they link, or for what they
    do before main (kernels/plain_products_for_test.h). With --define=join=off
    each is compiled and linked for itself.

    Args:
      name: a part of the programs' names.
      tests: x_test for x_test.cc; with attributes of its own a pair,
        ("x_test", {"shard_count": 4}).
      hdrs: what the sources include of the package.
      deps: as cc_test's, of all.
      data: as cc_test's, of all.
      program: like program_test, else like capstan_test.
      **kwargs: of all.
    """
    pch, level = ("plain_test", "-O0") if program else _test_pch()
    tests = [test if type(test) == "tuple" else (test, {}) for test in tests]
    options = {
        "copts": [level] + _pch_copts(pch),
        "deps": deps + _pch_deps(pch) + ["//tests/testing:joined_main"] +
                ([] if program else [_core_of_tests()]),
        # Built where a test takes it.
        "tags": ["manual"],
        "testonly": True,
        "visibility": ["//visibility:private"],
    }
    count = (len(tests) + _JOINED_TESTS - 1) // _JOINED_TESTS
    for i in range(count):
        joined = "%s_joined_%d" % (name, i)
        some = tests[len(tests) * i // count:len(tests) * (i + 1) // count]
        native.genrule(
            name = joined + "_source",
            srcs = [test + ".cc" for test, _ in some],
            outs = [joined + ".cc"],
            cmd = "for source in $(SRCS); do sed -e \"1i #line 1 \\\"$$source\\\"\"" +
                  " -e \"s/^namespace {$$/namespace { namespace $$(basename $$source .cc) {/\"" +
                  " -e 's|^}  // namespace$$|}}|' $$source; done > $@",
            visibility = ["//visibility:private"],
        )
        native.cc_binary(name = joined, srcs = [joined + ".cc"] + hdrs, **options)
        for test, attributes in some:
            native.cc_binary(name = test + "_alone", srcs = [test + ".cc"] + hdrs, **options)
            attributes = dict(kwargs, **attributes)
            _joined_test(
                name = test,
                data = data + attributes.pop("data", []),
                program = select({
                    _SEPARATE: test + "_alone",
                    "//conditions:default": joined,
                }),
                size = attributes.pop("size", "small"),
                **attributes
            )
