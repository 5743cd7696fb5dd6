"""Arrow's C++ libraries, of the pyarrow wheel, by package name and hash.

Where the wheel can't be fetched, HAS_ARROW of @arrow//:config.bzl is False, and
the build goes on: the trainer then says of a Parquet or CSV file, and of an
address of object storage, what it lacks.
"""

# The wheel is tagged for a CPython version; only its C++ files are used.
ARROW_WHEELS = {
    "pyarrow==26.0.1": "c718bf97a92a6dea97fd1062c3b9f9e2e83cb9cc926e752289fa4ffff41738f9",
}
ARROW_OTHERWISE = "Parquet, CSV, TSV and object storage won't be read"

# What the build uses of it.
ARROW_FILES = [
    "pyarrow/include/arrow/*",
    "pyarrow/include/parquet/*",
    "pyarrow/libarrow.so.*",
    "pyarrow/libarrow_s3.so.*",
    "pyarrow/libparquet.so.*",
]
