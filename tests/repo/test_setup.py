"""`.ci/setup` finds an interpreter that really works, and does nothing the second time.

Fake interpreters stand on a PATH of our own; nothing is installed.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from hotreload.engine.versions import SUPPORTED

ROOT = Path(__file__).parents[2]
TOOLS = ["sh", "cat", "cksum", "dirname", "grep", "head", "mkdir", "readlink", "rm"]

CONSTRAINTS = ["constraints.txt", "constraints-0.1.txt"]

# Does what .ci/setup asks of an interpreter: tells its own path, makes an environment and, as that
# environment's python, writes down what pip was told.
GOOD = """#!/bin/sh
case "$1 $2" in
"-m venv")
    mkdir -p "$4/bin"
    cat "$0" >"$4/bin/python"
    chmod +x "$4/bin/python"
    echo "command = $0 -m venv --clear $PWD/$4" >"$4/pyvenv.cfg"
    echo "made by {name}" >>calls ;;
"-m pip") shift 2; echo "pip $*" >>calls ;;
"-c "|"-c import hotreload"*) ;;
*) echo "{name}" ;;
esac
"""


def broken(message: str, code: int = 1) -> str:
    return f"#!/bin/sh\necho '{message}' >&2\nexit {code}\n"


class Machine:
    """A copy of the set-up files, and a PATH that holds only what a test puts there."""

    def __init__(self, root: Path) -> None:
        self.project = root / "project"
        self.bin = root / "bin"
        self.home = root / "home"
        for folder in (self.project / ".ci", self.bin, self.home):
            folder.mkdir(parents=True)
        for name in (".ci/setup", "pyproject.toml", *CONSTRAINTS):
            shutil.copy(ROOT / name, self.project / name)
        for tool in [*TOOLS, "chmod"]:
            (self.bin / tool).symlink_to(shutil.which(tool) or tool)

    def add(self, path: Path | str, script: str | None = None) -> Path:
        file = self.bin / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(script or GOOD.format(name=file))
        file.chmod(0o755)
        return file

    def add_to_pyenv(self, version: str) -> Path:
        return self.add(self.home / ".pyenv/versions" / version / "bin/python")

    def run(self, *args: str, **env: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [self.project / ".ci/setup", *args],
            env={"PATH": str(self.bin), "HOME": str(self.home), **env},
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )

    def finds(self, **env: str) -> Path:
        answer = self.run("find", **env)
        assert answer.returncode == 0, answer.stderr
        return Path(answer.stdout.strip())

    def calls(self) -> list[str]:
        """What was asked of the interpreters since the last look."""
        file = self.project / "calls"
        lines = file.read_text().splitlines() if file.exists() else []
        file.unlink(missing_ok=True)
        return lines


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_python_3_12_is_preferred_to_3_13(machine: Machine) -> None:
    machine.add("python3.13")
    python = machine.add("python3.12")
    assert machine.finds() == python


def test_plain_python3_is_used_when_nothing_else_is_there(machine: Machine) -> None:
    python = machine.add("python3")
    assert machine.finds() == python


def test_a_shim_that_exists_but_fails_is_skipped(machine: Machine) -> None:
    machine.add("python3.12", broken("pyenv: python3.12: command not found", 127))
    python = machine.add("python3.13")
    assert machine.finds() == python


def test_the_folder_of_pyenv_is_searched_after_path(machine: Machine) -> None:
    machine.add("python3", broken("is Python 3.11"))
    machine.add_to_pyenv("3.11.7")
    machine.add_to_pyenv("3.13.0")
    python = machine.add_to_pyenv("3.12.1")
    assert machine.finds() == python


def test_pyenv_may_live_elsewhere(machine: Machine, tmp_path: Path) -> None:
    python = machine.add(tmp_path / "elsewhere/versions/3.13.2/bin/python")
    assert machine.finds(PYENV_ROOT=str(tmp_path / "elsewhere")) == python


def test_uv_is_asked_last(machine: Machine, tmp_path: Path) -> None:
    python = machine.add(tmp_path / "uv/python3.13")
    machine.add("uv", f'#!/bin/sh\n[ "$*" = "python find 3.13" ] && echo {python}\n')
    assert machine.finds() == python


def test_uv_fetches_an_interpreter_when_there_is_none(machine: Machine, tmp_path: Path) -> None:
    python = machine.add(tmp_path / "fetched/python3.12", broken("not there yet"))
    ready = machine.add(tmp_path / "ready/python3.12", GOOD.format(name=python))
    fetch = f'#!/bin/sh\ncase "$*" in *find*) echo {python} ;; *) cat {ready} >{python} ;; esac\n'
    machine.add("uv", fetch)
    assert machine.finds() == python


def test_every_interpreter_refused_is_named_with_its_reason(machine: Machine) -> None:
    machine.add("python3.12", broken("lacks ensurepip (Debian: apt-get install python3.12-venv)"))
    machine.add("python3.13", broken("no such version", 127))
    machine.add("python3", broken("is Python 3.11"))
    answer = machine.run()
    assert answer.returncode != 0
    assert "python3.12 lacks ensurepip (Debian: apt-get install python3.12-venv)" in answer.stderr
    assert "python3.13 does not run: no such version" in answer.stderr
    assert "python3 is Python 3.11" in answer.stderr
    assert "apt-get install python3 python3-venv" in answer.stderr
    assert not (machine.project / ".venv").exists()


def real(python: str, before: str) -> str:
    """A script that is the real interpreter, after running some lines of ours in it."""
    start = "import sys; code = sys.argv.pop(1); exec(sys.argv.pop(1)); exec(code)"
    return f'#!/bin/sh\nexec {python} -c \'{start}\' "$2" "{before}" "$3"\n'


@pytest.mark.parametrize(
    ("before", "reason"),
    [
        ("sys.version_info = (3, 11, 7)", "is Python 3.11"),
        ("sys.version_info = (3, 14, 0)", "is Python 3.14"),
        ("sys.modules['ensurepip'] = None", "lacks ensurepip (Debian: apt-get install python3.1"),
        ("sys.modules['ssl'] = None", "lacks ssl"),
    ],
)
def test_a_real_interpreter_that_will_not_do_says_why(
    machine: Machine, before: str, reason: str
) -> None:
    machine.add("python3", real(sys.executable, before))
    answer = machine.run("find")
    assert answer.returncode != 0
    assert f"python3 {reason}" in answer.stderr


def test_an_activated_environment_leads_to_the_interpreter_it_was_made_from(
    machine: Machine,
) -> None:
    """`python3` is then .venv's own: making .venv anew from it would take it away."""
    activated = f"{Path(sys.executable).parent}:{machine.bin}"
    behind = machine.finds(PATH=activated)
    assert behind == Path(sys.executable).resolve()
    assert machine.finds(HOTRELOAD_PYTHON=str(behind)) == behind


def test_the_operator_names_an_interpreter(machine: Machine, tmp_path: Path) -> None:
    machine.add("python3.12")
    python = machine.add(tmp_path / "mine/python")
    assert machine.finds(HOTRELOAD_PYTHON=str(python)) == python


def test_a_named_interpreter_that_will_not_do_is_not_replaced_by_another(machine: Machine) -> None:
    machine.add("python3.12")
    old = machine.add("old", broken("is Python 3.11"))
    answer = machine.run("find", HOTRELOAD_PYTHON=str(old))
    assert answer.returncode != 0
    assert f"{old} is Python 3.11" in answer.stderr
    assert machine.run("find", HOTRELOAD_PYTHON="nowhere").returncode != 0


def test_the_second_run_does_nothing(machine: Machine) -> None:
    python = machine.add("python3.12")
    first = machine.run()
    assert first.returncode == 0, first.stderr
    assert "installing" in first.stderr
    assert machine.calls() == [
        f"made by {python}",
        "pip install -qq --no-compile -c constraints.txt -e .[test]",
    ]
    python.unlink()  # not even the interpreter is looked for
    second = machine.run()
    assert (second.returncode, second.stdout, second.stderr) == (0, "", "")
    assert machine.calls() == []


def test_a_failed_install_is_taken_up_again(machine: Machine) -> None:
    fails = GOOD.replace('shift 2; echo "pip $*" >>calls', "exit 1")
    machine.add("python3.12", fails.format(name="python3.12"))
    assert machine.run().returncode != 0
    assert machine.run().returncode != 0


@pytest.mark.parametrize("name", ["pyproject.toml", "constraints.txt"])
def test_what_is_to_be_installed_and_has_changed_is_installed_into_the_same_environment(
    machine: Machine, name: str
) -> None:
    script = '#!/bin/sh\ncase "$1" in -c) echo same; exit ;; esac\n' + GOOD.split("\n", 1)[1]
    machine.add("same", script.format(name="same"))
    machine.add("python3.12", script.format(name="same"))
    machine.run()
    machine.calls()
    with (machine.project / name).open("a") as file:
        file.write("# changed\n")
    assert machine.run().returncode == 0
    assert machine.calls() == ["pip install -qq --no-compile -c constraints.txt -e .[test]"]


def test_a_changed_interpreter_makes_a_new_environment(machine: Machine) -> None:
    machine.add("python3.12")
    machine.run()
    machine.calls()
    other = machine.add("other")
    assert machine.run(HOTRELOAD_PYTHON=str(other)).returncode == 0
    assert machine.calls()[0] == f"made by {other}"


def test_the_newer_engine_has_an_environment_of_its_own(machine: Machine) -> None:
    python = machine.add("python3.12")
    assert machine.run().returncode == 0
    machine.calls()
    newer = machine.run(HOTRELOAD_ENGINE="0.1")
    assert newer.returncode == 0, newer.stderr
    assert "into .venv-0.1" in newer.stderr
    assert machine.calls() == [
        f"made by {python}",
        "pip install -qq --no-compile -c constraints-0.1.txt -e .[test]",
    ]
    machine.run(HOTRELOAD_ENGINE="0.1")
    machine.run()
    assert machine.calls() == []


@pytest.mark.parametrize(("engine", "name"), [("0.0", ".venv"), ("0.1", ".venv-0.1")])
def test_an_environment_behind_a_link_is_left_alone(
    machine: Machine, tmp_path: Path, engine: str, name: str
) -> None:
    """It belonged to another checkout, and was emptied: its stamp names another folder."""
    machine.add("python3.12")
    shared = tmp_path / "shared"
    shared.mkdir()
    (shared / "hotreload.stamp").write_text("made for another folder")
    (machine.project / name).symlink_to(shared)
    answer = machine.run(HOTRELOAD_ENGINE=engine)
    assert answer.returncode == 1
    assert f"{name} is a link to {shared}" in answer.stderr
    assert machine.calls() == []
    assert [file.name for file in shared.iterdir()] == ["hotreload.stamp"]


@pytest.mark.parametrize("name", [".venv", ".venv-0.1"])
def test_no_link_to_an_environment_is_committed(machine: Machine, name: str) -> None:
    shutil.copy(ROOT / ".gitignore", machine.project)
    (machine.project / name).symlink_to(machine.home)
    for command in (["init", "-q"], ["add", "-A"]):
        subprocess.run(["git", *command], cwd=machine.project, check=True)
    listed = ["git", "ls-files"]
    told = subprocess.run(listed, cwd=machine.project, capture_output=True, text=True, check=True)
    assert name not in told.stdout.split()
    assert ".ci/setup" in told.stdout.split()


def test_an_unknown_engine_is_refused_with_those_there_are(machine: Machine) -> None:
    machine.add("python3.12")
    answer = machine.run(HOTRELOAD_ENGINE="0.3")
    assert answer.returncode == 2
    assert "ENGINE=0.3 is not known" in answer.stderr
    assert "ENGINE=0.0" in answer.stderr
    assert "ENGINE=0.1" in answer.stderr
    assert machine.calls() == []


@pytest.mark.parametrize("engine", ["0.0", "0.1"])
def test_make_runs_everything_in_the_engines_environment(engine: str) -> None:
    command = ["make", "--dry-run", f"ENGINE={engine}", "test", "check", "bench", "soak", "demo"]
    said = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert set(re.findall(r"\.venv[\w.-]*", said)) == {{"0.0": ".venv", "0.1": ".venv-0.1"}[engine]}


@pytest.mark.parametrize(("cores", "workers"), [(1, 2), (2, 3), (64, 4)])
def test_tests_run_on_all_cores_but_on_no_more_than_have_memory(
    machine: Machine, cores: int, workers: int
) -> None:
    machine.add("nproc", f"#!/bin/sh\necho {cores}\n")
    path = {"PATH": f"{machine.bin}:{os.environ['PATH']}"}  # nor what our own make was told
    for asked, given in ((), workers), (["WORKERS=0"], 0):
        said = subprocess.run(
            ["make", "--dry-run", "test", *asked],
            cwd=ROOT,
            env=path,
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        assert f"-n {given} --dist loadfile" in said


@pytest.mark.parametrize("name", CONSTRAINTS)
def test_constraints_are_names_and_versions_only(name: str) -> None:
    for line in (ROOT / name).read_text().splitlines():
        assert re.fullmatch(r"[\w.-]+==(\d+!)?[\w.]+", line)


def test_the_versions_that_are_tested_are_those_that_are_called_supported() -> None:
    pinned = [
        dict(line.split("==") for line in (ROOT / name).read_text().splitlines())
        for name in CONSTRAINTS
    ]
    tested = {name: release.jax for name, release in SUPPORTED.items()}
    assert {pins["sglang-jax"]: pins["jax"] for pins in pinned} == tested


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="not a clone: nothing says what is ours")
def test_no_file_of_ours_names_a_registry() -> None:
    # Spelled apart, or this file would find itself.
    address = re.compile("://[^ ]*/" + "simple|(extra-)?index" + "-url|find" + "-links")
    git = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(git, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    files = [ROOT / name for name in listed.split("\0") if name]
    assert ROOT / "Makefile" in files
    found = [
        str(file)
        for file in files
        if file.is_file() and address.search(file.read_text("utf-8", "replace"))
    ]
    assert found == []


def test_ci_runs_what_the_docs_say() -> None:
    script = (ROOT / ".ci/run").read_text()
    assert re.findall(r"^(make \w+|.ci/judge)(?: &)?$", script, re.MULTILINE) == [
        "make setup",
        "make check",
        ".ci/judge",
    ]
    scripts = (".ci/run", ".ci/judge", ".ci/setup")
    assert all(os.access(ROOT / name, os.X_OK) for name in scripts)


def test_ci_runs_what_asks_an_engine_on_the_newer_one_too() -> None:
    script = (ROOT / ".ci/run").read_text()
    lists = re.findall(
        r"^(on_the_newe\w+)=\(\n +-m \"'real_engine and not at_night and not alike'\"\n(.*?)^\)",
        script,
        re.M | re.DOTALL,
    )
    names = [re.sub(r"^ *#.*$", "", listed, flags=re.MULTILINE).split() for _, listed in lists]
    runs = re.findall(r'^ +(\S* ?).ci/judge ENGINE=0.1 WORKERS=1 ARGS="\$\{(\w+)', script, re.M)
    assert runs == [("", lists[0][0]), ("PYTHONPATH=$place_of_newest ", lists[1][0])]
    left_out = {name.removeprefix("--ignore=") for name in names[0] if "=" in name}
    assert left_out <= {*names[1]}
    listed = {name for each in names for name in each} - {f"--ignore={name}" for name in left_out}
    for place, _, test in (name.partition("::") for name in listed):
        assert (ROOT / place).exists()
        assert not test or f"def {test}(" in (ROOT / place).read_text()
    kinds = ("engine", "contracts", "openai", "sglang_routes", "replicas", "hosts")
    assert [kind for kind in kinds if not any(kind in name for name in listed)] == []


def test_ci_runs_the_oldest_and_the_newest_jax_that_the_newer_engine_is_called_to_run_with() -> (
    None
):
    release, script = SUPPORTED["0.1.0rc0"], (ROOT / ".ci/run").read_text()
    assert release.runs_with is not None
    oldest, newest = release.runs_with
    assert oldest == release.jax
    assert f"\nnewest_jax=(jax=={newest} jaxlib=={newest} flax==" in script


def test_at_night_every_test_of_an_engine_runs_on_the_newer_one() -> None:
    makefile = (ROOT / "Makefile").read_text()
    (night,) = re.findall(r"^nightly:.*\n((?:\t.*\n)+)", makefile, re.MULTILINE)
    assert night.splitlines() == [
        "\t$(MAKE) test ARGS='-m at_night'",
        "\t$(MAKE) test ENGINE=0.1 ARGS='-m \"real_engine and not bench and not soak\"'",
        "\t$(MAKE) soak",
        "\t$(MAKE) soak ENGINE=0.1",
    ]


def test_what_imports_sglang_jax_is_known_to_ask_it() -> None:
    """Only what is marked runs on each of its versions."""
    asks = re.compile(r"^ *(?:import|from) sgl_jax\b", re.MULTILINE)
    tests = {path: path.read_text() for path in (ROOT / "tests").rglob("test_*.py")}
    asking = {path for path, text in tests.items() if asks.search(text)}
    assert asking
    assert [path for path in asking if "real_engine" not in tests[path]] == []


def test_make_soak_runs_all_that_is_marked_for_it() -> None:
    makefile = (ROOT / "Makefile").read_text()
    (command,) = re.findall(r"^soak:.*\n\t(.*)$", makefile, re.MULTILINE)
    run = [ROOT / word for word in command.split() if word.startswith("tests")]
    tests = (path for path in (ROOT / "tests").rglob("test_*.py") if path != Path(__file__))
    marked = [path for path in tests if "pytest.mark.soak" in path.read_text()]
    assert len({path.parent for path in marked}) > 1
    assert all(any(path.is_relative_to(folder) for folder in run) for path in marked)
