"""Which step a folder's name says, whatever else stands in it."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hotreload.sources.place import is_unfinished, says_step, step_of
from tests.sources.watching import watching, write

DTYPES = [
    "bf16",
    "fp16",
    "fp32",
    "f16",
    "fp8",
    "fp-8",
    "float32",
    "bfloat16",
    "int4",
    "int8",
    "nf4",
    "mxfp4",
    "8bit",
    "4-bit",
    "e4m3",
    "e5m2fnuz",
    "fp8_e4m3",
    "w4a16",
    "w8a8",
    "q4_k_m",
    "q8_0",
]
SIZES = [
    "7b",
    "70B",
    "0.6b",
    "1.5b",
    "8x7b",
    "30b-a3b",
    "350m",
    "125M",
    "1t",
    "32k",
    "128k",
    "128g",
    "g64",
]
WORDS = ["llama", "qwen", "actor", "final", "ema", "tp", "hf", "base", "rlhf"]
DATES = ["2026-11-21", "20261121", "2026-11-21_10-30-00", "2026-11-21T103000"]
STEP_WORDS = [
    "step",
    "global_step",
    "checkpoint",
    "ckpt",
    "iter",
    "iteration",
    "epoch",
    "Step",
    "CHECKPOINT",
]


@pytest.mark.parametrize(
    ("path", "step"),
    [
        ("step_900_bf16", (0, 900)),
        ("step900bf16", (0, 900)),
        ("llama-7b-step-100", (0, 100)),
        ("checkpoint-500-fp8", (0, 500)),
        ("checkpoint-7b-500", (0, 500)),
        ("epoch_3", (0, 3)),
        ("epoch_3_iter_200", (3, 200)),
        ("epoch=3-step=200", (3, 200)),
        ("checkpoint_1-step_900", (0, 900)),
        ("2026-11-21_step_5", (0, 5)),
        ("step_5_2026-11-21", (0, 5)),
        ("900-2026-11-21", (0, 900)),
        ("2026-11-21", (0, 20261121)),
        ("iter_0000100", (0, 100)),
        ("step_100k", (0, 100_000)),
        ("qwen3-0.6b-900", (0, 900)),
        ("qwen3-900-4bit-128g", (0, 900)),
        ("writer_5", (0, 5)),
        ("1000", (0, 1000)),
        ("run2/step_7", (0, 7)),
        ("epoch_2/step_7", (2, 7)),
        ("global_step_100/actor/huggingface", (0, 100)),
        ("1000/params", (0, 1000)),
        ("run2/final", None),
        ("final", None),
        ("qwen-7b-bf16", None),
        ("checkpoint-32k", None),
    ],
)
def test_the_step_is_the_number_that_says_so(path: str, step: tuple[int, int] | None) -> None:
    assert step_of(path.split("/")) == step


@given(
    step=st.integers(0, 10**9),
    said=st.sampled_from([word + joint for word in STEP_WORDS for joint in ("", "_", "-", "=")]),
    around=st.lists(st.sampled_from([*DTYPES, *SIZES, *WORDS, *DATES]), max_size=5),
    at=st.integers(0, 5),
    between=st.sampled_from("-_."),
)
def test_no_dtype_size_or_date_is_ever_taken_for_the_step(
    step: int, said: str, around: list[str], at: int, between: str
) -> None:
    named = between.join([*around[:at], f"{said}{step}", *around[at:]])
    assert step_of([named]) == (0, step), named
    assert says_step(named)


@given(
    step=st.integers(0, 10**9).filter(lambda step: len(str(step)) != 8),
    around=st.lists(st.sampled_from([*DTYPES, *SIZES, *WORDS]), min_size=1, max_size=4),
    at=st.integers(0, 4),
)
def test_without_a_word_for_it_the_step_is_the_last_number_of_another_kind(
    step: int, around: list[str], at: int
) -> None:
    named = "-".join([*around[:at], str(step), *around[at:]])
    assert step_of([named]) == (0, step), named


@given(st.lists(st.sampled_from([*DTYPES, *SIZES, *WORDS]), min_size=1, max_size=6))
def test_dtypes_and_sizes_alone_are_no_step(around: list[str]) -> None:
    assert step_of(["_".join(around)]) is None
    assert not says_step("-".join(around))


@given(st.text(max_size=60))
def test_any_name_can_be_asked(name: str) -> None:
    step = step_of([name, name])
    assert step is None or all(number >= 0 for number in step)
    assert says_step(name) in (True, False)
    assert is_unfinished(name) in (True, False)


@given(st.permutations([f"epoch_{epoch}_iter_{n}" for epoch in range(3) for n in (5, 40, 300)]))
def test_iterations_that_begin_anew_with_each_epoch_are_in_order(names: list[str]) -> None:
    ordered = sorted(names, key=lambda name: step_of([name]) or (-1, -1))
    assert ordered == [f"epoch_{epoch}_iter_{n}" for epoch in range(3) for n in (5, 40, 300)]


@pytest.mark.parametrize(
    "name",
    [
        ".step_9",
        "tmp-checkpoint-9",
        "step_9.tmp",
        "step_9.partial",
        "step_9-tmp-77",
        "step_9_tmp",
        "step_9.orbax-checkpoint-tmp-12",
        "9.orbax-checkpoint-tmp-12",
        ".9.tmp",
    ],
)
def test_names_that_their_writers_give_to_what_is_under_way(name: str) -> None:
    assert is_unfinished(name)
    assert says_step(name)
    assert step_of([name]) == (0, 9)


@pytest.mark.parametrize("name", ["step_9", "attempt-9", "tmp_run", "temp-0.7-step-9", "part_1"])
def test_names_that_only_look_like_those(name: str) -> None:
    assert not is_unfinished(name)


@pytest.mark.parametrize(
    ("older", "newer"),
    [
        ("step_800", "step_900_bf16"),
        ("step_20_fp32", "step_21"),
        ("checkpoint-5-70b", "checkpoint-6-7b"),
        ("epoch_2_iter_900", "epoch_3_iter_200"),
        ("global_step_9/actor/hf", "global_step_10/actor/hf"),
    ],
)
async def test_the_newest_is_by_what_its_name_says(root: Path, older: str, newer: str) -> None:
    write(root / newer, "newer")
    write(root / older, "older")
    async with watching(root, settle=0.0) as watch:
        await watch.wished(Path(newer).name)
        assert await watch.source.fetch(watch.wishes[0]) == root / newer
