#!/bin/bash
# Boots a real systemd as PID 1 of new namespaces, over an overlay of this machine: nothing that it
# does reaches the machine. Prints the host's pid of it.
#
#   boot.sh STATE_DIR [SOURCE=TARGET ...]   each SOURCE is shown inside at TARGET
#   boot.sh --halt STATE_DIR
set -euo pipefail

halt() {
    local group pid1
    group=$(cat "$1/cgroup")
    pid1=$(cat "$1/pid1" 2>/dev/null || pid1_in "$group")
    # Whoever reads this pid must not hit a process that has taken its number since.
    if [[ -n $pid1 && $(cat "/proc/$pid1/comm" 2>/dev/null) == systemd &&
        $(readlink "/proc/$pid1/ns/pid") != "$(readlink /proc/self/ns/pid)" ]]; then
        kill -KILL "$pid1"
    fi
    for _ in {1..300}; do [[ -n $pid1 && -d /proc/$pid1 ]] || break; sleep 0.1; done
    for _ in {1..300}; do # until the last of its processes is gone
        [[ $group == */hotreload-test-* && -d $group ]] || break
        find "$group" -depth -type d -exec rmdir {} + 2>/dev/null || sleep 0.1
    done
}

inside() { # in the new namespaces, before systemd
    local state=$1 pair node
    shift
    mount --make-rprivate /
    mkdir -p "$state/tmpfs"
    mount -t tmpfs -o size=4g tmpfs "$state/tmpfs"
    local root=$state/tmpfs/root
    mkdir -p "$state"/tmpfs/{upper,work,root}
    mount -t overlay overlay -o "lowerdir=/,upperdir=$state/tmpfs/upper,workdir=$state/tmpfs/work" \
        "$root"
    mount -t proc proc "$root/proc"
    mount -t sysfs -o ro sysfs "$root/sys"
    mount -t cgroup2 cgroup2 "$root/sys/fs/cgroup"
    mount -t tmpfs -o mode=755 tmpfs "$root/dev"
    for node in null:1:3 zero:1:5 full:1:7 random:1:8 urandom:1:9 tty:5:0; do
        IFS=: read -r name major minor <<<"$node"
        mknod -m 666 "$root/dev/$name" c "$major" "$minor"
    done
    mkdir -p "$root"/dev/{pts,shm}
    mount -t devpts -o newinstance,ptmxmode=0666,mode=620 devpts "$root/dev/pts"
    ln -s pts/ptmx "$root/dev/ptmx"
    mount -t tmpfs -o mode=1777 tmpfs "$root/dev/shm"
    ln -s /proc/self/fd "$root/dev/fd"
    touch "$root/dev/console"
    mkdir -p "$root/run"
    mount -t tmpfs -o mode=755 tmpfs "$root/run"
    for pair in "$@"; do
        mkdir -p "$root${pair#*=}"
        mount --bind "${pair%%=*}" "$root${pair#*=}"
    done
    : >"$root/etc/machine-id"
    # Nothing of the machine's own is started: an empty target, and the journal.
    rm -rf "$root"/etc/systemd/system/*.wants "$root"/etc/systemd/system/*.requires
    local units=$root/etc/systemd/system
    printf '[Unit]\nRequires=sysinit.target basic.target\nAfter=basic.target\n' >"$units/test.target"
    # sysctl and modules would reach the machine's own kernel.
    for unit in systemd-sysctl.service systemd-modules-load.service systemd-udevd.service \
        systemd-udevd-kernel.socket systemd-udevd-control.socket \
        systemd-resolved.service systemd-networkd.service tmp.mount; do
        ln -sf /dev/null "$units/$unit"
    done
    cd "$root"
    mkdir -p oldroot
    pivot_root . oldroot
    umount -l /oldroot
    rmdir oldroot
    mount --make-rshared / # or LoadCredential= silently yields an empty folder
    exec env -i container=hotreload-test PATH=/usr/sbin:/usr/bin:/sbin:/bin TERM=dumb \
        /usr/lib/systemd/systemd --system --unit=test.target --log-target=journal \
        --log-level=info --show-status=no </dev/null
}

pid1_in() { # of the cgroup: the process that is number 1 in a namespace of its own
    local pid
    # systemd moves itself into init.scope.
    for pid in $(cat "$1"/cgroup.procs "$1"/init.scope/cgroup.procs 2>/dev/null); do
        awk -v pid="$pid" '/^NSpid:/ { if ($NF == 1 && NF > 2) print pid }' \
            "/proc/$pid/status" 2>/dev/null || true # it ended meanwhile
    done
}

case $1 in
--halt) halt "$2" ;;
--inside) inside "${@:2}" ;;
*)
    state=$1
    groups=/sys/fs/cgroup/unified
    [[ -d $groups ]] || groups=/sys/fs/cgroup
    group=$groups/hotreload-test-$$
    mkdir -p "$state" "$group"
    echo "$group" >"$state/cgroup"
    (
        echo "$BASHPID" >"$group/cgroup.procs"
        exec setsid unshare --mount --uts --ipc --net --pid --cgroup --fork --kill-child \
            "$0" --inside "$@" >"$state/boot.log" 2>&1 </dev/null
    ) &
    for _ in {1..600}; do
        found=$(pid1_in "$group")
        [[ -n $found && $(cat "/proc/$found/comm" 2>/dev/null) == systemd ]] && break
        sleep 0.1
    done
    echo "${found:?systemd did not start: $(tail -n 5 "$state/boot.log")}" | tee "$state/pid1"
    ;;
esac
