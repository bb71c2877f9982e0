"""Which devices an engine gets: those the setting names, or none."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hotreload.engine.upstream.devices import find_devices
from hotreload.errors import ConfigError
from tests.engine import real

pytestmark = [pytest.mark.asyncio(loop_scope="function"), pytest.mark.real_engine]


@pytest.mark.parametrize("named", ["cpu,tpu", "tpu,cpu", None])
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


@pytest.mark.parametrize("named", [None, "tpu", "tpu,cpu"])
async def test_an_accelerator_that_is_not_there_never_becomes_a_cpu(named: str | None) -> None:
    done = found("tpu", named)
    assert "DeviceUnavailable: no tpu device can be used" in done.stderr


@pytest.mark.parametrize(("device", "named"), [("cpu", None), ("auto", None), ("auto", "cpu")])
async def test_a_cpu_is_found_where_one_is_asked_for(device: str, named: str | None) -> None:
    assert found(device, named).stdout == "cpu\n"


def found(device: str, named: str | None) -> subprocess.CompletedProcess[str]:
    """What a process of its own finds: JAX looks for devices once in a life."""
    look = f"find_devices({device!r}, 1, 0)[0].platform"
    code = f"from hotreload.engine.upstream.devices import find_devices; print({look})"
    env = {**os.environ, "JAX_PLATFORMS": named or ""}
    if named is None:
        del env["JAX_PLATFORMS"]
    command = [sys.executable, "-c", code]
    return subprocess.run(command, env=env, capture_output=True, text=True, check=False)
