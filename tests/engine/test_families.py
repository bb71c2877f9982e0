"""The families of models that docs/start.md lists: each of the smallest size, with random weights.

It starts, answers, has a second checkpoint go live beside the first, and goes back. The names and
shapes of the tensors are those that the engine asks for.
"""

from collections.abc import Mapping
from functools import partial
from importlib.metadata import version
from pathlib import Path

import pytest

from hotreload import HotEngine
from hotreload.errors import ConfigError
from hotreload.types import Mode
from tests.engine import real
from tests.engine.families import MODELS, ON_BOTH, model_files, random_weights

pytestmark = [pytest.mark.real_engine, pytest.mark.at_night]

IS_NEWER = version("sglang-jax") != "0.0.2"
PROMPTS = ["Who serves?", "And then?", "x y z"]
AS_THEY_ARE = {"temperature": 0, "max_new_tokens": 8, "ignore_eos": True}


@pytest.mark.parametrize("name", MODELS)
def test_a_family_starts_answers_and_has_new_weights_go_live(name: str, tmp_path: Path) -> None:
    files = model_files(name)
    start = partial(HotEngine, device="cpu", args={**real.ARGS, "trust_remote_code": True})
    config = written(tmp_path / "config", files)
    if not IS_NEWER and name not in ON_BOTH:
        if name != "Qwen3MoeForCausalLM":  # which that engine starts, and cannot compute
            with pytest.raises(ConfigError, match=r"0\.0\.2 does not serve that"):
                start(config, boot="random")
        return
    with start(config, boot="random") as hot:
        expected = hot.asynchronous._replica.engine.weights.expected_tensors()
    first, second = (
        written(tmp_path / f"step_{n}", {**files, "model.safetensors": random_weights(expected, n)})
        for n in (1, 2)
    )
    with start(first) as hot:
        assert hot.mode is Mode.OVERLAP
        before = answers(hot)
        hot.update(second)
        after = answers(hot)
        assert after != before
        hot.rollback()
        assert answers(hot) == before
    with start(second) as hot:
        assert answers(hot) == after


def written(folder: Path, files: Mapping[str, bytes]) -> Path:
    folder.mkdir()
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return folder


def answers(hot: HotEngine) -> list[list[int]]:
    return [answer["output_ids"] for answer in hot.generate(PROMPTS, AS_THEY_ARE)]
