"""The manifests in deploy/kubernetes/, and what a container of theirs runs, on this machine."""

import json
import os
import re
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
import yaml  # type: ignore[import-untyped]  # its types are a package of their own

from hotreload.tiny import write_tiny
from tests.hosts.member import free_address
from tests.integration.forked import zygote_of
from tests.integration.process import REAL, Process
from tests.integration.running import ENGINE_ARGS, words

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "deploy" / "kubernetes"
SECRET = "a-secret-of-these-ranks-and-no-one-else"
IMAGE = re.sub(r"\\\n\s*", "", (ROOT / "Dockerfile").read_text())

Object = dict[str, Any]


def objects(*files: str) -> list[Object]:
    """All that these files hold."""
    return [each for file in files for each in yaml.safe_load_all((FOLDER / file).read_text())]


def template_in(found: Sequence[Object]) -> Object:
    """The one template of pods among these objects."""
    specs = [each["spec"] for each in found if "spec" in each]
    inner = [spec.get("leaderWorkerTemplate", spec) for spec in specs]
    (template,) = (
        each[name] for each in inner for name in ("template", "workerTemplate") if name in each
    )
    return dict(template)


def settings_in(found: Sequence[Object]) -> str:
    """The file of settings that the pods mount."""
    (maps,) = (each["data"] for each in found if each["kind"] == "ConfigMap")
    return str(maps["hotreload.toml"])


def env_of_image() -> dict[str, str]:
    """What the image sets that is ours."""
    return dict(re.findall(r"\b(HOTRELOAD_\w+)=(\S+)", IMAGE))


class Pod(Process):
    """The daemon of a pod: its command, environment and settings, with paths and ports of ours."""

    def __init__(
        self, folder: Path, found: Sequence[Object], given: dict[str, str], *sets: str
    ) -> None:
        """`given`: the variables that controllers set, and words that stand for others here."""
        folder.mkdir(exist_ok=True)
        super().__init__(folder)
        (self.container,) = template_in(found)["spec"]["containers"]
        self.tcp = free_address()
        places = {each["mountPath"]: each["name"] for each in self.container["volumeMounts"]}
        for name in places.values():
            (folder / name).mkdir(exist_ok=True)
        self._instead = {path: str(folder / name) for path, name in places.items()}
        self._instead |= {"0.0.0.0:8000": self.tcp, "0.0.0.0:9479": free_address(), **given}
        self.checkpoints = folder / "checkpoints"
        self.config = folder / "settings" / "hotreload.toml"
        self.config.write_text(self.mapped(settings_in(found)))
        write_tiny(folder / "models" / "qwen3", words(1))
        if (join := folder / "join").exists():
            (join / "join-secret").write_text(SECRET)
            (join / "join-secret").chmod(0o440)
        env = {each["name"]: each["value"] for each in self.container.get("env", ())}
        self.environ = {key: self.mapped(text) for key, text in (env_of_image() | env).items()}
        self.environ |= {key: text for key, text in given.items() if key.isupper()}
        self.sets = [  # what the image's own folders and a CPU make other
            f"server.socket={self.socket}",
            f"state.directory={folder / 'state'}",
            "engine.device=cpu",
            f"engine.args={ENGINE_ARGS}",
            "engine.warm_batches=0",
            "server.workers=0",
            *sets,
        ]

    def mapped(self, text: str) -> str:
        """The same with the paths and ports of this machine."""
        longest = sorted(self._instead, key=len, reverse=True)
        any_of = re.compile("|".join(map(re.escape, longest)))
        return any_of.sub(lambda found: self._instead[found[0]], text)

    def drop(self, number: int, damage: str | None = None) -> None:
        """Bring a checkpoint, its marker last."""
        super().drop(number, damage)
        marker = tomllib.loads(self.config.read_text())["source"]["marker"]
        (self.checkpoints / f"step_{number}" / marker).touch()

    def start(
        self, failpoints: str = "", through: Sequence[str] = (), sets: Sequence[str] = ()
    ) -> None:
        """Run the container's command."""
        (line,) = re.findall(r"^ENTRYPOINT (.*)$", IMAGE, re.MULTILINE)
        assert json.loads(line) == ["hotreload"], "it is forked by that name"
        arguments = [*self.container["args"], *(f"--set={each}" for each in self.sets)]
        env = {**os.environ, **self.environ}
        with self.log.open("ab") as log:
            self.child = zygote_of(REAL).begin(REAL, arguments, env, log)

    def probed(self, kind: str) -> int:
        """The code that this probe is answered; 0 while no one listens."""
        probe = self.container[f"{kind}Probe"]["httpGet"]
        ports = {each["name"]: each["containerPort"] for each in self.container["ports"]}
        address = self._instead[f"0.0.0.0:{ports[probe['port']]}"]
        try:
            return httpx.get(f"http://{address}{probe['path']}").status_code
        except httpx.ConnectError:
            return 0
