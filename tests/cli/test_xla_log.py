"""Whose remarks are kept out of the log, and whose are not."""

from pathlib import Path

import pytest

from hotreload.cli.args import XLA_LOG_LEVEL, keep_remarks_out
from hotreload.cli.ops import machine


@pytest.mark.parametrize(
    ("device", "platforms", "accelerators", "level"),
    [
        ("auto", "", [], "3"),
        ("auto", "cpu", ["/dev/accel0"], "3"),
        ("cpu", "", ["/dev/accel0"], "3"),
        ("auto", "", ["/dev/accel0"], None),
        ("auto", "tpu,cpu", [], None),
        ("tpu", "", [], None),
    ],
)
def test_only_where_the_cpu_computes(
    monkeypatch: pytest.MonkeyPatch,
    device: str,
    platforms: str,
    accelerators: list[str],
    level: str | None,
) -> None:
    monkeypatch.setattr(machine, "accelerators", lambda: [Path(each) for each in accelerators])
    environ = {"JAX_PLATFORMS": platforms}
    keep_remarks_out(device, environ)
    assert environ.get(XLA_LOG_LEVEL) == level


def test_a_level_that_is_set_stays() -> None:
    environ = {XLA_LOG_LEVEL: "0"}
    keep_remarks_out("cpu", environ)
    assert environ == {XLA_LOG_LEVEL: "0"}
