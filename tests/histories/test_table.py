"""The closing table counts each kind of fault, and says what came of it."""

from tests.histories.record import Fault, Heard, Life, Record
from tests.histories.table import table


def over(revision: str, outcome: str, code: str | None = None) -> Heard:
    return Heard(1, 5, {"event": f"reload.{outcome}", "revision": revision, "code": code})


def test_a_row_tells_how_often_a_fault_was_survived_and_what_came_of_it() -> None:
    record = Record(7)
    record.lives.append(Life(1, 0, ended=60, told="stop", exit_code=0))
    record.heard += [over("a", "live"), over("b", "rejected", "nonfinite")]
    record.faults += [
        Fault("a checkpoint", 1, 2, "", ("a",)),
        Fault("a checkpoint", 2, 3, "", ("never tried",)),
        Fault("a checkpoint", 3, 4, "killed", ("b",), survived=False),
    ]
    heads, line, row, _, summed, *_ = table(record).splitlines()
    assert heads.split() == ["fault", "injected", "survived", "what", "came", "of", "it"]
    assert set(line) == {"-"}
    name, injected, survived, came_of = (part for part in row.split("  ") if part)
    assert (name, injected.strip(), survived.strip()) == ("a checkpoint", "3", "2")
    told = {"1x live", "1x rejected nonfinite", "1x overtaken", "1x killed"}
    assert set(came_of.strip().split(", ")) == told
    assert summed == "seed 7: 3 faults in 1.0 min, 1 lives, 0 of them killed, 0 generations live"
