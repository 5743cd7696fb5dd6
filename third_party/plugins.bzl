"""The list of the plugins that come with the trainer: those that are there."""

def _plugins_impl(ctx):
    root = ctx.path(Label("//:WORKSPACE")).dirname
    labels = []

    # Folders whose subfolders are plugins.
    shelves = ["datasets", "strategies"] + [
        "plugins/" + entry.basename
        for entry in root.get_child("plugins").readdir()
        if entry.basename != "BUILD" and "." not in entry.basename
    ]
    for shelf in shelves:
        for folder in ctx.path(str(root) + "/" + shelf).readdir():
            build = folder.get_child("BUILD")
            if not build.exists:
                continue
            package = shelf + "/" + folder.basename
            # By its label, so that Bazel watches it.
            text = ctx.read(Label("//%s:BUILD" % package))
            for block in text.split("\ncapstan_plugin(")[1:]:
                plugin = block.split("name = \"")[1].split("\"")[0]
                labels.append("//%s:lib%s.so" % (package, plugin))
    ctx.file("BUILD", "")
    ctx.file("plugins.bzl", "PLUGINS = [\n%s]\n" % "".join([
        "    \"%s\",\n" % label
        for label in sorted(labels)
    ]))

plugins_repository = repository_rule(
    implementation = _plugins_impl,
    local = True,
    doc = "Makes @capstan_plugins//:plugins.bzl: PLUGINS, the labels of the " +
          "shared libraries of every BUILD file that calls capstan_plugin.",
)
