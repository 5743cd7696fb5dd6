# SPDX-License-Identifier: Apache-2.0
"""make_sdk.py MANIFEST FOLDER: copies what sdk.bzl lists.

Of the headers, those that the manifest asks for and all that they include.
"""
import json
import os
import re
import shutil
import sys

INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.MULTILINE)


def copy(source, target):
    os.makedirs(os.path.dirname(target), exist_ok=True)
    shutil.copyfile(source, target)


def needed_headers(headers, beginnings):
    """Names in `headers` (name: path), with those that they include."""
    names = [n for n in headers if n.startswith(tuple(beginnings))]
    found = set(names)
    while names:
        with open(headers[names.pop()], encoding="utf-8") as file:
            for name in INCLUDE.findall(file.read()):
                if name in headers and name not in found:
                    found.add(name)
                    names.append(name)
    return sorted(found)


def main(manifest_path, folder):
    with open(manifest_path, encoding="utf-8") as file:
        manifest = json.load(file)
    headers = {name: path for path, name in manifest["headers"]}
    for beginning in manifest["include"]:
        if not any(name.startswith(beginning) for name in headers):
            sys.exit(f"no header begins with {beginning}")
    for name in needed_headers(headers, manifest["include"]):
        copy(headers[name], os.path.join(folder, "include", name))
    for path, target in manifest["copies"]:
        copy(path, os.path.join(folder, target))
    # For the linker: @FILE.
    with open(os.path.join(folder, "lib", "link_flags"), "w") as file:
        file.write("\n".join(dict.fromkeys(manifest["link_flags"])) + "\n")


main(*sys.argv[1:])
