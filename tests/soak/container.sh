#!/bin/bash
# Runs a command in the root of an image as a container runtime would, where none may run: read-only
# but for the mounts, as a user without capabilities, as number 1 of its own processes. The network
# is this machine's.
#
#   unshare --mount --pid --fork container.sh ROOT UID:GID [SOURCE=TARGET ...] -- COMMAND ...
set -euo pipefail
root=$1 uid=${2%:*} gid=${2#*:}
shift 2

mount --make-rprivate /
mount --bind "$root" "$root"
while [[ $1 != -- ]]; do
    mkdir -p "$root${1#*=}"
    mount --bind "${1%%=*}" "$root${1#*=}"
    shift
done
shift
mount -t proc proc "$root/proc"
mount -t tmpfs tmpfs "$root/tmp"
mount -t tmpfs -o mode=755 tmpfs "$root/dev"
for node in null zero random urandom; do
    touch "$root/dev/$node"
    mount --bind "/dev/$node" "$root/dev/$node"
done
mkdir "$root/dev/shm"
mount -t tmpfs tmpfs "$root/dev/shm"
mount -o remount,bind,ro "$root"
exec chroot "$root" \
    setpriv --reuid="$uid" --regid="$gid" --clear-groups --bounding-set=-all --no-new-privs -- "$@"
