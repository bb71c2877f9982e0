"""Paths of odd names, as a real systemd reads the units that name them."""

import shlex
from collections.abc import Iterator

import pytest

from tests.systemd.machine import INSIDE, Machine, missing

WHY_NOT = missing()
pytestmark = pytest.mark.skipif(WHY_NOT is not None, reason=f"a real systemd {WHY_NOT}")

TELLS = """\
#!/bin/sh
{ printf '%s\\n' "$0" "$@"; ls "$CREDENTIALS_DIRECTORY"; } >"$(dirname "$0")/state/told"
"""
"""In place of the daemon: says how it was called, where only a unit that lets it can write."""


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    with Machine(tmp_path_factory.mktemp("machine")).booted() as machine:
        yield machine


@pytest.mark.parametrize(
    "name", ["my tools", "100% %n $HOME ${PATH}", 'it\'s "quoted"', "back\\slash \\x41 [a]* ü"]
)
def test_what_units_name_is_what_systemd_runs_lets_in_and_listens_on(
    machine: Machine, name: str
) -> None:
    folder = f"/srv/{name}"
    machine.write(f"{folder}/hr", TELLS)
    machine.write(f"{folder}/100% secret", "s")
    settings = (
        "[server]\nsocket = 's'\n[state]\ndirectory = 'state'\n[engine]\ndevice = 'cpu'\n"
        "[source]\nkind = 'huggingface'\nrepo = 'a/b'\ntoken_file = '100% secret'\n"
    )
    machine.write(f"{folder}/hotreload.toml", settings)
    quoted = shlex.quote(folder)
    machine.run(f"chmod -R a+rX {quoted}; chmod a+x {quoted}/hr; chmod 600 {quoted}/hotreload.toml")
    machine.attempt(
        f"{INSIDE}/bin/hotreload install-unit --enable --exec {quoted}/hr "
        f"--config {quoted}/hotreload.toml"
    )  # which fails at its last step: this one never says that it is ready
    try:
        machine.until(lambda: machine.attempt(f"test -s {quoted}/state/told").returncode == 0)
        told = machine.run(f"cat {quoted}/state/told").splitlines()
        called = [f"{folder}/hr", "serve", "--config", f"{folder}/hotreload.toml"]
        assert told == [*called, "100% secret"]
        assert machine.run(f"stat -c %a {quoted}/hotreload.toml") == "644"  # by tmpfiles.d
        machine.run(f"test -S {quoted}/s")
    finally:
        machine.attempt("systemctl stop hotreload.socket hotreload.service")
        machine.attempt("systemctl reset-failed hotreload.socket hotreload.service")
