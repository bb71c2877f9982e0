"""What [engine.args] says reaches upstream's engine, unless hotreload decides it."""

from dataclasses import dataclass
from pathlib import Path

import pytest

from hotreload.engine.options import EngineOptions
from hotreload.engine.upstream.arguments import arguments_of
from hotreload.errors import ConfigError
from hotreload.facts.upstream import OWNED_ARGS, refused_args


@dataclass
class UpstreamArgs:
    """What upstream's ServerArgs is to us: names."""

    context_length: int = 0


@pytest.mark.parametrize("name", OWNED_ARGS)
def test_what_hotreload_decides_is_refused_in_the_words_of_check_config(name: str) -> None:
    with pytest.raises(ConfigError) as refused:
        arguments_of(UpstreamArgs, EngineOptions(Path("m"), args={name: 1}), "cpu")
    assert str(refused.value) == f"[engine.args] {refused_args([name])[0]}"


def test_other_arguments_are_handed_on() -> None:
    options = EngineOptions(Path("m"), args={"context_length": 1})
    assert arguments_of(UpstreamArgs, options, "tpu") == {"context_length": 1}
