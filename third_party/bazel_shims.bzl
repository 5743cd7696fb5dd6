"""Local stand-ins for the repositories that Bazel 4.2.3's tools ask for.

Debian's Bazel is built to work offline, but its embedded tools still name
rules_cc, rules_java and the coverage tools. The stand-ins under shims/ map
them to the native rules, so that nothing is fetched for them.
"""

def bazel_shims():
    for name, folder in [
        ("rules_cc", "rules_cc"),
        ("rules_java", "rules_java"),
        ("remote_coverage_tools", "coverage"),
    ]:
        native.local_repository(
            name = name,
            path = "third_party/shims/" + folder,
        )
