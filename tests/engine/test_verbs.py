"""What the core asks of an engine is said once in the engine's room."""

import pytest

from hotreload.core.ports import Engine
from hotreload.engine.sglang import SglangEngine
from hotreload.hosts.engine.rank_engine import RankEngine

VERBS = Engine.__protocol_attrs__ - {"live", "staging_progress"}  # type: ignore[attr-defined]
"""But for two that are attributes, set where the weights are made."""


def homes(verb: str, engine: type) -> list[str]:
    """The classes of ours that say it, of those that an engine is made of."""
    ours = (each for each in engine.__mro__ if each.__module__.startswith("hotreload"))
    return [each.__name__ for each in ours if verb in vars(each)]


@pytest.mark.parametrize("verb", sorted(VERBS))
def test_each_verb_of_the_engine_has_one_home_in_its_room(verb: str) -> None:
    assert len(homes(verb, SglangEngine)) == 1


def test_one_of_several_hosts_stages_otherwise_and_else_does_the_same() -> None:
    its_own = {verb for verb in VERBS if "RankEngine" in homes(verb, RankEngine)}
    assert its_own == {"stage"}
