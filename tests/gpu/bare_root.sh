#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# A Debian with nothing installed, which debootstrap makes, builds the trainer
# with its GPU parts from the commit that is checked out (CAPSTAN_GPU=on: compiler,
# headers and NVIDIA's libraries from wheels, some 2 GB), runs it on stand-in
# devices and opens the libraries. As root, from the workspace; .ci/run does while
# time is left.
#   bare_root.sh [TEST..]   the tests, instead of those below
# Where it can't run, it says why and exits with 78.
# What was compiled before by the same compiler is taken from Bazel's cache, and
# wheels from pip's; COLD=1 takes neither. ROOT=FOLDER keeps the root there for the
# next time, with its packages.
set -euo pipefail
cd "$(dirname "$0")/../.."

skip() {
  echo "a bare Debian root: skipped: $1"
  exit 78
}
[ "$(id -u)" -eq 0 ] || skip "not root"
command -v debootstrap >/dev/null || skip "no debootstrap"
mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' \
  'Origin: Debian' 'Label: Debian' 2>/dev/null | head -n1)
[ -n "$mirror" ] || skip "none of apt's sources is Debian's"
unshare -m true 2>/dev/null || skip "this container may not mount"
suite=$(. /etc/os-release && echo "${VERSION_CODENAME-}")
[ -n "$suite" ] || skip "this Debian has no name"

tests=("$@")
[ "${#tests[@]}" -gt 0 ] ||
  tests=(//tests/standin:waits_test //tests/standin:memory_test
    //tests/standin:ranks_test //tests/standin:attention_on_1_test
    //kernels/cuda/... //cluster/comm:cuda_libraries_test)

work=$(mktemp -d)
trap 'rm -rf --one-file-system "$work"' EXIT
root=${ROOT:-$work/root}
if [ ! -e "$root/etc/debian_version" ]; then
  began=$SECONDS
  debootstrap --variant=minbase "$suite" "$root" "$mirror" \
    >"$work/debootstrap" 2>&1 ||
    { tail -n5 "$work/debootstrap" && echo "FAILED: debootstrap" && exit 1; }
  echo "made a bare $suite in $((SECONDS - began)) s"
fi
rm -rf "$root/src"
mkdir -p "$root/src"
git archive HEAD | tar -x -C "$root/src"
# The network as it is here: names, certificates, pip's settings.
cp -L /etc/resolv.conf "$root/etc/resolv.conf"
if [ -e /etc/pip.conf ]; then cp /etc/pip.conf "$root/etc/"; fi
mkdir -p "$root/etc/ssl/certs"
certificates=/etc/ssl/certs/ca-certificates.crt
if [ -e "$certificates" ]; then cp -L "$certificates" "$root$certificates"; fi
# Of which the package ca-certificates, when it comes, writes that file anew.
own=/usr/local/share/ca-certificates
mkdir -p "$root$own"
find -L "$own" -name '*.crt' -exec cp {} "$root$own" \; 2>/dev/null || true
settings=()
while IFS= read -r setting; do
  settings+=("$setting")
done < <(env | grep -E '^(PIP_|[a-zA-Z]+_(proxy|PROXY)=)' || true)
binds=()
for folder in ${PIP_FIND_LINKS-}; do
  if [ -d "$folder" ]; then binds+=("$folder"); fi
done
if [ -z "${COLD-}" ]; then
  binds+=("$HOME/.cache/capstan/bazel:/root/.cache/capstan/bazel"
    "$HOME/.cache/pip:/root/.cache/pip")
fi

cat >"$root/build.sh" <<'EOF'
set -euo pipefail
cd /src
./bazelw build --repo_env=CAPSTAN_GPU=on //trainer
echo "built //trainer with CAPSTAN_GPU=on after $SECONDS s"
bazel test --repo_env=CAPSTAN_GPU=on "$@"
log=bazel-testlogs/cluster/comm/cuda_libraries_test/test.log
if [ -e "$log" ] && grep SKIPPED "$log"; then
  echo "FAILED: cuda_libraries_test skips itself"
  exit 1
fi
echo "tested after $SECONDS s"
EOF
# In namespaces that go with it, so that Bazel's server does, too.
unshare -m -p --fork --kill-child --propagation private bash -euc '
  root=$1
  shift
  mount --rbind /dev "$root/dev"
  mount -t proc proc "$root/proc"
  mount -t tmpfs -o mode=1777 tmpfs "$root/dev/shm"
  while [ "$1" != -- ]; do
    mkdir -p "$root/${1#*:}"
    if [ -d "${1%%:*}" ]; then mount --bind "${1%%:*}" "$root/${1#*:}"; fi
    shift
  done
  shift
  exec chroot "$root" env -i HOME=/root LANG=C.UTF-8 \
    PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin "$@"
' in_root "$root" "${binds[@]}" -- "${settings[@]}" bash /build.sh "${tests[@]}"
