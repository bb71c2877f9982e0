"""Reads settings, and files of secrets, again while the daemon runs; checks files by them.

A fault in them changes nothing: the values of before stay in force, and the fault is reported.
"""

import asyncio
import json
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import Any, NoReturn

from hotreload.checkpoint.check import check_checkpoint
from hotreload.checkpoint.digests import Digests
from hotreload.checkpoint.fit import Policy
from hotreload.core.engines.replica import Replicas
from hotreload.core.reconcile import Reconciler
from hotreload.core.way_in.entrance import Entrance
from hotreload.errors import ConfigError, HotReloadError, NotEnoughMemory
from hotreload.events import Publish, SettingsRead
from hotreload.feature import AllFeatures
from hotreload.life.acceptance import tls_pair
from hotreload.life.running_engine import RunningEngine
from hotreload.observe.log import configure
from hotreload.server.http.keys import ApiKeys
from hotreload.server.http.server_sockets import TLS
from hotreload.server_limits import KeyTerms, Limits
from hotreload.settings.credentials import ADMIN_KEYS, KEYS, TOKEN, read_keys, read_secret
from hotreload.settings.load import Settings, reread
from hotreload.settings.tables import values_of
from hotreload.threads import deadline, in_thread, wait_at_most
from hotreload.troubles import SETTINGS_REFUSED, Trouble
from hotreload.types import Checkpoint, Revision, Served

log = logging.getLogger("hotreload")

REREAD_SECONDS = 10.0
"""Seconds for reading the settings file; after that the operator gets an error."""
MEND_IT = "mend what it names and send SIGHUP again: until then the settings from before hold"


LOOK_AT_SECRETS_SECONDS = 1.0
"""Seconds between two looks at a file."""
SETTLE_SECONDS = 0.2
"""Seconds until a second look at a change: an editor empties a file before it writes."""
PUT_IT_RIGHT = "put the file right: until then what it held when it was last read counts"


@dataclass(eq=False)
class LiveSettings:
    """Holds the settings in force, and reads them again on SIGHUP."""

    settings: Settings
    read: Callable[[], Settings] | None
    """Read them again; without it they never change."""
    publish: Publish
    entrance: Entrance[Any]

    def __post_init__(self) -> None:
        self.refused = Trouble(SETTINGS_REFUSED, self.publish)
        self.limits = Limits()
        """Limits on requests, always the ones in force."""
        self._limit(self.settings)
        self._asked = asyncio.Event()

    def ask(self) -> None:
        """Have the settings read again, as soon as an engine serves."""
        self._asked.set()

    async def run(
        self, replicas: Replicas[RunningEngine], reconciler: Reconciler, features: AllFeatures
    ) -> NoReturn:
        """Read the settings at each `ask`, for ever, and publish the outcome."""
        while True:
            await self._asked.wait()
            self._asked.clear()  # a later request may be for a file that changes meanwhile
            try:
                found = reread(self.settings, await self._read_wished())
                for replica in replicas:  # all is checked before anything is applied
                    await replica.engine.unseen.check_questions(found.settings.unseen.corpus)
                self._go_by(found.settings, replicas, reconciler)
                features.apply(found.settings)
            except HotReloadError as fault:
                self._refuse(str(fault))
            except Exception as fault:  # our own fault must not end the engines
                log.exception("settings.internal_error")
                words = f"internal error in hotreload: {type(fault).__name__}: {fault}"
                self._refuse(words)
            else:
                self.refused.set(None)
                self.publish(SettingsRead(found.changed, found.waiting))

    def _refuse(self, why: str) -> None:
        self.refused.set(why, MEND_IT)
        self.publish(SettingsRead(error=why))

    async def _read_wished(self) -> Settings:
        async with deadline(REREAD_SECONDS, "reading the settings", "is their disk there?"):
            # A hanging read of settings must not hold up reads of checkpoints.
            name, read = "a read of the settings", self.read or (lambda: self.settings)
            return await in_thread(lambda cancel: read(), leave_as=name, is_read=False)

    def have_judge(self, engine: RunningEngine) -> None:
        """Have an engine judge weights by the settings in force."""
        engine.judge_by(self.settings.probe, self.settings.checks.max_drift)

    def _judge_by(self, settings: Settings, engines: Sequence[RunningEngine]) -> None:
        """Have all engines judge by these settings; none does when one of them cannot."""
        try:
            for engine in engines:
                engine.judge_by(settings.probe, settings.checks.max_drift)
        except ConfigError:
            for engine in engines:
                self.have_judge(engine)
            raise

    def _go_by(
        self, settings: Settings, replicas: Replicas[RunningEngine], reconciler: Reconciler
    ) -> None:
        """Apply these settings to all parts; ConfigError, and no change, if one part cannot."""
        self._judge_by(settings, [replica.engine for replica in replicas])
        reconciler.rules = settings.rules
        reconciler.judge_by(digest_of_probes(settings))
        self.entrance.allow(settings.reload.max_held)
        self._limit(settings)
        before, self.settings = self.settings, settings
        if settings.log != before.log:
            configure(settings.log.level, settings.log.format)

    def _limit(self, settings: Settings) -> None:
        for name, value in values_of(settings.server.limits):
            setattr(self.limits, name, value)
        self.limits.unknown_fields = settings.server.unknown_fields


def digest_of_probes(settings: Settings) -> str:
    """Return a digest that changes when the probes or their time do."""
    asked = [asdict(probe) for probe in settings.probe]
    text = json.dumps([asked, settings.reload.probe_timeout])
    return blake2b(text.encode(), digest_size=8).hexdigest()


@dataclass(eq=False)
class CheckpointChecks:
    """The checks by which the core validates checkpoints, at a start and later.

    The settings in force apply.
    """

    live_settings: LiveSettings
    content_of: Callable[[Revision], str]
    """Return the content id that a revision must have."""
    roots: Sequence[Path]
    digests: Digests
    served: Served = field(default_factory=lambda: Served({}, {}, {}))
    """The model that each checkpoint must match, once a start has read it."""

    def serve(self, served: Served) -> None:
        """Check checkpoints against this model from now on."""
        self.served = served

    async def __call__(self, revision: Revision, path: Path) -> Checkpoint:
        """Check a checkpoint, in a thread that is left behind when a read hangs."""
        policy = Policy(**asdict(self.live_settings.settings.checks))

        def check(cancel: threading.Event) -> Checkpoint:
            return check_checkpoint(
                revision,
                path,
                served=self.served,
                policy=policy,
                root=self.roots,
                digests=self.digests,
                content_id=self.content_of(revision),
                cancel=cancel,
            )

        return await in_thread(check, leave_as=f"a check of {revision}")


class SecretFiles:
    """Reads each file of secrets again, for all processes, and reports unreadable files."""

    def __init__(self, settings: Settings, trouble: Trouble) -> None:
        """ConfigError if a file of keys, or of TLS, cannot be read."""
        reads = key_reads(settings)
        self.keys: Mapping[str, ApiKeys] = {name: ApiKeys(read()) for name, read in reads.items()}
        """The keys that count, by the setting that names their file."""
        self._reads: dict[str, Callable[[], Any]] = {**reads}
        self.tls = tls_pair(settings)
        if self.tls is not None:
            self._reads[TLS] = self.tls.read_again
        if settings.source.kind == "huggingface" and (token := settings.source.token_file):
            self._reads[TOKEN] = partial(read_secret, token, TOKEN)
        self._trouble = trouble
        self._faults: dict[str, str] = {}
        self._asked = {name: asyncio.Event() for name in self._reads}

    def look_again(self) -> None:
        """Look now."""
        for asked in self._asked.values():
            asked.set()

    async def watch(self, changed: Callable[[], None]) -> None:
        """Look each second, for ever; `changed` is called when other keys count."""
        async with asyncio.TaskGroup() as tasks:
            for name in self._reads:
                tasks.create_task(self._follow(name, changed), name=f"follow {name}")

    async def _follow(self, name: str, changed: Callable[[], None]) -> NoReturn:
        """Go by what two looks in a row find: one alone may come while the file is written."""
        before: int | None = None
        while True:
            self._asked[name].clear()
            found, fault = await self._look(name)
            seen = hash(repr((found, fault)))  # no key itself stays in memory
            if seen != before:
                before = seen
                await asyncio.sleep(SETTLE_SECONDS)
                continue
            self._go_by(name, found, fault, changed)
            del found
            await wait_at_most(LOOK_AT_SECRETS_SECONDS, self._asked[name])

    async def _look(self, name: str) -> tuple[Any, str | None]:
        """Return what the file holds, or None and why it cannot be read."""
        words = f"{name}: reading it takes longer than {REREAD_SECONDS:g} s: is its disk there?"
        late = asyncio.get_running_loop().call_later(REREAD_SECONDS, self._refuse, name, words)
        read = self._reads[name]
        try:
            found = await in_thread(lambda _: read(), leave_as=f"a look at {name}", is_read=False)
        except (ConfigError, NotEnoughMemory) as fault:
            return None, str(fault)
        else:
            return found, None
        finally:
            late.cancel()

    def _go_by(self, name: str, found: Any, fault: str | None, changed: Callable[[], None]) -> None:
        """Have the keys that were found count, or report why there are none."""
        if fault is not None:
            self._refuse(name, fault)
            return
        self._faults.pop(name, None)
        self._trouble.set(None, of=name)
        if name in self.keys and self.keys[name].replace(found):
            changed()

    def _refuse(self, name: str, why: str) -> None:
        """Report why a file cannot be read; its last contents stay in force in all processes."""
        self._trouble.set(why, PUT_IT_RIGHT, of=name)
        if name in self.keys and self._faults.get(name) != why:
            log.error("api_keys.unreadable", extra={"cause": why, "todo": PUT_IT_RIGHT})
        self._faults[name] = why


def key_reads(settings: Settings) -> Mapping[str, Callable[[], Mapping[str, KeyTerms]]]:
    """Return a reader of each file of keys, by its setting."""
    server = settings.server
    files = {KEYS: server.api_keys_file, ADMIN_KEYS: server.admin_keys_file}
    return {name: partial(read_keys, file, name) for name, file in files.items() if file}
