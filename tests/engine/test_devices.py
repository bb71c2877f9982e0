"""Which devices an engine gets: those the setting names, or none."""

import inspect
import os
import subprocess
import sys
from pathlib import Path

import jax
import pytest

from hotreload.engine.upstream import embedded_engine
from hotreload.engine.upstream.arguments import find_devices
from hotreload.errors import ConfigError
from tests.engine import real

pytestmark = [pytest.mark.asyncio(loop_scope="function"), pytest.mark.real_engine]

OF_JAX = pytest.mark.alike
"""Another case of what the newer JAX shows by day in one: it looks for devices in the same way."""


@pytest.mark.parametrize(
    "named", ["cpu,tpu", *(pytest.param(each, marks=OF_JAX) for each in ("tpu,cpu", None))]
)
async def test_an_engine_starts_whatever_else_jax_platforms_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: str | None
) -> None:
    find_devices("cpu", 1, 0)
    # JAX has read the variable by now; upstream reads it again, and knows bare names only.
    if named is None:
        monkeypatch.delenv("JAX_PLATFORMS", raising=False)
    else:
        monkeypatch.setenv("JAX_PLATFORMS", named)
    folder = real.Folders(tmp_path).folder(1)
    async with real.engine_of(folder, tmp_path / "spool") as engine:
        assert (await real.ask(engine))["text"] == "served by step 1"
    assert os.environ.get("JAX_PLATFORMS") == named


async def test_another_device_than_jax_platforms_names_is_a_wrong_setting() -> None:
    assert find_devices("auto", 1, 0) == find_devices("cpu", 1, 0)
    with pytest.raises(ConfigError, match="'tpu', but JAX_PLATFORMS = 'cpu'"):
        find_devices("tpu", 1, 0)


async def test_the_first_of_several_engines_looks_for_the_devices_of_all() -> None:
    here = len(find_devices("cpu", 4, 0))
    with pytest.raises(ConfigError, match=r"tp = 2 and replicas = 3 need 6 devices, .* has 4"):
        find_devices("cpu", 2, 0, engines=3)
    assert len(find_devices("cpu", 2, here - 2, engines=2)) == 2


async def test_one_that_is_put_on_later_devices_is_told_where_they_end() -> None:
    with pytest.raises(ConfigError, match=r"tp = 2 from device 3 on needs 5 devices, .* has 4"):
        find_devices("cpu", 2, 3)


@pytest.mark.parametrize(
    "named", [None, pytest.param("tpu", marks=OF_JAX), pytest.param("tpu,cpu", marks=OF_JAX)]
)
async def test_an_accelerator_that_is_not_there_never_becomes_a_cpu(named: str | None) -> None:
    done = found("tpu", named)
    assert "DeviceUnavailable: no tpu device can be used" in done.stderr


@pytest.mark.parametrize(
    ("device", "named"),
    [
        pytest.param("cpu", None, marks=OF_JAX),
        ("auto", None),
        pytest.param("auto", "cpu", marks=OF_JAX),
    ],
)
async def test_a_cpu_is_found_where_one_is_asked_for(device: str, named: str | None) -> None:
    assert found(device, named).stdout == "cpu\n"


def found(device: str, named: str | None) -> subprocess.CompletedProcess[str]:
    """What a process of its own finds: JAX looks for devices once in a life."""
    look = f"find_devices({device!r}, 1, 0)[0].platform"
    code = f"from hotreload.engine.upstream.arguments import find_devices; print({look})"
    env = {**os.environ, "JAX_PLATFORMS": named or ""}
    if named is None:
        del env["JAX_PLATFORMS"]
    command = [sys.executable, "-c", code]
    return subprocess.run(command, env=env, capture_output=True, text=True, check=False)


class Accelerator:
    platform = "tpu"

    def __init__(self, free: int) -> None:
        self.free = free

    def memory_stats(self) -> dict[str, int]:
        return {"bytes_limit": 100, "bytes_in_use": 100 - self.free}


async def test_an_engine_counts_the_memory_of_its_own_devices_and_keeps_what_others_compiled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with embedded_engine.import_upstream():
        from sgl_jax.srt.model_executor import model_runner
    measure = model_runner.get_available_device_memory
    full, mine = Accelerator(1), [Accelerator(50), Accelerator(40)]
    monkeypatch.setattr(jax, "local_devices", lambda: [full, *mine])
    monkeypatch.setattr(jax, "clear_caches", lambda: pytest.fail("others would compile anew"))
    with embedded_engine._on_devices(mine):
        if "device_indexes" not in inspect.signature(measure).parameters:  # 0.0.2
            assert model_runner.get_available_device_memory("tpu") == 40
        assert model_runner.get_available_device_memory("cpu") > 100
    assert model_runner.get_available_device_memory is measure
