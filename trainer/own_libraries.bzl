"""The libraries that the trainer opens, and what they are made of."""

_SourcesInfo = provider(fields = ["files"])

_ATTRIBUTES = ["srcs", "hdrs", "textual_hdrs", "deps"]

def _collect_impl(_target, ctx):
    direct = []
    transitive = []
    for name in _ATTRIBUTES:
        for file in getattr(ctx.rule.files, name, []):
            if file.is_source and not file.path.startswith("external/"):
                direct.append(file)
        for dep in getattr(ctx.rule.attr, name, []):
            if _SourcesInfo in dep:
                transitive.append(dep[_SourcesInfo].files)
    return [_SourcesInfo(files = depset(direct, transitive = transitive))]

_collect = aspect(
    implementation = _collect_impl,
    attr_aspects = _ATTRIBUTES,
    # Of a .pb.cc the .proto.
    apply_to_generating_rules = True,
)

def _source_digest_impl(ctx):
    files = ctx.attr.library[_SourcesInfo].files
    args = ctx.actions.args()
    args.add(ctx.outputs.out)
    args.add_all(files)
    ctx.actions.run_shell(
        outputs = [ctx.outputs.out],
        inputs = files,
        arguments = [args],
        command = "out=$1; shift; cat \"$@\" | sha256sum | head -c 16 > $out",
    )

_source_digest = rule(
    implementation = _source_digest_impl,
    attrs = {
        "library": attr.label(aspects = [_collect], mandatory = True),
        "out": attr.output(mandatory = True),
    },
    doc = "Writes a digest of this workspace's files that `library` and all that " +
          "it is linked with are compiled from; headers of libraries that it " +
          "only takes code of are among them.",
)

def interface_mark(name, headers):
    """A library of one section, capstan_interface: a digest of the core's headers.

    The core has it, and so has each library that is compiled with them and
    opened later, so that one of another build isn't (base/own_library.h).

    Args:
      name: of the target.
      headers: a library that has them.
    """
    _source_digest(
        name = name + ".digest",
        library = headers,
        out = name + ".now",
    )
    native.genrule(
        name = name + ".source",
        srcs = [name + ".now"],
        outs = [name + ".cc"],
        cmd = "{ echo 'asm(R\"(';" +
              " echo '.pushsection capstan_interface,\"aR\"';" +
              " echo '.globl capstan_core_interface';" +
              " echo '.type capstan_core_interface,@object';" +
              " echo 'capstan_core_interface:';" +
              " echo '.asciz \"'$$(cat $<)'\"';" +
              " echo '.size capstan_core_interface,.-capstan_core_interface';" +
              " echo '.popsection';" +
              " echo ')\");'; } > $@",
    )
    native.cc_library(
        name = name,
        srcs = [name + ".cc"],
        alwayslink = True,
        linkstatic = True,
    )

def own_libraries(name, libraries):
    """Copies libraries to where the trainer looks for them.

    Some are built with //trainer; a clone's trainer has the rest built when it
    needs them, or when their sources have changed (base/own_library.h).
    NAME.txt has the digest of each one's sources, and PATH.sources, which is
    built with the copy at PATH, that of its time.

    Args:
      name: of the list's target.
      libraries: by path, below the package, the label.
    """
    for path, label in libraries.items():
        _source_digest(
            name = path + ".digest",
            library = label,
            out = path + ".now",
        )
        native.genrule(
            name = path + ".copy",
            srcs = [
                label,
                path + ".now",
            ],
            outs = [
                path,
                path + ".sources",
            ],
            cmd = "set -- $(SRCS) $(OUTS); cp $$1 $$3; cp $$2 $$4",
        )
    native.genrule(
        name = name,
        srcs = [path + ".now" for path in libraries],
        outs = [name + ".txt"],
        cmd = "for now in $(SRCS); do path=$${now#$(RULEDIR)/};" +
              " echo $${path%.now} $$(cat $$now); done > $@",
    )
