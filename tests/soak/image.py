"""Builds the image by buildah, and runs what is in it.

No registry of images is asked: the base is Debian with its Python, under the name that FROM says.
What pip installs comes from where this machine's pip gets it.
"""

import ast
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
CONTAINER = Path(__file__).with_name("container.sh")
PACKAGES = "python3-venv,python3-pip,ca-certificates"
PIP_CONFIG = "/etc/pip.conf"
NEWER = ("ENGINE=sglang-jax[cpu]==0.1.0rc0", "CONSTRAINTS=constraints-0.1.txt")

needs_buildah = pytest.mark.skipif(
    os.geteuid() != 0 or not all(map(shutil.which, ("buildah", "mmdebstrap"))),
    reason="needs root and: apt-get install buildah mmdebstrap",
)


def call(*words: object) -> str:
    """What a command says; what it complains of is the test's."""
    command = [str(word) for word in words]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.strip()


class Image:
    """An image in a store of its own."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._store = [f"--root={folder / 'store'}", f"--runroot={folder / 'run'}"]
        self.root: Path
        """Its files."""
        self.config: dict[str, Any]
        """What it says of itself."""

    def _buildah(self, *words: object) -> str:
        return call("buildah", *self._store, "--storage-driver=vfs", *words)

    @contextmanager
    def built(self) -> Iterator["Image"]:
        """Build it, and look at it until the end of the block; nothing of it is left."""
        try:
            self._make_base()
            arguments = NEWER if os.environ.get("HOTRELOAD_ENGINE") == "0.1" else ()
            given = [f"--build-arg={argument}" for argument in arguments]
            how = ("--isolation=chroot", "--format=docker", "--pull=never", "--from=base")
            self._buildah("bud", *how, *self._pip(), *given, "--tag=hotreload", ROOT)
            container = self._buildah("from", "--pull=never", "hotreload")
            self.root = Path(self._buildah("mount", container))
            said = json.loads(self._buildah("inspect", "--type=image", "hotreload"))
            self.config = said["Docker"]["config"]
            yield self
        finally:
            shutil.rmtree(self._folder)

    def _make_base(self) -> None:
        tar = self._folder / "base.tar"
        call("mmdebstrap", "--variant=minbase", f"--include={PACKAGES}", "--quiet", "trixie", tar)
        container = self._buildah("from", "scratch")
        self._buildah("add", "--quiet", container, tar, "/")
        self._buildah("commit", "--quiet", "--rm", container, "base")
        tar.unlink()

    def _pip(self) -> list[str]:
        """Mounts by which pip asks, in the build alone, whom it asks on this machine."""
        lines = call(sys.executable, "-m", "pip", "config", "list").splitlines()
        pairs = (line.partition("=")[::2] for line in lines)
        says = {name.rpartition(".")[2]: str(ast.literal_eval(value)) for name, value in pairs}
        file = self._folder / "pip.conf"
        file.write_text("\n".join(["[global]", *(f"{k} = {v}" for k, v in says.items())]))
        words = "\n".join(says.values()).split()
        # The files of an index lie beside its pages.
        indexes = [Path(word.removeprefix("file://")).parent for word in words if "file:/" in word]
        paths = {*indexes, *(Path(word) for word in words if word.startswith("/"))}
        there = [f"{path}:{path}" for path in sorted(paths) if path.exists()]
        return [f"--volume={pair}:ro" for pair in (f"{file}:{PIP_CONFIG}", *there)]

    def megabytes(self) -> tuple[int, list[str]]:
        """How large it is, and its largest packages."""
        (packages,) = self.root.glob("opt/hotreload/lib/python3*/site-packages")
        sizes = [line.split("\t") for line in call("du", "-sm", *packages.iterdir()).splitlines()]
        largest = sorted(sizes, key=lambda each: -int(each[0]))[:8]
        parts = [f"{Path(path).name} {size}" for size, path in largest]
        return int(call("du", "-sm", self.root).split()[0]), parts

    def begin(self, mounts: dict[Path, str], log: Path) -> subprocess.Popen[bytes]:
        """Run what it runs, in a container; its process is the only child of this one."""
        bound = [f"{source}={target}" for source, target in mounts.items()]
        runtime = ["unshare", "--mount", "--pid", "--fork", str(CONTAINER)]
        where = [str(self.root), self.config["User"], *bound, "--"]
        command = [*self.config["Entrypoint"], *self.config["Cmd"]]
        with log.open("ab") as file:
            return subprocess.Popen([*runtime, *where, *command], env=self._environ, stderr=file)

    @property
    def _environ(self) -> dict[str, str]:
        return dict(pair.split("=", 1) for pair in self.config["Env"])

    def healthy(self, pid: int) -> bool:
        """What its health check says, beside this process."""
        user, group = self.config["User"].split(":")
        inside = ["nsenter", f"--target={pid}", "--mount", "--pid", "--root", "--wd"]
        command = [*inside, f"--setuid={user}", f"--setgid={group}", "--"]
        kind, *words = self.config["Healthcheck"]["Test"]
        assert kind == "CMD"
        done = subprocess.run([*command, *words], env=self._environ, check=False)
        return done.returncode == 0
