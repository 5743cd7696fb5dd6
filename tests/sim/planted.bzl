"""Defects put back, for tests of the tests."""

load("//tools:capstan.bzl", "cc_library")

def planted(name, source, edit, visibility = None):
    """libplanted_NAME.so: a source of the core, made defective.

    Loaded before the core, its functions take the place of the core's.

    Args:
      name: of the defect.
      source: label of the file.
      edit: a script of sed, each command of which must change something.
      visibility: as ever.
    """
    checks = " && ".join([
        "sed -E %s $< > $@.one && ! cmp -s $< $@.one" % _quoted(one)
        for one in edit
    ])
    native.genrule(
        name = name + "_source",
        testonly = True,
        srcs = [source],
        outs = ["planted_%s.cc" % name],
        cmd = checks + " && sed -E " + " ".join(["-e " + _quoted(one) for one in edit]) +
              " $< > $@ && rm $@.one",
    )
    cc_library(
        name = name + "_code",
        testonly = True,
        srcs = ["planted_%s.cc" % name],
        alwayslink = True,
        copts = ["-Wno-error", "-w", "-O1"],
        linkstatic = True,
        deps = ["//trainer:core"],
    )
    native.cc_binary(
        name = "libplanted_%s.so" % name,
        testonly = True,
        linkshared = True,
        linkstatic = True,
        visibility = visibility,
        deps = [":%s_code" % name],
    )

def _quoted(text):
    return "'" + text.replace("$", "$$").replace("'", "'\\''") + "'"
