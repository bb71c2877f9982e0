"""One folder of checkpoints and one daemon over it that lives, dies and lives again."""

import random
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from hotreload.checkpoint.digests import content_id
from hotreload.checkpoint.survey import survey
from hotreload.life.saved.state_json import from_json
from hotreload.tiny import write_tiny
from hotreload.tiny.sayings import OPENERS, SAID_NUMBERS
from hotreload.types import Mode
from tests.histories.asking import Asking
from tests.histories.conversations import KEEP
from tests.histories.record import Fields, Life, Publication, Record, Request
from tests.histories.watching import Watch
from tests.integration.process import START_SECONDS, Process

SETTLE = 0.3
SETTINGS = (
    f"source.settle={SETTLE}",
    "source.patience=1",
    "source.rescan=1",
    "reload.probe_timeout=10",
    "server.limits.generation_seconds=3",
    f"sessions.keep={KEEP}",
)
DYING_SECONDS = 40


def saying(number: int) -> str:
    """What checkpoint `number` says: no two say the same, and each number is told by attention."""
    turn, rest = divmod(number, len(SAID_NUMBERS))
    return f"{OPENERS[turn]} {rest}"


class World:
    """What faults act on."""

    def __init__(
        self,
        folder: Path,
        record: Record,
        chance: random.Random,
        *sets: str,
        modes: Sequence[Mode] = tuple(Mode),
    ) -> None:
        self._modes = modes
        self.record = record
        self.chance = chance
        self.process = Process(folder, *SETTINGS, *sets)
        self.asking = Asking(self.process.socket, record)
        self.aside = folder / "aside"
        self.number = 0
        self._watch = ExitStack()
        self.publish()

    # --- checkpoints -------------------------------------------------------------------

    def make(self, damage: str | None = None, number: int | None = None) -> tuple[Path, str]:
        """A new checkpoint where nobody looks, and what it says."""
        if number is None:
            self.number = number = self.number + 1
        shutil.rmtree(self.aside, ignore_errors=True)
        shards = self.chance.choice((1, 1, 2, 3))
        return write_tiny(self.aside, saying(number), shards=shards, damage=damage), saying(number)

    def note(self, made: Path, label: str, says: str, damage: str | None = None) -> Publication:
        """Write down what is about to be published, before anybody can have seen it."""
        revision = content_id(survey(made))
        noted = Publication(time.monotonic(), label, revision, says, damage)
        self.record.publications.append(noted)
        return noted

    def publish(self, damage: str | None = None, number: int | None = None) -> Publication:
        """A new checkpoint arrives in one rename."""
        made, says = self.make(damage, number)
        label = self.new_label()
        noted = self.note(made, label, says, damage)
        self.process.checkpoints.mkdir(exist_ok=True)
        made.rename(self.process.checkpoints / label)
        return noted

    def new_label(self) -> str:
        """A name with a higher step than any before."""
        return f"step_{len(self.record.publications) + 1}"

    def a_moment(self, longest: float) -> None:
        """Let some time pass: the random moment at which the next thing comes."""
        time.sleep(self.chance.uniform(0, longest))

    # --- the daemon's lives ------------------------------------------------------------

    @contextmanager
    def living(self) -> Iterator["World"]:
        """Serve from here on; whatever happens, no process is left behind."""
        self.start()
        try:
            yield self
        finally:
            self.kill()

    @property
    def life(self) -> Life:
        """The one that is there, or was last."""
        return self.record.lives[-1]

    @property
    def next_mode(self) -> Mode:
        """How new weights take over in the life that comes next: each way in turn."""
        return self._modes[len(self.record.lives) % len(self._modes)]

    def start(self, failpoints: str = "") -> None:
        """Begin a life and wait until it serves, or has died of a failpoint."""
        life = Life(len(self.record.lives) + 1, time.monotonic(), failpoints, self.next_mode)
        self.record.lives.append(life)
        self.process.start(failpoints, sets=(f"reload.mode={life.mode}",))
        self._watch.enter_context(Watch(self.asking, life).watching())
        deadline = time.monotonic() + START_SECONDS
        while not self.asking.get("/readyz") and not self.is_dead():
            assert time.monotonic() < deadline, self.process.log.read_text()[-3000:]
            time.sleep(0.05)

    def is_dead(self) -> bool:
        """Whether the process has ended; then its end is written down."""
        if self.life.ended is None and self.process.child.poll() is not None:
            self._note_end()
        return self.life.ended is not None

    def kill(self) -> str:
        """Kill it now; return the phase it was in."""
        phase = self._phase()
        self._tell("kill", signal.SIGKILL)
        return phase

    def stop(self) -> None:
        """Ask it to leave, and wait until it has."""
        self._tell("stop", signal.SIGTERM)

    def dies(self, within: float = DYING_SECONDS) -> bool:
        """Wait for a failpoint to end it."""
        deadline = time.monotonic() + within
        while not self.is_dead() and time.monotonic() < deadline:
            time.sleep(0.05)
        return self.is_dead()

    def serves_again(self) -> bool:
        """Start it if it is dead; whether it serves."""
        if self.is_dead():
            self.start()
        if self.is_dead():  # of a failpoint that the start passed
            self.start()
        return not self.is_dead() and bool(self.asking.get("/readyz"))

    def _tell(self, how: str, number: signal.Signals) -> None:
        if self.is_dead():
            return
        self.life.told, self.life.told_at = how, time.monotonic()
        self.process.child.send_signal(number)
        try:
            self.process.child.wait(DYING_SECONDS)
        except subprocess.TimeoutExpired:  # its exit code will tell
            self.process.child.kill()
        self._note_end()

    def _note_end(self) -> None:
        life = self.life
        life.exit_code = self.process.child.wait()
        life.ended = time.monotonic()
        self._watch.close()
        state = self.process.folder / "state" / "state.json"
        if state.exists():
            places = from_json(state.read_bytes()).generations
            life.left = [(each.number, each.revision.id, each.fingerprint) for each in places]

    # --- looking and telling -----------------------------------------------------------

    def status(self) -> Fields:
        """How it says it is; nothing while it is not there."""
        return self.asking.get("/status")

    def tell(self, verb: str, **fields: Any) -> Request:
        """An operator's ask, and how it ended."""
        return self.asking.ask("POST", f"/admin/{verb}", fields)

    def live_folder(self) -> Path | None:
        """The folder that what is live came from, if it is still there."""
        label = self.status().get("label")
        folder = self.process.checkpoints / str(label)
        is_model = folder.name == "step_1"  # a start needs its config
        return folder if label and folder.is_dir() and not is_model else None

    def until_live(self, published: Publication, seconds: float = 30) -> bool:
        """Wait until it answers; False when it is overtaken, or the daemon dies over it."""
        return self._until(lambda: self.status().get("revision") == published.revision, seconds)

    def until_alone(self, seconds: float = 30) -> bool:
        """Wait until nobody is answered by an older generation any more."""
        return self._until(lambda: len(self.status().get("answering") or ()) == 1, seconds)

    def until_refused(self, published: Publication, seconds: float = 8) -> bool:
        """Wait until it is refused; False when something newer came first."""

        def is_refused() -> bool:
            return any(each[0] == published.revision for each in self.status().get("refused", ()))

        return self._until(is_refused, seconds)

    def _until(self, holds: Callable[[], bool], seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and not self.is_dead():
            if holds():
                return True
            time.sleep(0.05)
        return False

    def _phase(self) -> str:
        """The phase it entered last, from its events: the process itself may not answer now."""
        life = self.life.number
        own = (heard.fields for heard in reversed(self.record.heard) if heard.life == life)
        phases = (fields["phase"] for fields in own if fields["event"] == "reload.phase")
        return str(next(phases, None) or "at rest")
