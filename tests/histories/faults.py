"""What can be done to a daemon: each fault a small function that says in words what came of it.

Weights say how often each is chosen. Whether what came of it was right is check.py's to say.
"""

import json
import os
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

from hotreload.failpoints import OVERLAP_ONLY, POINTS, START_ONLY
from hotreload.tiny import UNSOUND
from hotreload.types import Mode
from tests.histories.asking import LONG, long_request
from tests.histories.record import Ended, Request
from tests.histories.world import SETTLE, World
from tests.integration.hostile import Can, any_body
from tests.integration.running import PROMPTS, request_for

Act = Callable[[World], str]


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of fault: its name, how often it is chosen, and what it does."""

    name: str
    weight: float
    act: Act


# --- checkpoints ---------------------------------------------------------------------------


def publish(world: World) -> str:
    """A good checkpoint; every other time we wait until it answers."""
    published = world.publish()
    if world.chance.random() < 0.5:
        return ""
    return "" if world.until_live(published) else "not live while we waited"


def publish_three(world: World) -> str:
    """The newest is wanted; the others may be passed over."""
    for _ in range(3):
        world.publish()
        world.a_moment(0.3)
    return ""


def publish_damaged(world: World, damage: str) -> str:
    """A bad one arrives like a good one; mostly we let it be judged before anything else comes."""
    published = world.publish(damage)
    if world.chance.random() < 0.7:
        world.until_refused(published)
    return ""


def publish_again(world: World) -> str:
    """The bytes of what was published last, under a new name."""
    world.publish(number=world.number)
    return ""


def publish_slowly(world: World) -> str:
    """Its files come one by one, the weights in two halves with a rest between them."""
    made, says = world.make()
    label = world.new_label()
    world.note(made, label, says)
    world.record.touched.append(label)
    folder = world.process.checkpoints / label
    folder.mkdir(parents=True)
    for file in sorted(made.iterdir(), key=lambda file: file.suffix == ".safetensors"):
        data = file.read_bytes()
        with (folder / file.name).open("wb", buffering=0) as out:
            out.write(data[: len(data) // 2])
            if file.suffix == ".safetensors":
                world.a_moment(0.5 if world.chance.random() < 0.8 else 4)
            out.write(data[len(data) // 2 :])
    return ""


def rewrite_live(world: World) -> str:
    """Other weights are written over the live ones' files, in place.

    The daemon stands meanwhile: both in part, and quiet because we had no turn, are a checkpoint.
    """
    folder = world.live_folder()
    if folder is None:
        return "nothing to rewrite"
    world.record.touched.append(folder.name)
    made, says = world.make()
    world.note(made, folder.name, says)
    with _standing(world):
        for file in made.iterdir():
            with os.fdopen(os.open(folder / file.name, os.O_RDWR | os.O_CREAT), "r+b") as out:
                out.write(file.read_bytes())
                out.truncate()
        for old in folder.iterdir():
            if not (made / old.name).exists():
                old.unlink()
    return ""


def truncate_live(world: World) -> str:
    """The live ones' files lose their second half."""
    folder = world.live_folder()
    if folder is None:
        return "nothing to truncate"
    world.record.touched.append(folder.name)
    for file in folder.glob("*.safetensors"):
        os.truncate(file, file.stat().st_size // 2)
    return ""


def delete_live(world: World) -> str:
    """The live ones' files go."""
    folder = world.live_folder()
    if folder is None:
        return "nothing to delete"
    world.record.touched.append(folder.name)
    shutil.rmtree(folder)
    return ""


# --- operators -----------------------------------------------------------------------------


def reload_newest(world: World) -> str:
    """Ask for the newest, or what is wanted anyway."""
    return _told(world.tell("reload_weights"))


def reload_named(world: World) -> str:
    """Ask for any folder that lies there, good or bad."""
    return _told(world.tell("reload_weights", model_path=_any_label(world)))


def reload_by_force(world: World) -> str:
    """Ask for any folder, refused before or not."""
    return _told(world.tell("reload_weights", model_path=_any_label(world), force=True))


def roll_back(world: World) -> str:
    """Back to the generation before, which holds like a pin."""
    held = _told(world.tell("rollback"))
    world.publish()
    world.a_moment(1.5)
    return f"{held}, then {_told(world.tell('unpin'))}"


def roll_back_far(world: World) -> str:
    """Back to any generation that was live some time ago."""
    number = world.status().get("generation") or 1
    far = world.chance.randint(max(1, number - 5), number)
    return _told(world.tell("rollback", generation=far, hold=False))


def pin(world: World) -> str:
    """What is published while a pin holds waits for its end."""
    held = _told(world.tell("pin"))
    world.publish()
    world.a_moment(1.5)
    return f"{held}, then {_told(world.tell('unpin'))}"


def perturb(world: World) -> str:
    """Noise on the live weights; the next checkpoint takes it away."""
    seed = world.chance.randrange(1000)
    return _told(world.tell("perturb_weights", seed=seed, scale=0.01))


def reload_and_roll_back(world: World) -> str:
    """Both at once, while a checkpoint arrives."""
    world.publish()
    asks = [partial(world.tell, "reload_weights")]
    asks.append(partial(world.tell, "rollback", hold=False))
    told: list[Request] = []
    threads = [threading.Thread(target=lambda ask=ask: told.append(ask())) for ask in asks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return " and ".join(sorted(_told(each) for each in told))


def _any_label(world: World) -> str:
    newest = world.record.publications[-12:]
    return world.chance.choice(newest).label


def _told(request: Request) -> str:
    words = request.fields.get("outcome") or request.fields.get("code")
    return f"{request.status or request.ended} {words or ''}".strip()


# --- clients -------------------------------------------------------------------------------


def send_bad_requests(world: World) -> str:
    """Bodies of all kinds; each gets an answer or a reason."""
    bodies = [any_body(world.chance, Can(True, True)).content for _ in range(20)]
    asks = [world.asking.ask("POST", "/generate", body, is_bad=True) for body in bodies]
    untold = sum(each.ended not in (Ended.ANSWERED, Ended.REFUSED) for each in asks)
    return f"{untold} of {len(asks)} without an answer" if untold else "each told"


def hang_up(world: World) -> str:
    """Clients that do not wait for their answers."""
    for _ in range(20):
        wish = request_for(world.chance.choice(PROMPTS), stream=world.chance.random() < 0.5)
        world.asking.leave(json.dumps(wish).encode(), world.chance)
    return ""


def answer_for_long(world: World) -> str:
    """Answers that are still under way when the next checkpoint goes live."""
    told: list[Request] = []

    def ask(stream: bool) -> None:
        wish = long_request(PROMPTS[0], max(LONG), stream=stream)
        told.append(world.asking.ask("POST", "/generate", wish))

    threads = [threading.Thread(target=ask, args=(stream,)) for stream in (False, True)]
    for thread in threads:
        thread.start()
    published = world.publish()
    world.until_live(published)
    for thread in threads:
        thread.join()
    makers = {said.revision for each in told for said in each.said}
    return "by the old ones" if makers and published.revision not in makers else "by the new ones"


def read_slowly(world: World) -> str:
    """A stream that nobody reads for a second, while a checkpoint arrives."""
    world.publish()
    wish = request_for("x", stream=True)
    return str(world.asking.ask("POST", "/generate", wish, read_after=1).ended)


# --- signals, and ends of the process ------------------------------------------------------


def storm_of_sighup(world: World) -> str:
    """Twenty times: look now."""
    for _ in range(20):
        world.process.child.send_signal(signal.SIGHUP)
    return ""


def pause(world: World) -> str:
    """Stopped for a second, as by a debugger or a busy machine."""
    with _standing(world):
        time.sleep(1)
    return ""


@contextmanager
def _standing(world: World) -> Iterator[None]:
    """The daemon's process is stopped to the end of the block."""
    world.process.child.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        world.process.child.send_signal(signal.SIGCONT)


def stop_and_start(world: World) -> str:
    """SIGTERM at a random moment of what follows a publication."""
    world.publish()
    world.a_moment(SETTLE + 0.5)
    world.stop()
    return f"exit {world.life.exit_code}"


def kill_at_random(world: World) -> str:
    """Kill -9 at a random moment of what follows some publications."""
    for _ in range(world.chance.randint(1, 3)):
        world.publish(world.chance.choice((None, None, None, "nan", "gibberish")))
        world.a_moment(0.5)
    return f"killed, {world.kill()}"


def kill_at_a_point(world: World) -> str:
    """Kill -9 at one step of an attempt; a start passes two of them itself."""
    world.stop()
    point = world.chance.choice(_points(world.next_mode))
    world.start(f"{point}=kill@{world.chance.choice((1, 1, 2))}")
    for damage in (None, "gibberish" if point == "rolling_back" else None):
        if not world.is_dead():
            world.publish(damage)
            world.dies(4)
    return f"killed at {point}" if world.is_dead() else f"{point} not passed"


DRAIN_ONLY = ("swapped", "rolling_back")


def _points(mode: Mode) -> list[str]:
    """Those that an attempt passes; one by overlap is draining only while it waits for room."""
    others = DRAIN_ONLY if mode is Mode.OVERLAP else OVERLAP_ONLY
    return [point for point in POINTS if point not in {*others, *START_ONLY}]


def slow_steps(world: World) -> str:
    """A life in which some steps take long, so that what follows comes in the middle of them."""
    world.stop()
    passed = _points(world.next_mode)
    slow = world.chance.sample(passed[passed.index("staging") : passed.index("resting")], 2)
    world.start(";".join(f"{step}=delay:0.4" for step in slow))
    world.publish()
    return ""


KINDS = (
    Kind("a good checkpoint", 10, publish),
    Kind("three in a row", 2, publish_three),
    Kind("the same bytes again", 2, publish_again),
    Kind("half written, then finished", 3, publish_slowly),
    Kind("live folder rewritten in place", 2, rewrite_live),
    Kind("live folder truncated", 1, truncate_live),
    Kind("live folder deleted", 1, delete_live),
    *(
        Kind(f"damaged: {each.kind}", 0.7, partial(publish_damaged, damage=each.kind))
        for each in UNSOUND
    ),
    Kind("operator: reload the newest", 2, reload_newest),
    Kind("operator: reload by name", 2, reload_named),
    Kind("operator: reload by force", 2, reload_by_force),
    Kind("operator: roll back", 4, roll_back),
    Kind("operator: roll back far", 2, roll_back_far),
    Kind("operator: pin and unpin", 2, pin),
    Kind("operator: perturb", 2, perturb),
    Kind("operator: reload and roll back", 2, reload_and_roll_back),
    Kind("clients: bad requests", 2, send_bad_requests),
    Kind("clients: hang up", 2, hang_up),
    Kind("clients: slow reader", 2, read_slowly),
    Kind("clients: long answers", 2, answer_for_long),
    Kind("SIGHUP storm", 1, storm_of_sighup),
    Kind("SIGSTOP for a second", 1, pause),
    Kind("SIGTERM, and started again", 1.5, stop_and_start),
    Kind("kill -9 at random", 2, kill_at_random),
    Kind("kill -9 at a step", 2, kill_at_a_point),
    Kind("slow steps", 1, slow_steps),
)
BY_NAME = {kind.name: kind for kind in KINDS}
