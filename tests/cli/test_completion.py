"""The completion scripts, in the shells they are for."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from hotreload.cli import VERBS, build_parser, read_help
from hotreload.cli.ops.completion import PLACES, SHELLS, script
from tests.cli.conftest import ROOT

DEVICES = {"auto", "cpu", "tpu", "gpu"}
NAMES = set(VERBS)


def completed(*words: str, folder: Path) -> set[str]:
    """What bash offers for the last of these words."""
    written = script(build_parser(), "bash")
    ask = """
        COMP_WORDS=(hotreload "$@"); COMP_CWORD=$#
        _shtab_hotreload 2>&1; printf '%s\\n' "${COMPREPLY[@]}"
    """
    out = subprocess.run(
        ["bash", "-uc", f"{written}\n{ask}", "bash", *words],
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
    )
    assert out.stderr == ""
    return set(out.stdout.split())


def test_bash_completes_verbs(tmp_path: Path) -> None:
    assert completed("", folder=tmp_path) == NAMES
    assert completed("re", folder=tmp_path) == {"reload"}
    assert completed("--v", folder=tmp_path) == {"--version"}


def test_bash_completes_the_options_of_the_verb(tmp_path: Path) -> None:
    assert {"--wait", "--force", "--timeout", "--socket"} <= completed(
        "reload", "--", folder=tmp_path
    )
    assert completed("reload", "--f", folder=tmp_path) == {"--force"}
    assert completed("reload", "--wait", "--f", folder=tmp_path) == {"--force"}
    assert "--force" not in completed("pin", "--", folder=tmp_path)


def test_bash_completes_choices_and_files_and_leaves_free_text_alone(tmp_path: Path) -> None:
    (tmp_path / "step_1").mkdir()
    assert completed("swap", "--device", "", folder=tmp_path) == DEVICES
    assert completed("completion", "", folder=tmp_path) == set(SHELLS)
    assert completed("check", "st", folder=tmp_path) == {"step_1"}
    assert completed("check", "step_1", "--against", "st", folder=tmp_path) == {"step_1"}
    assert completed("reload", "--socket", "st", folder=tmp_path) == {"step_1"}
    assert completed("generate", "--max-new-tokens", "", folder=tmp_path) == set()


@pytest.mark.parametrize("shell", SHELLS)
def test_what_is_to_be_typed_installs_it_on_a_new_account_and_the_script_says_the_same(
    tmp_path: Path, shell: str
) -> None:
    help_lines = read_help("completion").splitlines()
    (last,) = (
        at for at, line in enumerate(help_lines) if f"  hotreload completion {shell} >" in line
    )
    commands = [line.strip() for line in help_lines[last - 1 : last + 1]]
    command = tmp_path / "bin" / "hotreload"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m hotreload.cli "$@"\n')
    command.chmod(0o755)
    environ = {"HOME": str(tmp_path), "PATH": f"{command.parent}:/usr/bin:/bin"}
    environ["PYTHONPATH"] = str(ROOT)
    typed = "\n".join(commands)
    done = subprocess.run(
        ["sh", "-ec", typed], env=environ, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    folder, name = PLACES[shell]
    written = (tmp_path / folder.removeprefix("~/") / name).read_text()
    assert all(f"#   {each}\n" in written for each in commands)
    comments = "\n".join(line for line in written.splitlines() if line.startswith("#"))
    named = set(re.findall(r"~/[\w./-]+", comments))
    assert named - {"~/.zshrc"} == {folder, f"{folder}/{name}"}


@pytest.mark.parametrize("shell", SHELLS)
def test_every_shell_takes_its_script(shell: str) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"there is no {shell}: apt-get install {shell}")
    written = script(build_parser(), shell)
    checked = subprocess.run(
        [shell, "-n"], input=written, text=True, capture_output=True, check=False
    )
    assert (checked.returncode, checked.stderr) == (0, "")


@pytest.mark.skipif(not shutil.which("fish"), reason="there is no fish: apt-get install fish")
def test_fish_completes_verbs_options_and_choices(tmp_path: Path) -> None:
    file = tmp_path / "hotreload.fish"
    file.write_text(script(build_parser(), "fish"))

    def offered(line: str) -> set[str]:
        ask = f"source {file}; complete -C '{line}'"
        env = {"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"}
        out = subprocess.check_output(["fish", "-c", ask], text=True, env=env)
        return {each.partition("\t")[0] for each in out.splitlines()}

    assert offered("hotreload ") == NAMES
    assert "--force" in offered("hotreload reload --")
    assert offered("hotreload swap --device ") == DEVICES


@pytest.mark.skipif(not shutil.which("zsh"), reason="there is no zsh: apt-get install zsh")
def test_zsh_loads_the_script_by_either_way(tmp_path: Path) -> None:
    (tmp_path / "_hotreload").write_text(script(build_parser(), "zsh"))
    load = "autoload -Uz compinit; fpath=($PWD $fpath); compinit -D -u"
    by_path = f"{load}; print $_comps[hotreload]"
    evaluated = (
        'autoload -Uz compinit; compinit -D -u; eval "$(cat _hotreload)"; print $_comps[hotreload]'
    )
    for way, function in ((by_path, "_hotreload"), (evaluated, "_shtab_hotreload")):
        out = subprocess.check_output(["zsh", "-fc", way], text=True, cwd=tmp_path)
        assert out == f"{function}\n"
