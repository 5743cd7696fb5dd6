#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# The folder that //:dist makes: needs nothing outside of itself but glibc, runs
# from a path with a space and without an environment, takes a plugin built with
# its SDK; and runs, as a user without rights, on bare Debian 11, 12 and 13, which
# debootstrap makes from the mirror that apt is set up with (as root; some 20
# seconds to a minute and a half each), and there as an image, too, where buildah is
# installed. Run from the workspace; .ci/run does.
#   dist_test.sh [OPTION OF BAZEL..]
# ROOTS=FOLDER keeps the roots there for the next time.
set -euo pipefail
cd "$(dirname "$0")/../.."

./bazelw build "$@" //:dist //:wheel //:deb
python3 tests/dist/glibc_test.py
work=$(mktemp -d)
trap 'rm -rf --one-file-system "$work"' EXIT
mkdir "$work/a folder"
version=$(sed -n 's/^CAPSTAN_VERSION = "\(.*\)"$/\1/p' version.bzl)
tag=$(git describe --exact-match --tags 2>/dev/null) || tag=v$version
[ "$tag" = "v$version" ] ||
  { echo "FAILED: version.bzl says $version, and this commit is $tag" && exit 1; }
archive=bazel-bin/capstan-$version-linux-x86_64.tar.zst
tar --zstd -C "$work/a folder" -xf "$archive"
folder="$work/a folder/capstan-$version"
histories=$PWD/plugins/algorithm_distillation/darkroom/testdata/history_small.hdf5
use=$PWD/tests/dist/use_folder.sh
echo "$(basename "$archive"): $(du -m "$archive" | cut -f1) MiB," \
  "unpacked $(du -sm "$folder" | cut -f1) MiB"

python3 tests/dist/check_folder.py "$folder"
for file in bin/trainer sdk/fingerprint.txt licenses/CONTENTS README.md; do
  [ -s "$folder/$file" ] || { echo "FAILED: no $file" && exit 1; }
done

# Its path has a space, and there is no environment.
mkdir "$work/here"
(cd "$work/here" && env -i PATH=/usr/bin:/bin sh "$use" "$folder" "$histories") |
  tee "$work/weights"
echo "runs from \"$folder\""

# By dpkg and by pip, into an environment of its own: the same files, and the
# command, also by a link to it.
dpkg-deb -x "bazel-bin/capstan_${version}_amd64.deb" "$work/root"
packages=("$work/root/usr")
if python3 -c "import ensurepip" 2>/dev/null; then
  python3 -m venv "$work/venv"
  "$work/venv/bin/pip" install -q --no-index \
    "bazel-bin/capstan-$version-py3-none-manylinux_2_31_x86_64.whl"
  packages+=("$work/venv")
else
  echo "the wheel: skipped: this Python makes no environments (python3-venv)"
fi
for prefix in "${packages[@]}"; do
  diff -r -x .capstan "$folder" "$prefix/lib/capstan"  # an index of data
  ln -sf "$prefix/bin/capstan" "$work/here/capstan"
  (cd "$work/here" && env -i PATH=/usr/bin:/bin ./capstan check \
    --config=run_distributed.pbtxt) ||
    { echo "FAILED: $prefix/bin/capstan" && exit 1; }
done
echo "runs as a package: ${#packages[@]} of them"

# What the loader took for a run and where: only the folder's, and glibc's.
LD_DEBUG=libs LD_DEBUG_OUTPUT="$work/loader" "$folder/bin/trainer" plugins \
  >/dev/null
sed -n 's/.*calling init: //p' "$work"/loader.* | sort -u |
  grep -vF "$folder/" |
  grep -Ev '/(ld-linux-x86-64|libanl|libc|libdl|libm|libpthread|libresolv|librt|libutil)\.so\.[0-9]$' \
    >"$work/outside" || true
if [ -s "$work/outside" ]; then
  cat "$work/outside"
  echo "FAILED: loaded from outside the folder"
  exit 1
fi

# A plugin, built with nothing of the build's but LibTorch's headers. (make takes
# no spaces in paths.)
cp -r "$folder/sdk" "$work/sdk"
(
  cd "$work"
  "$folder/bin/trainer" new-plugin --category=precision --name=acme.packed \
    "$work/plugins" >/dev/null
)
make -s -C "$work/plugins" CAPSTAN_SDK="$work/sdk" \
  CAPSTAN_TORCH_DIR="$(./bazelw info output_base)/external/libtorch/site/torch"
(
  cd "$work/here"
  OMP_NUM_THREADS=1 "$folder/bin/trainer" --config=run_distributed.pbtxt \
    --config="$work/plugins/acme/packed/packed.pbtxt" \
    --plugin_path="$work/plugins/build/acme/packed" --set output_dir=packed \
    --set train.max_steps=3 --set train.eval_batches=1 >packed.txt 2>&1 ||
    { cat packed.txt && echo "FAILED: a plugin of the SDK" && exit 1; }
)
echo "takes a plugin built with its SDK"

skip() {
  echo "bare Debian roots: skipped: $1"
  exit 0
}
[ "$(id -u)" -eq 0 ] || skip "not root"
command -v debootstrap >/dev/null || skip "no debootstrap"
mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' \
  'Origin: Debian' 'Label: Debian' 2>/dev/null | head -n1)
[ -n "$mirror" ] || skip "none of apt's sources is Debian's"
unshare -m true 2>/dev/null || skip "this container may not mount"

# in_root ROOT: as the user 65534, in a mount namespace that goes with it.
in_root() {
  unshare -m --propagation private bash -euc '
    root=$1 folder=$2 use=$3 histories=$4
    for at in capstan work; do mkdir -p "$root/mnt/$at"; done
    mount --bind "$folder" "$root/mnt/capstan"
    mount -o remount,bind,ro "$root/mnt/capstan"
    mount -t tmpfs -o mode=777 tmpfs "$root/mnt/work"
    mount -t proc proc "$root/proc"
    mount --rbind /dev "$root/dev"
    mount -t tmpfs -o mode=1777 tmpfs "$root/dev/shm"
    cp "$use" "$root/mnt/work/use.sh"
    cp "$histories" "$root/mnt/work/histories.hdf5"
    exec chroot --userspec=65534:65534 "$root" env -i HOME=/mnt/work \
      PATH=/usr/bin:/bin sh -c "cd /mnt/work && sh use.sh /mnt/capstan /mnt/work/histories.hdf5"
  ' in_root "$1" "$folder" "$use" "$histories"
}

# The image, on a root of debootstrap's in place of a registry's.
image() {
  local command=$1
  shift
  buildah --root "$work/images" --runroot "$work/running" --storage-driver=vfs \
    "$command" "$@"
}
test_image() {
  command -v buildah >/dev/null ||
    { echo "the image: skipped: no buildah" && return; }
  image from --name bare scratch >/dev/null
  cp -a "$1/." "$(image mount bare)/"
  image commit -q bare localhost/bare >/dev/null
  image rm bare >/dev/null
  image bud -q --isolation=chroot --pull-never --build-arg BASE=localhost/bare \
    -t capstan -f packaging/Containerfile "$folder" >/dev/null
  image from --name run --pull-never localhost/capstan >/dev/null
  # `buildah run` leaves it out.
  [ "$(image inspect --format '{{.OCIv1.Config.Entrypoint}}' run)" = "[capstan]" ] ||
    { echo "FAILED: the image's entry point" && exit 1; }
  mkdir -m 777 "$work/for_image"
  image run --isolation=chroot -v "$work/for_image:/work" run -- \
    capstan --config=run_distributed.pbtxt --set train.max_steps=3 \
    --set train.eval_batches=1 >"$work/image.txt" 2>&1 &&
    grep -q "status  *completed" "$work/image.txt" ||
    { tail -n20 "$work/image.txt" && echo "FAILED: the image" && exit 1; }
  image rm run >/dev/null
  echo "runs as an image"
}

roots=${ROOTS:-$work/roots}
mkdir -p "$roots"
declare -A making
for suite in bullseye bookworm trixie; do
  [ ! -e "$roots/$suite/etc/debian_version" ] || continue
  debootstrap --variant=minbase "$suite" "$roots/$suite" "$mirror" \
    >"$work/debootstrap_$suite" 2>&1 &
  making[$suite]=$!
done
for suite in bullseye bookworm trixie; do
  if [ -n "${making[$suite]-}" ]; then
    wait "${making[$suite]}" ||
      { tail -n5 "$work/debootstrap_$suite" && echo "FAILED: debootstrap $suite" &&
        exit 1; }
  fi
  in_root "$roots/$suite" | tee "$work/weights_$suite"
  cmp "$work/weights" "$work/weights_$suite" ||
    { echo "FAILED: other weights on $suite" && exit 1; }
  echo "runs on Debian $(cat "$roots/$suite/etc/debian_version")"
  if [ "$suite" = bookworm ]; then test_image "$roots/$suite"; fi
done
