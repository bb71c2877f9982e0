"""A machine with a real systemd on it: this one in namespaces, with hotreload installed."""

import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.integration.zygote import REAL
from tests.waiting import PATIENCE, look_until

BOOT = Path(__file__).with_name("boot.sh")
CHECKOUT = Path(__file__).parents[2]
INSIDE = "/opt/hotreload"
"""Where the code, its packages and the interpreter are seen inside."""

COMMAND = f"""\
#!/bin/sh
export LD_LIBRARY_PATH={INSIDE}/python/lib PYTHONPATH={INSIDE}/code:{INSIDE}/packages
export PYTHONDONTWRITEBYTECODE=1
[ "$1" = serve ] && command=$(cat /srv/shared/command)
exec {INSIDE}/python/bin/{Path(sys.executable).resolve().name} -m ${{command:-{REAL}}} "$@"
"""
"""A test says which daemon is started."""

TRIAL = """\
set -e
groups=/sys/fs/cgroup/unified
[ -d $groups ] || groups=/sys/fs/cgroup
mkdir $groups/hotreload-trial-$$
rmdir $groups/hotreload-trial-$$
[ -e $groups/cgroup.procs ]
unshare --mount --uts --ipc --net --pid --cgroup --fork sh -c \
    'mount --make-rprivate / && mount -t tmpfs tmpfs /mnt && mkdir /mnt/u /mnt/w /mnt/r &&
     mount -t overlay overlay -o lowerdir=/,upperdir=/mnt/u,workdir=/mnt/w /mnt/r'
"""


def missing() -> str | None:
    """What a real systemd needs and is not here; None when it can be booted."""
    if os.geteuid() != 0:
        return "needs root, to make namespaces; run the tests as root"
    for tool, package in (
        ("unshare", "util-linux"),
        ("nsenter", "util-linux"),
        ("systemd-analyze", "systemd"),
    ):
        if shutil.which(tool) is None:
            return f"needs {tool}: apt-get install {package}"
    if not Path("/usr/lib/systemd/systemd").exists():
        return "needs systemd: apt-get install systemd"
    made = subprocess.run(["sh", "-c", TRIAL], capture_output=True, text=True, check=False)
    if made.returncode:
        return f"needs namespaces and cgroups, a privileged container has them: {made.stderr}"
    return None


class Machine:
    """Booted, with `hotreload` as /opt/hotreload/bin/hotreload and a folder shared with us."""

    def __init__(self, folder: Path) -> None:
        self.state = folder / "systemd"
        self.shared = folder / "shared"
        self.pid = 0

    @contextmanager
    def booted(self) -> Iterator["Machine"]:
        """From power on to power off; fails the test that asks when it cannot be had."""
        self._lay_out()
        try:
            self.pid = int(self._boot())
            self.until(lambda: self.run("systemctl is-system-running", check=False) == "running")
            yield self
        finally:
            subprocess.run([BOOT, "--halt", self.state], check=True)

    def _lay_out(self) -> None:
        (self.shared / "bin").mkdir(parents=True)
        command = self.shared / "bin" / "hotreload"
        command.write_text(COMMAND)
        command.chmod(0o755)
        self.start_by(REAL)

    def start_by(self, command: str) -> None:
        """Have the next daemon be that of this command."""
        (self.shared / "command").write_text(command)

    def _boot(self) -> str:
        shown = {
            CHECKOUT: f"{INSIDE}/code",
            sysconfig.get_path("purelib"): f"{INSIDE}/packages",
            sys.base_prefix: f"{INSIDE}/python",
            self.shared / "bin": f"{INSIDE}/bin",
            self.shared: "/srv/shared",
        }
        pairs = [f"{here}={there}" for here, there in shown.items()]
        done = subprocess.run(
            [BOOT, self.state, *pairs],
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        assert done.returncode == 0, f"{done.stderr}\n{(self.state / 'boot.log').read_text()}"
        return done.stdout

    def run(self, command: str, *, check: bool = True) -> str:
        """Run a shell command inside, as root; what it prints, stripped."""
        done = self.attempt(command)
        if check and done.returncode:
            journal = self.attempt("journalctl -o cat --no-pager | tail -n 40").stdout
            raise AssertionError(f"{command}: {done.stdout}{done.stderr}\n{journal}")
        return done.stdout.strip()

    def attempt(self, command: str) -> subprocess.CompletedProcess[str]:
        """Run a shell command inside, and tell how it ended."""
        inside = ["nsenter", "-t", str(self.pid), "-a", "env", "-i", "PATH=/usr/sbin:/usr/bin"]
        return subprocess.run(
            [*inside, "sh", "-c", command],
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )

    def write(self, path: str, text: str) -> None:
        """Write a file inside."""
        file = Path(f"/proc/{self.pid}/root{path}")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def show(self, *properties: str, unit: str = "hotreload.service") -> dict[str, str]:
        """Properties of a unit."""
        told = self.run(f"systemctl show {unit} -p {','.join(properties)}")
        return dict(line.split("=", 1) for line in told.splitlines())

    def journal(self, unit: str = "hotreload.service") -> str:
        """All that a unit has logged."""
        return self.run(f"journalctl -u {unit} -o cat --no-pager", check=False)

    def until(self, holds: Callable[[], bool], seconds: float = PATIENCE) -> None:
        look_until(holds, lambda: self.journal()[-4000:], seconds=seconds)
