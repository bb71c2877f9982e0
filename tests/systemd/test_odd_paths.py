"""What units name, as a real systemd reads it; in place of the daemon there is a script."""

import shlex
from collections.abc import Iterator
from functools import partial

import pytest

from tests.systemd.machine import INSIDE, Machine, missing

WHY_NOT = missing()
UNITS = "/etc/systemd/system"
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
        machine.until(partial(holds_something, machine, f"{quoted}/state/told"))
        told = machine.run(f"cat {quoted}/state/told").splitlines()
        called = [f"{folder}/hr", "serve", "--config", f"{folder}/hotreload.toml"]
        assert told == [*called, "100% secret"]
        assert machine.run(f"stat -c %a {quoted}/hotreload.toml") == "644"  # by tmpfiles.d
        machine.run(f"test -S {quoted}/s")
    finally:
        machine.attempt("systemctl stop hotreload.socket hotreload.service")
        machine.attempt("systemctl reset-failed hotreload.socket hotreload.service")


def holds_something(machine: Machine, file: str) -> bool:
    return machine.attempt(f"test -s {file}").returncode == 0


STAYS = """\
#!/bin/sh
echo "$@" >"$STATE_DIRECTORY/told"
exec sleep 1000
"""
"""In place of the daemon: says how it was called where systemd made it a folder, and stays."""


def test_two_instances_have_settings_a_socket_and_a_state_folder_each(machine: Machine) -> None:
    """What one of them names is mounted for it before it starts."""
    machine.write("/srv/several", STAYS)
    machine.write(f"{UNITS}/hotreload@.service.d/90-test.conf", "[Service]\nType=exec\n")
    machine.run("chmod 755 /srv/several")
    late = "[Mount]\nWhat=tmpfs\nWhere=/srv/late\nType=tmpfs\n"
    machine.write(f"{UNITS}/srv-late.mount", late)
    for name in ("chat", "code"):
        text = (
            f"[server]\nsocket = '/run/hotreload/{name}.sock'\n[engine]\ndevice = 'cpu'\n"
            f"[state]\ndirectory = '/var/lib/hotreload/{name}'\n[metrics]\naddress = ''\n"
        )
        text += "[source]\npath = '/srv/late/checkpoints'\n" if name == "code" else ""
        machine.write(f"/etc/hotreload/{name}.toml", text)
        install = f"{INSIDE}/bin/hotreload install-unit --exec /srv/several --instance {name}"
        machine.run(f"{install} --enable")
        told = f"/var/lib/hotreload/{name}/told"
        machine.until(partial(holds_something, machine, told))
        assert machine.run(f"cat {told}") == f"serve --config /etc/hotreload/{name}.toml"
        machine.run(f"test -S /run/hotreload/{name}.sock")
        mounted = machine.show("ActiveState", unit="srv-late.mount")["ActiveState"]
        assert mounted == ("active" if name == "code" else "inactive")
    # Whether the kernel lets it is a matter of the machine: in a container it may not.
    assert machine.show("OOMScoreAdjust", unit="hotreload@chat.service")["OOMScoreAdjust"] == "-500"
    done = machine.attempt("systemd-analyze verify hotreload@code.service hotreload@code.socket")
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
    assert are_left(machine, "chat", "code") == {"chat": "active", "code": "active"}
    machine.run(f"{INSIDE}/bin/hotreload install-unit --instance chat --remove")
    assert are_left(machine, "chat", "code") == {"chat": "inactive", "code": "active"}
    machine.run(f"{INSIDE}/bin/hotreload install-unit --instance code --remove")
    assert are_left(machine, "chat", "code") == {"chat": "inactive", "code": "inactive"}
    found = machine.run(f"find {UNITS} -name 'hotreload@*' -not -name 'hotreload@.service.d'")
    assert found == ""  # the test's own drop-in is an operator's
    assert "hotreload@" not in machine.run("systemctl list-unit-files --no-legend")
    machine.run("cat /etc/hotreload/chat.toml /etc/hotreload/code.toml")
    machine.run("cat /var/lib/hotreload/chat/told /var/lib/hotreload/code/told; id hotreload")


def are_left(machine: Machine, *instances: str) -> dict[str, str]:
    return {
        name: machine.show("ActiveState", unit=f"hotreload@{name}.service")["ActiveState"]
        for name in instances
    }
