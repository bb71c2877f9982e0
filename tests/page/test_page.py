"""The status page in a real browser, before a server whose engine does what the test says."""

import asyncio
import itertools
import json
import re
import shutil
import subprocess
import time
from dataclasses import replace
from pathlib import Path

import pytest

from hotreload.attempts import Attempt, By, PassedOver, Refusal
from hotreload.core.ledger import Overrule
from hotreload.errors import BadRequest, Busy
from hotreload.events import (
    AttemptFinished,
    FoldersPassedOver,
    GenerationEnded,
    GenerationLive,
    LiveDrifted,
    LoaderDistrusted,
    ModeChosen,
    PhaseEntered,
    Progress,
    RevisionWanted,
    SourceScanned,
    StateSaved,
    TroubleNews,
    Wait,
)
from hotreload.features.command.command import CommandBegan
from hotreload.features.compare.evidence import Behaviour, BothAnswers
from hotreload.picture.picture import Rank, ReplicaFigures
from hotreload.picture.status import Status
from hotreload.server.http.keys import ApiKeys
from hotreload.server.view_routes import PAGE_FOLDER
from hotreload.server_limits import UNNAMED, KeyTerms, Limits
from hotreload.types import AnsweringGeneration, Generation, Mode, Outcome, Phase, Reason, Revision
from tests.evidence import judged
from tests.fake_answers import FOR_EVER
from tests.observe.test_replicas import BOTH, lost
from tests.observe.test_status import BOOTED, after
from tests.observe.things import OWN
from tests.page.chromium import ON_ITS_LOOP, Tab, needs_chromium
from tests.server.world import FIRST, SECOND, World, attempt, serve
from tests.waiting import PATIENCE

SCRIPT = "<script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">"
COMPARED = Behaviour(6, 96, 0.42, 1.0, 3, 1.25, 0, 0, 0, 0, 0, 0)
PROBE = Reason("probe", "the answer 'x x x' does not hold 'Paris'", ("x" * 80, "second finding"))
STEP_3 = Revision("cccc3333", "step-3")
SHOWN_FOCUS = "document.activeElement.id || document.activeElement.className || 'body'"


async def opened(tab: Tab, world: World) -> Tab:
    await tab.look()
    await tab.open(f"http://127.0.0.1:{world.tcp_port}/")
    await tab.until_text("#link", "connected")
    return tab


# --- without a browser -------------------------------------------------------------------


@ON_ITS_LOOP
async def test_the_page_is_on_the_socket_too_and_under_a_strict_policy(world: World) -> None:
    async with world.client() as client:
        front = await client.get("/")
        script = await client.get("/page/main.js")
    assert front.headers["content-type"] == "text/html; charset=utf-8"
    assert script.headers["content-type"] == "text/javascript; charset=utf-8"
    for answer in (front, script):
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert "*" not in policy
        assert answer.headers["x-content-type-options"] == "nosniff"


@ON_ITS_LOOP
@pytest.mark.parametrize(
    "name", ["nothing.js", "..%2Fview_routes.py", "%2e%2e/view_routes.py", "index"]
)
async def test_what_is_no_file_of_the_page_is_not_found(world: World, name: str) -> None:
    async with world.client() as client:
        assert (await client.get(f"/page/{name}")).status_code == 404


def test_the_page_is_small_and_names_no_other_host() -> None:
    files = [path for path in PAGE_FOLDER.iterdir() if path.is_file()]
    assert sum(path.stat().st_size for path in files) < 58_000
    for path in files:
        text = path.read_text().replace("http://www.w3.org/2000/svg", "")
        assert not re.search(r"""\w+://|["'(]//|@import|innerHTML|\son[a-z]+=|style=""", text), path


@pytest.mark.skipif(not shutil.which("node"), reason="there is no node: apt-get install nodejs")
@pytest.mark.parametrize("file", sorted(PAGE_FOLDER.glob("*.js")), ids=lambda path: path.name)
def test_each_module_is_sound_javascript(file: Path) -> None:
    command = ["node", "--check", "--input-type=module"]
    subprocess.run(command, input=file.read_bytes(), check=True)


@ON_ITS_LOOP
async def test_leaves_are_told_with_what_was_before_them(world: World) -> None:
    world.go_live(Generation(2, SECOND.revision, "fp-2", 1.7e9, {"lm_head": 12, "model.embed": 7}))
    async with world.client() as client:
        told = (await client.get("/leaves")).json()
    assert (told["generation"], told["fingerprint"]) == (2, "fp-2")
    assert told["leaves"] == {"lm_head": 12, "model.embed": 7}
    assert told["changed"] == ["lm_head"]
    assert told["previous"]["leaves"] == FIRST.leaves


# --- what is shown -----------------------------------------------------------------------


@needs_chromium
async def test_the_first_thing_said_is_what_is_live_and_whether_it_answers(
    world: World, tab: Tab
) -> None:
    await opened(tab, world)
    assert await tab.text("#state") == "serving"
    said = "Generation 1, step-1, answers; nothing else is wanted"
    assert await tab.text("#headline") == said
    assert await tab.ask("document.querySelector('#next').hidden")
    assert await tab.text("#health") == "Answers requests; nothing newer is wanted."
    assert await tab.ask("document.title") == "serving 1 · hotreload"
    facts = await tab.text("#facts")
    assert "aaaa1111" in facts
    assert "d ago" in facts
    since = await tab.ask("document.querySelector('#facts time').title")
    assert "2023" in since
    assert "2 leaves, nothing to compare with" in await tab.text("#leaves-said")


@needs_chromium
async def test_an_attempt_is_followed_phase_by_phase_with_its_download(
    world: World, tab: Tab
) -> None:
    await opened(tab, world)
    world.events.publish(RevisionWanted(STEP_3))
    world.events.publish(PhaseEntered(STEP_3, Phase.FETCHING))
    world.events.publish(Progress(STEP_3, Phase.FETCHING, 412_000_000, 1_240_000_000))
    await tab.until_text("#attempt", "in progress", "step-3", "412 MB of 1.2 GB")
    assert await tab.text("#state") == "reloading"
    assert await tab.ask("document.querySelector('#progress-bar').value") == pytest.approx(
        0.332, 0.01
    )
    world.events.publish(PhaseEntered(STEP_3, Phase.VALIDATING))
    current = "#phases [aria-current=step]"
    await tab.until_text(current, "validating")
    await tab.until("document.querySelector('#progress').hidden")
    world.events.publish(CommandBegan(STEP_3, "judge.sh", 600.0))
    decides = "[command] run (judge.sh) decides, for "
    await tab.until_text("#health", "checking step-3", decides, " of 10 min at most, try 1")
    running = "document.querySelector('#phases [aria-current=step] .took')?.innerText"
    before = json.dumps(await tab.ask(running))
    await tab.until(f"{running} !== {before}")  # the time of a phase that runs goes on
    world.events.publish(PhaseEntered(STEP_3, None))
    rejected = attempt(Outcome.REJECTED, PROBE)
    world.events.publish(AttemptFinished(rejected, FIRST))
    await tab.until_text("#attempt", "Last attempt", "rejected", "does not hold 'Paris'")
    await tab.until_text("#history", "step-2", "rejected", "does not hold 'Paris'", "1.2 s")
    assert await tab.ask("document.querySelectorAll('#history tbody tr').length") == 1
    await tab.ask("document.querySelector('#history .why summary').click()")
    assert "second finding" in await tab.text("#history")


@needs_chromium
async def test_the_history_tells_a_rollback_as_one_and_who_asked_for_it(
    world: World, tab: Tab
) -> None:
    await opened(tab, world)
    world.events.publish(AttemptFinished(attempt(), SECOND))
    back = replace(attempt(), generation=3, by=By("rollback", 0, 77, 1.7e9, "too many words"))
    world.events.publish(AttemptFinished(back, replace(SECOND, number=3)))
    await tab.until_text("#attempt", "Last attempt", "rolled back")
    left = "too many words; from step-2 (bbbb2222), generation 2"
    await tab.until_text("#history", "rolled back", f"rollback, root (pid 77); {left}")
    world.events.publish(
        AttemptFinished(replace(attempt(Outcome.REJECTED), rolled_back=True), SECOND)
    )
    await tab.until_text("#attempt", "rejected")
    assert "rolled back" not in await tab.text("#attempt")


@needs_chromium
async def test_a_swap_moves_the_headline_the_leaves_and_the_charts(world: World, tab: Tab) -> None:
    await opened(tab, world)
    now = Generation(2, SECOND.revision, "fp-2", 1.7e9, {"lm_head": 12, "model.embed": 7})
    world.events.publish(GenerationLive(now))
    world.events.publish(AttemptFinished(attempt(), now))
    await tab.until_text("#headline", "Generation 2, step-2, answers")
    await tab.until_text("#leaves-said", "2 leaves, 1 changed since generation 1")
    await tab.ask("document.querySelector('#leaves-said').click()")
    await tab.until_text("#leaves", "lm_head")
    assert (await tab.text("#leaves tbody tr")).split() == ["lm_head", "12", "11", "changed"]
    label = "document.querySelector('#phase-chart').getAttribute('aria-label')"
    assert "step-2 (live): validating 200 ms, staging 1.0 s, swapping 4 ms" in await tab.ask(label)
    pauses = await tab.ask("document.querySelector('#pause-chart').getAttribute('aria-label')")
    assert pauses.endswith("The longest: step-2 (live): 5 ms")
    assert await tab.ask("document.querySelector('#agreement').hidden")
    await tab.ask("document.querySelector('#leaf-changed').click()")
    assert await tab.ask("document.querySelectorAll('#leaves tbody tr').length") == 1


@needs_chromium
async def test_the_agreement_of_the_last_attempts_is_drawn(world: World, tab: Tab) -> None:
    """From the history that the page has: a rollback, which nothing is compared in, has no mark."""
    for agreement, outcome in ((1.0, Outcome.LIVE), (None, Outcome.LIVE), (0.25, Outcome.REJECTED)):
        found = agreement and replace(COMPARED, agreement=agreement)
        ended = judged(attempt(outcome), behaviour=found or None)
        world.events.publish(AttemptFinished(ended, SECOND))
    await opened(tab, world)
    await tab.until("document.querySelectorAll('#agreement-chart title').length === 2")
    label = await tab.ask("document.querySelector('#agreement-chart').getAttribute('aria-label')")
    assert label.startswith("Agreement of the last 2 attempts compared with what was live.")
    assert label.endswith("The least: step-2 (rejected): 6 answers agree 25%")
    heights = await tab.ask(
        "['circle', 'path'].map((mark) => document.querySelector(`#agreement-chart ${mark}`)"
        ".getBoundingClientRect()).map((box) => box.y)"
    )
    assert heights[0] < heights[1]
    await tab.look(360)
    await tab.until("innerWidth === 360")
    assert await tab.ask("document.documentElement.scrollWidth") <= 360
    await tab.shoot("agreement-360")


WORST = (
    BothAnswers(
        "The capital of France is", " Paris", " Lyon", "agreement: 0 of 2 tokens are alike"
    ),
    BothAnswers("2 + 2 =", " 4", " 4", "mean_kl: 0.01 along the same answer"),
)


@needs_chromium
async def test_what_changed_in_answers_is_shown_beside_what_it_was(world: World, tab: Tab) -> None:
    """Of what was compared last, though other attempts came after it; and the command's words."""
    await opened(tab, world)
    assert await tab.ask("document.querySelector('#changed').hidden")
    said = ("188 of 200 tasks solved", "below 190: refused")
    reason = Reason("behaviour", "agreement 42 % is below 60 %")
    found = replace(COMPARED, worst=WORST)
    compared = judged(attempt(Outcome.REJECTED, reason), behaviour=found, command_said=said)
    world.events.publish(AttemptFinished(compared, FIRST))
    await tab.until_text("#attempt", "rejected", "answers agree 42%, 1.25 times as long")
    other = judged(attempt(Outcome.REJECTED, PROBE), not_compared="cut short after 2 s: nothing")
    world.events.publish(AttemptFinished(other, FIRST))
    await tab.until_text("#attempt", "Paris", "comparison cut short after 2 s")
    await tab.until_text("#changed-said", "step-2 rejected", "answers agree 42%")
    pairs = "[...document.querySelectorAll('#pairs li')].map((pair) => pair.innerText.split('\\n'))"
    first, second = await tab.ask(pairs)
    assert [word.strip() for word in first if word] == [
        *("Prompt", "The capital of France is", "agreement: 0 of 2 tokens are alike"),
        *("Before", "Paris", "New", "Lyon"),
    ]
    assert "Both answer" in second
    assert await tab.text("#command-said") == "\n".join(said)
    for width in (390, 1280):
        await tab.look(width)
        await tab.until(f"innerWidth === {width}")
        assert await tab.ask("document.documentElement.scrollWidth") <= width
        await tab.shoot(f"changed-{width}")


@needs_chromium
async def test_the_newest_three_refusals_have_a_line_each_across_the_page(
    world: World, tab: Tab
) -> None:
    await opened(tab, world)
    assert await tab.ask("document.querySelector('#refused').hidden")
    for step in range(5):
        long = Reason("nonfinite", f"tensor {step} " + "holds NaN " * 40, (f"finding of {step}",))
        refusal = Refusal(Revision(f"{step}" * 40, f"step_{step}"), long, time.time() + step)
        world.view.ledger.refused[f"{step}"] = refusal
    world.events.publish(RevisionWanted(STEP_3))
    await tab.until_text("#refused", "and 2 more")
    lines = "[...document.querySelectorAll('#refusals summary')].map((one) => one.innerText)"
    assert [line.split(" nonfinite")[0][-6:] for line in await tab.ask(lines)] == [
        *("step_4", "step_3", "step_2"),
    ]
    for width in (390, 1280):
        await tab.look(width)
        await tab.until(f"innerWidth === {width}")
        boxes = await tab.ask(
            "['#refusals summary', '#refusals', '#refused', 'main'].map((one) => "
            "document.querySelector(one).getBoundingClientRect()).map((box) => box.toJSON())"
        )
        line, all_lines, panel, page = boxes
        assert all_lines["height"] == 3 * line["height"]
        assert line["height"] < 24
        assert panel["width"] == page["width"]
        assert await tab.ask("document.documentElement.scrollWidth") <= width
    await tab.ask("document.querySelector('#refusals summary').click()")
    await tab.until_text("#refusals", "finding of 4", "4" * 40)


@needs_chromium
async def test_tokens_a_second_and_the_first_token_are_measured_between_two_looks(
    world: World, tab: Tab, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = itertools.count()

    def counted(_: Status) -> str:
        look = next(looks)
        return (
            f'sglang:generation_tokens_total{{model_name="tiny"}} {look * 1000}.0\n'
            f'sglang:time_to_first_token_seconds_count{{model_name="tiny"}} {look * 4}.0\n'
            f'sglang:time_to_first_token_seconds_sum{{model_name="tiny"}} {look * 0.2}\n'
        )

    monkeypatch.setattr(Status, "page_for_gateways", counted)
    await opened(tab, world)
    await tab.until_text("#facts", "Tokens a second\nbeing measured", "no stream lately")
    await tab.ask(TEN_SECONDS_LATER)
    world.events.publish(RevisionWanted(STEP_3))
    await tab.until_text("#facts", "First token after\n50 ms, the mean of 4 streams")
    rate = re.search(r"Tokens a second\n(\d+)", await tab.text("#facts"))
    assert rate is not None
    assert 80 < int(rate[1]) <= 100
    world.go_live(SECOND)
    await tab.until_text("#headline", "Generation 2")
    assert next(looks) == 2  # an event alone asks for no metrics


TEN_SECONDS_LATER = """
  const before = performance.now.bind(performance);
  performance.now = () => before() + 10000;
"""


@needs_chromium
async def test_an_old_generation_is_seen_to_fade_out_until_it_has_ended(
    world: World, tab: Tab
) -> None:
    world.events.publish(ModeChosen(Mode.OVERLAP))
    world.view.older = [AnsweringGeneration(FIRST, 3)]
    world.go_live(SECOND)
    held_nobody = replace(attempt(), pause_seconds=0.0)
    world.events.publish(AttemptFinished(held_nobody, SECOND))
    await opened(tab, world)
    facts = await tab.text("#facts")
    assert "0 requests by generation 2, 3 requests still by 1" in facts
    assert "overlap" in facts
    await tab.until("document.querySelector('#pauses').hidden")
    assert "Pause" not in await tab.text("main")
    await tab.shoot("fading")
    world.view.older.clear()
    world.events.publish(GenerationEnded(FIRST))
    await tab.until("!document.querySelector('#facts').innerText.includes('still by')")
    assert "0 requests by generation 2" in await tab.text("#facts")


@needs_chromium
async def test_each_of_several_engines_is_shown(
    world: World, tab: Tab, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon = after(*BOTH, *lost(1), others=[ReplicaFigures()])
    monkeypatch.setattr(world.view.documents.status, "snapshot", daemon.snapshot)
    await opened(tab, world)
    facts = " ".join((await tab.text("#facts")).split())
    assert "Replica 0 serving, generation 3, 5 inside, 6 held" in facts
    assert re.search("Replica 1 lost .* ago, started again in .*: the scheduler thread died", facts)
    assert (await tab.text("#health")).startswith("Answers requests")


@needs_chromium
async def test_a_rank_that_follows_is_told_from_the_one_that_answers(
    world: World, tab: Tab, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon = after(*BOOTED, rank=Rank(1, 2, "tpu-0:8000"))
    monkeypatch.setattr(world.view.documents.status, "snapshot", daemon.snapshot)
    await opened(tab, world)
    assert await tab.text("#state") == "following"
    assert await tab.ask("document.querySelector('#state').dataset.tone") == "good"
    said = "Holds its part of the engine; rank 0 decides and answers."
    assert await tab.text("#health") == said
    facts = await tab.text("#facts")
    assert "1 of 2; rank 0, met at tpu-0:8000, decides and answers" in facts
    assert [name for name in ("Wanted", "Source", "Gate", "Answering") if name in facts] == []


@needs_chromium
async def test_where_generations_overlap_no_attempt_is_expected_to_drain(
    world: World, tab: Tab
) -> None:
    world.events.publish(ModeChosen(Mode.OVERLAP))
    world.events.publish(PhaseEntered(STEP_3, Phase.FETCHING))
    world.events.publish(PhaseEntered(STEP_3, Phase.PROBING))
    await opened(tab, world)
    names = (
        "[...document.querySelectorAll('#phases li > :first-child')].map((one) => one.innerText)"
    )
    await tab.until_text("#phases", "swapping")
    to_come = ["validating", "staging", "comparing", "swapping"]
    assert await tab.ask(names) == ["fetching", "probing", *to_come]


@needs_chromium
async def test_it_says_how_the_weights_were_loaded_and_what_is_wrong_with_them(
    world: World, tab: Tab
) -> None:
    loaded = replace(attempt(), loading=OWN)
    world.go_live(SECOND)
    world.view.ledger.attempts.appendleft(loaded)
    world.events.publish(AttemptFinished(loaded, SECOND))
    await opened(tab, world)
    change = "12 of 30 leaves changed, most: layers.3.down_proj by 4 %"
    await tab.until_text("#facts", f"by our own loader: {change}")
    await tab.until_text("#history", change)
    assert "Drifted" not in await tab.text("#facts")
    world.events.publish(LiveDrifted(SECOND, ("lm_head",)))
    world.events.publish(LoaderDistrusted("leaf b differs"))
    await tab.until_text("#facts", "no longer what went live: lm_head", "switched off: leaf b")


@needs_chromium
async def test_a_held_gate_says_what_for(world: World, tab: Tab) -> None:
    world.events.publish(PhaseEntered(STEP_3, Phase.SWAPPING))
    world.gate.hold()
    await opened(tab, world)
    assert (await tab.text("#health")).startswith(
        "Holds 0 requests while the weights are exchanged"
    )
    world.events.publish(ModeChosen(Mode.OVERLAP))
    await tab.until_text("#health", "Holds 0 requests while the KV pool is cleaned")


def refused_just_now() -> Refusal:
    """One of what the source has no more is shown for a day."""
    return Refusal(Revision("dddd4444", "step-0"), PROBE, time.time())


@needs_chromium
async def test_what_it_waits_for_what_is_refused_and_a_pin_are_said(world: World, tab: Tab) -> None:
    world.view.ledger.refused["d"] = refused_just_now()
    world.view.ledger.pinned = True
    by = By("rollback", 0, 7, 1.7e9, "bad answers")
    world.view.ledger.overruled = Overrule(FIRST.revision, SECOND.revision, by)
    world.events.publish(RevisionWanted(FIRST.revision))
    world.events.publish(StateSaved("no space left"))
    world.events.publish(Wait("2 of 4 shards of step-3"))
    odd = PassedOver("step-9", Reason("format", "step-9 holds a.bin"))
    world.events.publish(FoldersPassedOver((odd,), {"format": 3}))
    await opened(tab, world)
    waits = "Answers requests; waits: 2 of 4 shards of step-3 ("
    assert (await tab.text("#health")).startswith(waits)
    assert "step-0 probe: " in await tab.text("#refusals")
    assert "step-9 holds a.bin\nand 2 more" in await tab.text("#facts")
    assert await tab.text("#pinned") == "pinned"
    facts = await tab.text("#facts")
    assert "by hand: rollback by root (pid 7), " in facts
    assert "it overrules the source's step-2 (bbbb2222) until" in facts
    assert "no space left" in facts


WRONG = (
    TroubleNews("files_gone", "the files of generation 1 are gone from /mnt/" + "a" * 60, "copy"),
    TroubleNews("socket_gone", "the socket was removed", "look at its folder"),
    StateSaved("state.json cannot be written: no space left on device"),
    LiveDrifted(FIRST, ("model.layers.0." + "x" * 60,)),
    SourceScanned("rescan", "EIO"),
)
TONE_OF = """Object.fromEntries([...document.querySelectorAll("#facts [data-tone]")].map((one) =>
  [one.querySelector("dt").innerText + " " + one.querySelector("dd").innerText.slice(0, 11),
    one.dataset.tone + " " + getComputedStyle(one.querySelector("dd")).color]))"""
BAD, WAIT = "bad rgb(179, 38, 30)", "wait rgb(138, 83, 0)"


@needs_chromium
async def test_what_somebody_must_mend_looks_like_a_fault_and_says_what_to_type(
    world: World, tab: Tab
) -> None:
    for event in WRONG:
        world.events.publish(event)
    await opened(tab, world)
    said = "5 troubles: files_gone, socket_gone, LiveWeightsDrifted, StateNotSaved, SourceDead"
    assert said in await tab.text("#headline")
    assert await tab.text("#next") == "Next: hotreload status --check"
    assert await tab.ask(TONE_OF) == {
        "Trouble files_gone:": BAD,
        "Trouble socket_gone": BAD,
        "Drifted no longer w": BAD,
        "Not saved a restart f": BAD,
        "Source directory, ": WAIT,
    }
    world.events.publish(TroubleNews("files_gone", None))
    world.events.publish(StateSaved(None))
    await tab.until("!document.querySelector('#facts').innerText.includes('files_gone')")
    assert len(await tab.ask(TONE_OF)) == 3
    for width in (360, 1180):
        await tab.look(width)
        await tab.until(f"innerWidth === {width}")
        assert await tab.ask("document.documentElement.scrollWidth") <= width
        await tab.shoot(f"troubles-{width}")


@needs_chromium
@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_every_phase_has_a_colour_of_its_own_in_bars_and_legend(
    world: World, tab: Tab, scheme: str
) -> None:
    long = replace(attempt(), phases={phase: 1.0 + at for at, phase in enumerate(Phase)})
    world.events.publish(AttemptFinished(long, SECOND))
    await opened(tab, world)
    await tab.look(360, scheme)
    await tab.until_text("#legend", "building", "warming")
    for shown, part in (("#phase-chart rect", "null"), ("#legend li", "'::before'")):
        style = "fill" if part == "null" else "backgroundColor"
        colours = await tab.ask(
            f"[...document.querySelectorAll('{shown}')].map((one) => "
            f"getComputedStyle(one, {part}).{style})"
        )
        assert len(colours) == len(set(colours)) == len(Phase)
        assert {"rgb(0, 0, 0)", "rgba(0, 0, 0, 0)"}.isdisjoint(colours)
    assert await tab.ask("document.documentElement.scrollWidth") <= 360
    await tab.shoot(f"phases-{scheme}-360")


@needs_chromium
async def test_a_selection_in_what_is_live_stays_while_other_facts_change(
    world: World, tab: Tab
) -> None:
    await opened(tab, world)
    await tab.ask("getSelection().selectAllChildren(document.querySelector('#facts code'))")
    assert await tab.ask("getSelection().toString()") == "step-1 (aaaa1111)"
    world.view.ledger.refused["d"] = refused_just_now()
    world.events.publish(RevisionWanted(STEP_3))
    await tab.until_text("#facts", "step-3")
    await tab.until_text("#refusals", "step-0 probe")
    assert await tab.ask("getSelection().toString()") == "step-1 (aaaa1111)"
    names = "[...document.querySelectorAll('#facts dt')].map((name) => name.innerText)"
    order = ["Revision", "Fingerprint", "Live since", "Wanted", "Source", "Gate", "Answering"]
    assert await tab.ask(names) == [*order, "Tokens a second", "First token after"]


@needs_chromium
async def test_a_selection_in_the_last_attempt_stays_while_nothing_new_is_tried(
    world: World, tab: Tab
) -> None:
    world.events.publish(AttemptFinished(attempt(Outcome.REJECTED, PROBE), FIRST))
    await opened(tab, world)
    await tab.ask("getSelection().selectAllChildren(document.querySelector('#attempt .reason'))")
    world.events.publish(RevisionWanted(STEP_3))
    await tab.until_text("#facts", "step-3")
    assert "does not hold 'Paris'" in await tab.ask("getSelection().toString()")


@needs_chromium
async def test_a_whole_revision_is_reached_with_the_keyboard(world: World, tab: Tab) -> None:
    revision, fingerprint = "e" * 64, "f" * 64
    now = Generation(2, Revision(revision, "step-2"), fingerprint, 1.7e9, {"lm_head": 1})
    world.go_live(now)
    world.events.publish(AttemptFinished(attempt(), now))
    await opened(tab, world)
    assert revision not in await tab.text("#facts")
    assert fingerprint in await tab.text("#facts")
    for _ in range(2):
        await tab.press("Tab")
    assert await tab.ask("document.activeElement.innerText") == f"step-2 ({revision[:12]})"
    await tab.press("Enter")
    await tab.until_text("#facts", revision)
    world.events.publish(RevisionWanted(STEP_3))
    await tab.until_text("#facts", "step-3", revision, fingerprint)  # it stays open
    await tab.ask("document.querySelector('#history .label summary').focus()")
    await tab.press(" ")
    await tab.until_text("#history .label", SECOND.revision.id)


@needs_chromium
async def test_markup_in_what_comes_from_outside_is_shown_as_text(world: World, tab: Tab) -> None:
    evil = Generation(2, Revision("bbbb2222", SCRIPT), SCRIPT, 1.7e9, {SCRIPT: 1})
    reason = Reason("probe", SCRIPT, (SCRIPT, "more"))
    world.view.ledger.refused["evil"] = Refusal(evil.revision, reason, time.time())
    world.go_live(evil)
    world.events.publish(Wait(SCRIPT))
    phases = {Phase.STAGING: 1.0}
    tried = judged(
        Attempt(evil.revision, Outcome.REJECTED, reason, phases, 0.1, 1.7e9),
        behaviour=replace(COMPARED, worst=(BothAnswers(SCRIPT, SCRIPT, f"{SCRIPT} new", SCRIPT),)),
        command_said=(SCRIPT,),
    )
    world.events.publish(AttemptFinished(tried, evil))
    world.engine.words = [SCRIPT]
    await opened(tab, world)
    await tab.ask("document.querySelector('#prompt').focus()")
    await tab.type(SCRIPT)
    await tab.press("Enter")
    await tab.until_text("#answer", SCRIPT)
    await tab.ask("document.querySelector('#leaves-said').click()")
    texts = ("#refusals", "#pairs dd", "#pairs small", "#pairs div:last-child dd", "#command-said")
    for place in ("#headline", "#health", "#attempt", "#history", "#leaves", *texts):
        await tab.until_text(place, SCRIPT)
    assert await tab.ask("document.querySelectorAll('img, main script').length") == 0
    assert await tab.ask("document.title") == "serving 2 · hotreload"


@needs_chromium
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1180])
async def test_nothing_is_wider_than_the_screen_and_words_stand_out(
    world: World, tab: Tab, width: int, scheme: str
) -> None:
    long = Revision("e5" * 32, "a_" + "very_long_name" * 8)
    now = Generation(2, long, "fp" * 20, 1.7e9, {"model.layers.0." * 4: 2**53})
    world.go_live(now)
    tried = replace(attempt(Outcome.REJECTED, PROBE), revision=long)
    world.events.publish(AttemptFinished(tried, now))
    await opened(tab, world)
    await tab.look(width, scheme)
    await tab.until(f"innerWidth === {width}")
    await tab.ask("for (const folded of document.querySelectorAll('details')) folded.open = true")
    assert await tab.ask("document.documentElement.scrollWidth") <= width
    ratio = await tab.ask(CONTRAST)
    assert ratio["worst"] >= 4.5, ratio
    await tab.shoot(f"unfolded-{scheme}-{width}")


CONTRAST = """(() => {
  const numbers = (colour) => colour.match(/[\\d.]+/g).map(Number);
  const light = (colour) => numbers(colour).slice(0, 3).map((part) => part / 255)
    .map((part) => part <= 0.03928 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4)
    .reduce((sum, part, at) => sum + part * [0.2126, 0.7152, 0.0722][at], 0);
  const ground = (node) => {
    const colour = getComputedStyle(node).backgroundColor;
    return numbers(colour)[3] === 0 ? ground(node.parentElement) : colour;
  };
  const found = [...document.querySelectorAll("body *")]
    .filter((node) => node.checkVisibility() && !node.closest("svg, .skip, noscript") &&
      [...node.childNodes].some((child) => child.nodeType === 3 && child.data.trim()))
    .map((node) => {
      const pair = [light(getComputedStyle(node).color), light(ground(node))].sort((a, b) => b - a);
      return { worst: (pair[0] + 0.05) / (pair[1] + 0.05), text: node.textContent.slice(0, 40) };
    });
  return found.sort((a, b) => a.worst - b.worst)[0];
})()"""


# --- asking ------------------------------------------------------------------------------


@needs_chromium
async def test_a_prompt_is_asked_with_the_keyboard_alone(world: World, tab: Tab) -> None:
    await opened(tab, world)
    seen = []
    for _ in range(7):
        await tab.press("Tab")
        seen.append(await tab.ask(SHOWN_FOCUS))
    assert seen[:4] == ["skip", "prompt", "tokens", "ask-button"]
    assert "leaf-filter" not in seen  # what is folded stops nobody on the way
    await tab.ask("document.querySelector('.skip').focus()")
    await tab.press("Enter")
    await tab.press("Tab")
    assert await tab.ask(SHOWN_FOCUS) == "prompt"
    await tab.type("Who serves?")
    await tab.press("Enter", shift=True)
    await tab.type("And now?")
    assert world.engine.requests == []
    await tab.press("Enter")
    await tab.until_text("#answer", "served by step 1")
    await tab.until_text("#answered-by", "Answered by generation 1 (step-1), 4 tokens")
    assert world.engine.requests[0]["text"] == "Who serves?\nAnd now?"


@needs_chromium
async def test_an_answer_comes_word_by_word_and_can_be_stopped(world: World, tab: Tab) -> None:
    world.engine.may_answer.clear()
    await opened(tab, world)
    await tab.ask("document.querySelector('#prompt').focus()")
    await tab.type(FOR_EVER)
    await tab.press("Enter")
    await tab.until_text("#answer", "served")
    assert await tab.text("#answer") == "served"
    await tab.ask("document.querySelector('#stop-button').click()")
    await tab.until_text("#answered-by", "Stopped.")
    await asyncio.wait_for(world.engine.went_on.wait(), PATIENCE)
    assert world.engine.running == 0


READ_OUT = """
  window.heard = [];
  const live = (node) => node?.closest("[aria-live], [role=status]");
  const isHeard = (node) => {
    const region = live(node);
    if (!region || node.closest("[aria-hidden=true], [aria-busy=true]")) return false;
    return (region.ariaLive ?? "polite") !== "off";
  };
  const element = (node) => node.nodeType === 1 ? node : node.parentElement;
  new MutationObserver((changes) => {
    const regions = new Set(changes.map(({ target }) => element(target)).filter(isHeard).map(live));
    for (const region of regions) window.heard.push([region.id, region.textContent]);
  }).observe(document.body, { childList: true, characterData: true, subtree: true });
"""
"""What a screen reader would say: a live region as a whole, at each change in it."""


@needs_chromium
async def test_an_answer_that_comes_word_by_word_is_read_out_once_and_whole(
    world: World, tab: Tab
) -> None:
    world.engine.may_answer.clear()
    await opened(tab, world)
    await tab.ask(READ_OUT)
    await tab.ask("document.querySelector('#prompt').value = 'Who serves?'")
    await tab.ask("document.querySelector('#ask-button').click()")
    await tab.until_text("#answer", "served")
    assert await tab.ask("document.querySelector('#answer').ariaBusy") == "true"
    assert await tab.ask("heard.filter(([id]) => id === 'answer')") == []
    world.engine.may_answer.set()
    await tab.until_text("#answered-by", "Answered by generation 1")
    assert await tab.ask("heard.filter(([id]) => id === 'answer')") == [
        ["answer", "served by step 1"]
    ]
    assert await tab.ask("document.querySelector('#answer').ariaBusy") == "false"


@needs_chromium
async def test_a_refused_prompt_says_why(world: World, tab: Tab) -> None:
    world.engine.steps.faults["generate"] = BadRequest("the prompt is longer than 256 tokens")
    await opened(tab, world)
    await tab.ask("document.querySelector('#prompt').value = 'x'")
    await tab.ask("document.querySelector('#ask-button').click()")
    await tab.until_text("#answered-by", "No answer: the prompt is longer than 256 tokens")
    tab.forgive("400 (Bad Request)")


# --- when things are not well ------------------------------------------------------------


@needs_chromium
async def test_while_booting_it_says_so_and_turns_when_the_first_weights_are_live(
    tab: Tab, tmp_path: Path
) -> None:
    async with serve(tmp_path, booted=False, tcp=True) as world:
        await opened(tab, world)
        assert await tab.text("#state") == "booting"
        assert (await tab.text("#headline")).startswith("No request is answered: booting")
        assert await tab.text("#next") == "Next: hotreload status --wait"
        assert "Answers no request: booting" in await tab.text("#health")
        await tab.ask(READ_OUT)
        said = json.dumps(await tab.text("#health"))
        world.events.publish(StateSaved(None))
        await tab.until(f"document.querySelector('#health').innerText !== {said}")  # the seconds
        assert await tab.ask("heard.filter(([id]) => id.startsWith('health'))") == []
        await tab.ask("document.querySelector('#prompt').value = 'x'")
        await tab.ask("document.querySelector('#ask-button').click()")
        await tab.until_text("#answered-by", "No answer: ")
        world.go_live(FIRST)
        await tab.until_text("#headline", "Generation 1")
        tab.forgive("503 (Service Unavailable)", "ERR_CONNECTION_REFUSED")


@needs_chromium
async def test_a_sealed_gate_is_bad_news_with_its_reason(world: World, tab: Tab) -> None:
    await opened(tab, world)
    world.gate.seal("the scheduler thread died", code="engine_lost")
    await tab.until_text("#state", "lost")
    assert "Answers no request: lost: the scheduler thread died" in await tab.text("#health")
    assert await tab.ask("document.querySelector('#state').dataset.tone") == "bad"


@needs_chromium
async def test_a_lost_connection_is_told_once_and_its_seconds_only_shown(
    tab: Tab, tmp_path: Path
) -> None:
    async with serve(tmp_path, tcp=True) as world:
        await opened(tab, world)
        await tab.ask(READ_OUT)
    await tab.until_text("#link", "connection lost, trying again (for 1.0 s)")
    await tab.until_text("#link", "connection lost, trying again (for 3.0 s)")
    told = [text for region, text in await tab.ask("heard") if region == "link-said"]
    assert told[-1] == "connection lost, trying again"
    assert told.count(told[-1]) == 1
    tab.forgive("ERR_CONNECTION", "ERR_INCOMPLETE_CHUNKED", "ERR_EMPTY", "ERR_SOCKET")


@needs_chromium
async def test_without_events_it_asks_again_and_again(tab: Tab, tmp_path: Path) -> None:
    async with serve(tmp_path, tcp=True, limits=Limits(listeners=0)) as world:
        await tab.open(f"http://127.0.0.1:{world.tcp_port}/")
        await tab.until_text("#link", "asking every second")
        world.go_live(SECOND)
        await tab.until_text("#headline", "Generation 2")
        tab.forgive("503 (Service Unavailable)", "ERR_CONNECTION_REFUSED")


@needs_chromium
async def test_a_scan_of_the_source_alone_asks_for_nothing(world: World, tab: Tab) -> None:
    await opened(tab, world)
    await tab.ask("document.querySelector('#answered-by').textContent = ''")
    asked = len([route for route, _ in world.metrics.finished if route == "/status"])
    for _ in range(20):
        world.events.publish(SourceScanned("rescan"))
    world.events.publish(GenerationLive(SECOND))
    await tab.until_text("#headline", "Generation 2")
    now = len([route for route, _ in world.metrics.finished if route == "/status"])
    assert now - asked <= 3


@needs_chromium
async def test_a_tab_that_nobody_sees_keeps_no_connection(world: World, tab: Tab) -> None:
    alone = len(world.events._observers)
    await opened(tab, world)
    assert len(world.events._observers) == alone + 1
    await tab.ask(TURN % "true")
    await world.until(lambda: len(world.events._observers) == alone)
    world.go_live(SECOND)
    await tab.ask(TURN % "false")
    await tab.until_text("#headline", "Generation 2")
    await tab.until_text("#link", "connected")


TURN = """
  Object.defineProperty(document, "hidden", { value: %s, configurable: true });
  document.dispatchEvent(new Event("visibilitychange"))
"""


@needs_chromium
async def test_the_browser_itself_refuses_markup_and_other_hosts(world: World, tab: Tab) -> None:
    await opened(tab, world)
    markup = "try { document.body.innerHTML = '<b>x</b>' } catch (fault) { fault.name }"
    assert await tab.ask(markup) == "TypeError"
    away = "fetch('http://127.0.0.2:9/').then(() => 'went', () => 'refused')"
    assert await tab.ask(away) == "refused"
    assert any("Content Security Policy" in fault for fault in tab.faults())
    tab.forgive("Content Security Policy", "TrustedHTML")


# --- keys ----------------------------------------------------------------------------------


API, ADMIN = "a-key-of-24-characters-1", "an-admin-key-of-24-chars"


async def give_key(tab: Tab, key: str) -> None:
    await tab.ask("document.querySelector('#key-field').focus()")
    await tab.type(key)
    await tab.press("Enter")


async def click(tab: Tab, name: str) -> None:
    await tab.ask(f"document.getElementById('{name}').click()")


@needs_chromium
async def test_with_an_admin_key_the_page_rolls_back_and_pins_once_it_is_confirmed(
    tmp_path: Path, tab: Tab, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    tab.forgive("401")
    keys, admin_keys = ApiKeys({API: UNNAMED}), ApiKeys({ADMIN: KeyTerms("ops")})
    async with serve(
        tmp_path, tcp=True, keys=keys, admin_keys=admin_keys, access_log=True
    ) as world:
        world.control.outcome = attempt()
        world.go_live(SECOND)
        await tab.look()
        await tab.open(f"http://127.0.0.1:{world.tcp_port}/")
        await tab.until_text("#key-said", "This daemon asks for a key")
        await tab.until_text("#link", "a key is needed")
        await give_key(tab, f"{API}x")
        await tab.until_text("#key-said", "does not know this key")
        await give_key(tab, API)
        await tab.until_text("#headline", "Generation 2, step-2, answers")
        await tab.until_text("#key-said", "With an admin key this page can roll back")
        assert await tab.ask("document.querySelector('#orders').hidden")
        await give_key(tab, ADMIN)
        await tab.until("!document.querySelector('#orders').hidden")
        assert await tab.ask("document.querySelector('#key').hidden")
        await tab.shoot("orders")

        await click(tab, "rollback")
        await tab.until("document.querySelector('#confirm').open")
        said = await tab.text("#confirm-said")
        assert "Generation 1 (" in said
        assert "in place of Generation 2 (step-2), and is held" in said
        await click(tab, "confirm-no")
        assert world.control.asked == []
        for verb in ("rollback", "pin"):
            await click(tab, verb)
            await click(tab, "confirm-yes")
            await tab.until_text("#order-said", "Done.")
            await tab.ask("document.querySelector('#order-said').textContent = ''")
        assert world.control.asked == [("rollback", 1, False), ("pin", None, False)]
        assert world.control.by[0].reason == "on the status page"
        world.control.refusal = Busy("another change is under way")
        await click(tab, "pin")
        await click(tab, "confirm-yes")
        await tab.until_text("#order-said", "Not done: another change is under way")
        tab.forgive("409")

        assert await tab.ask("[sessionStorage.length, localStorage.length, document.cookie]") == [
            *(1, 0, "")
        ]
        asked = [each for each in tab.events() if each["method"] == "Network.requestWillBeSent"]
        urls = [each["params"]["request"]["url"] for each in asked]
        assert any(url.endswith("/admin/pin") for url in urls)
    for key in (API, ADMIN):
        assert not any(key in url for url in urls)
        assert not any(key in str(vars(each)) for each in caplog.records)


@needs_chromium
async def test_without_admin_keys_the_page_offers_no_change_and_asks_for_none(
    world: World, tab: Tab
) -> None:
    await opened(tab, world)
    assert await tab.ask("document.querySelector('#orders').hidden")
    assert await tab.ask("document.querySelector('#key').hidden")
