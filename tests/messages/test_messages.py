"""What people are told of an input that was unclear or wrong when it was tried: one row each.

A message says what is wrong, where, and what to change. What sent people elsewhere is gone.
"""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest

from hotreload.attempts import By
from hotreload.checkpoint.check import check_checkpoint
from hotreload.checkpoint.fit import Policy
from hotreload.cli.serve import _start_facts
from hotreload.client.synchronous import Client
from hotreload.core.ledger import Ledger
from hotreload.engine.weights.load.spool import private_copy
from hotreload.errors import TimedOut, TryAgain
from hotreload.events import RevisionWanted, StateSaved
from hotreload.features import FEATURES
from hotreload.life.saved.state import StateFile
from hotreload.life.saved.state_lock import StateFolder
from hotreload.life.start.candidates import revision_of_model
from hotreload.life.start.model_files import find_served_model
from hotreload.settings.load import load
from hotreload.tiny import write_tiny
from hotreload.types import Revision
from tests.golden.blanks import blanked, without_defaults
from tests.golden.compare import Golden
from tests.messages.ways import (
    POINTER,
    Told,
    archived,
    asked,
    check,
    command,
    config,
    doctor,
    holding,
    passed_over,
    posted,
    refused,
    renamed,
    started,
    stating,
    status,
    with_folder,
    without,
    zipped,
)
from tests.nobody import as_nobody
from tests.server.world import World
from tests.sources.watching import write

GPT2 = stating(architectures=["GPT2LMHeadModel"], model_type="gpt2")
SERVED = ("GPT2LMHeadModel", "does not serve", "LlamaForCausalLM", "Qwen3ForCausalLM")
TORCH = ("PyTorch", "pytorch.org", "ImportError")
CONVERT = "save as safetensors (save_pretrained(folder, safe_serialization=True))"
HTML = "<!DOCTYPE html><html><body>404</body></html>"


class Row(NamedTuple):
    """One input: how it is given, and what its message must hold, and must not."""

    name: str
    told: Told
    has: Sequence[str]
    lacks: Sequence[str] = ()


def stray(root: Path) -> None:
    write(root, "stray")


def link_outside(root: Path) -> None:
    write(root.parent / "elsewhere" / "a")
    (root / "step_900").symlink_to(root.parent / "elsewhere" / "a")


async def closed_model(folder: Path) -> str:
    model = write_tiny(folder / "model")
    model.chmod(0o700)
    with as_nobody(model):
        return await refused(partial(find_served_model, model))


async def model_of_pickles(folder: Path) -> str:
    renamed("model.safetensors", "pytorch_model.bin")(model := write_tiny(folder / "model"))
    return await refused(partial(revision_of_model, model))


async def model_of_other_sizes(folder: Path) -> str:
    stating(hidden_size=999)(model := write_tiny(folder / "model"))
    return await refused(partial(find_served_model, model))


async def state_folder_that_is_a_file(folder: Path) -> str:
    import threading

    model = write_tiny(folder / "model")
    checkpoint = check_checkpoint(Revision("1"), model, served=None, policy=Policy())
    (folder / "state").write_text("")
    copying = private_copy(checkpoint, folder / "state" / "staging", threading.Event())
    with pytest.raises(TryAgain) as caught, copying:
        pass
    return f"{caught.value.code}: {caught.value}"


async def state_that_is_not_saved(folder: Path) -> str:
    (folder / "state").write_text("")
    return str(await StateFile(folder / "state").save(Ledger()))


async def second_daemon(folder: Path) -> str:
    async def start() -> None:
        with StateFolder(folder).hold(Path("/run/second.sock")):
            pass

    with StateFolder(folder).hold(Path("/run/first.sock")):
        return await refused(start)


async def start_of_a_file_named_from_here(folder: Path) -> str:
    (folder / "a.toml").write_text("")
    file = Path("a.toml")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        return json.dumps(_start_facts(load(file, [], {}, FEATURES), file))


async def step_900_bf16(folder: Path) -> str:
    from hotreload.sources.place import step_of

    return str(step_of(["step_900_bf16"]))


async def doctor_on_a_taken_port(folder: Path) -> str:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"metrics.address=127.0.0.1:{listener.getsockname()[1]}"
        return await doctor(lambda model: None, address)(folder)


async def doctor_with_few_files(folder: Path) -> str:
    words = (sys.executable, "-m", "hotreload.cli", "doctor", "--json")
    limited = ("sh", "-c", 'ulimit -n 64; exec "$@"', "sh", *words)
    done = await asyncio.to_thread(subprocess.run, limited, capture_output=True, text=True)
    return str(json.loads(done.stdout)["open files"])


LISTENING = (
    "import socket, sys; listener = socket.socket(socket.AF_UNIX); listener.bind(sys.argv[1]); "
    "listener.listen(); print(flush=True); sys.stdin.read()"
)


def silent(folder: Path, *signals: signal.Signals) -> str:
    """What is said of a process that listens and never answers, to which these are sent."""
    command = (sys.executable, "-c", LISTENING, folder / "s")
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe) as process:
        assert process.stdout is not None
        process.stdout.readline()
        for number in signals:
            process.send_signal(number)
            os.waitpid(process.pid, os.WUNTRACED)
        try:
            Client(folder / "s", named_by="the test").get("/status", timeout=0.1)
        except TimedOut as late:
            return str(late)
        finally:
            process.kill()
    raise AssertionError("it answered")


async def stopped_daemon(folder: Path) -> str:
    return silent(folder, signal.SIGSTOP)


async def hanging_daemon(folder: Path) -> str:
    return silent(folder)


def overruled(world: World) -> None:
    live = Revision("aaaa1111", "step-1")
    world.events.publish(RevisionWanted(live))
    world.view.ledger.wish(Revision("cccc3333", "step-3"))
    world.view.ledger.overrule(live, By("reload", 0, 77, 1.7e9, "the newest talks too much"))


def pinned(world: World) -> None:
    world.view.ledger.set_pinned(True, By("pin", 0, 77, 1.7e9, "evaluation"))


def unsaved(world: World) -> None:
    world.events.publish(StateSaved("/s/state.json cannot be written: read-only"))


SETTINGS = [
    Row(
        "a file with a BOM",
        config(b"\xef\xbb\xbf[log]\nlevel = 'error'\n"),
        ['level = "error"'],
        ["TOML"],
    ),
    Row("a file in UTF-16", config("[log]".encode("utf-16")), ["is UTF-16", "save it as UTF-8"]),
    Row(
        "mode = 0660",
        config("[server]\nmode = 0660\n"),
        ["line 2", "`mode = 0660`", 'in quotes, such as "0660"', "exit 78"],
        ["Expected newline"],
    ),
    Row("mode = 660", config("[server]\nmode = 660\n"), ["[server] mode", 'such as "0660"']),
    Row(
        "a duration without quotes",
        config("[reload]\ndrain_timeout = 30s\n"),
        ["line 2", 'in quotes, such as "30s"'],
        ["Expected newline"],
    ),
    Row(
        "a path without quotes",
        config("[engine]\nmodel = /srv/m\n"),
        ["line 2", "write text in quotes"],
        ["Invalid value"],
    ),
    Row(
        "a secret is not repeated",
        config("[engine.args]\napi_key = hf_abc\n"),
        ["line 2"],
        ["hf_abc"],
    ),
    Row(
        "$HOME in a path",
        config('[engine]\nmodel = "$HOME/m"\n'),
        ["[engine] model", "$HOME", "write the whole path, or ~"],
    ),
    Row(
        "${HOME} in --set",
        config("", "source.path=${HOME}/c"),
        ["--set source.path", "${HOME}", "or ~"],
    ),
    Row(
        "top-level model =",
        config('model = "m"\n'),
        ["hotreload.toml: model: in no section; put it below [engine]"],
        ["[model]", "known are"],
    ),
    Row("a top-level name that nobody has", config("colour = 1\n"), ["colour: in no section"]),
    Row(
        "--set model=", config("", "model=m"), ["--set model: unknown; did you mean engine.model?"]
    ),
    Row(
        "--set engine.model=.",
        config("", "engine.model=.", "source.path=."),
        ["exit 0"],
        ["must be a path"],
    ),
    Row("an empty path", config("", "engine.model="), ["--set engine.model", "leave the line out"]),
    Row(
        "HOTRELOAD_RELOAD__MODE",
        config("", HOTRELOAD_RELOAD__MODE="drain"),
        ["did you mean HOTRELOAD__RELOAD__MODE?", "exit 78"],
    ),
    Row(
        "HOTRELOAD_RELOAD__MOOD",
        config("", HOTRELOAD_RELOAD__MOOD="drain"),
        ["HOTRELOAD_RELOAD__MOOD: unknown", "begins with HOTRELOAD__, with two underscores"],
    ),
    Row(
        "HOTRELOAD_LOG_LEVEL",
        config("", HOTRELOAD_LOG_LEVEL="debug"),
        ["did you mean HOTRELOAD__LOG__LEVEL?"],
    ),
    Row(
        "HOTRELOAD__LOG_LEVEL",
        config("", HOTRELOAD__LOG_LEVEL="x"),
        ["did you mean HOTRELOAD__LOG__LEVEL?"],
    ),
    Row(
        "marker = 'a/b'",
        config("[source]\nmarker = 'a/b'\n"),
        ["'a/b' is no file's name: write it without /, such as '_SUCCESS'"],
        ["pattern", "^"],
    ),
    Row(
        "model = 5",
        config("[engine]\nmodel = 5\n"),
        ["[engine] model: 5 is no path: write it in quotes"],
        ["class", "pathlib", "Path'"],
    ),
    Row(
        "a key that is there twice",
        config("[log]\nlevel = 'info'\n[reload]\nsets = 2\n\nsets = 3 # more\n"),
        ["line 6: `sets = 3 # more`: sets stands in line 4 already; give it once", "exit 78"],
        ["Cannot"],
    ),
    Row(
        "a key of another section is not the one",
        config("[log]\nlevel = 'info'\nlevel = 'debug'\n[engine.args]\nlevel = 1\n"),
        ["line 3: `level = 'debug'`: level stands in line 2 already"],
    ),
    Row(
        "a section that is there twice",
        config("[log]\nlevel = 'info'\n[server]\n[ log ]\n"),
        ["line 4: `[ log ]`: [log] stands in line 1 already; give it once"],
    ),
    Row(
        "a long value that is there twice",
        config("[server]\nhosts = ['a']\nhosts = [\n'b'\n]\n"),
        ["this name stands there before; give it once"],
    ),
    Row(
        "a port for an address",
        config("[server]\ntcp = '8000'\n"),
        ["[server] tcp: '8000' is no address: write host:port, such as '127.0.0.1:8000'"],
        ["9479"],
    ),
    Row(
        "a typo in [engine.args]",
        config("[engine.args]\npage_siez = 1\n"),
        ["[engine.args] page_siez", "did you mean page_size?", "exit 78"],
    ),
    Row(
        "an argument of the engine that is ours",
        config("[engine.args]\nmodel_path = 'm'\n"),
        ["use [engine] model"],
    ),
]

COMMANDS = [
    Row(
        "serve FILE",
        command("serve", "a.toml"),
        ["write hotreload serve --config a.toml", "exit 2"],
    ),
    Row("FILE", command("a.toml"), ["write hotreload serve --config a.toml", "exit 2"]),
    Row(
        "--socket before the verb",
        command("--socket", "/x", "status"),
        ["the verb comes first: hotreload status --socket /x", "exit 2"],
        ["invalid choice"],
    ),
    Row(
        "an option alone",
        command("--socket"),
        ["the verb comes first", "--help"],
        ["invalid choice"],
    ),
    Row(
        "check-config --config FILE FILE",
        command("check-config", "--config", "a.toml", "b.toml"),
        ["argument FILE: not allowed with argument --config", "exit 2"],
    ),
    Row(
        "a verb with a typo",
        command("statsu"),
        ["'statsu' is no verb; did you mean status?"],
        ["choose from"],
    ),
    Row(
        "an option with a typo",
        command("status", "--sokcet=/x"),
        ["did you mean --socket?"],
        ["unrecognized"],
    ),
    Row(
        "a timeout with a unit",
        command("reload", "--timeout", "5m", "--socket", "DIR/s"),
        ["there is no such socket", "exit 3"],
    ),
    Row(
        "a timeout that is none",
        command("reload", "--timeout", "5 minutes"),
        ["'5 minutes' is no duration: write seconds, or '250ms', '30s', '5m', '1h'", "exit 2"],
    ),
    Row(
        "rollback --generation 2",
        command("rollback", "--generation", "2"),
        ["--generation: write it alone: hotreload rollback GENERATION", "exit 2"],
        ["did you mean"],
    ),
    Row(
        "explain of nothing alike",
        command("explain", "foo"),
        ["no runbook knows 'foo'", "`hotreload explain` lists all codes"],
        ["did you mean"],
    ),
    Row(
        "explain of an exit code",
        command("explain", "78"),
        ["commands  all", "meaning   a setting is wrong"],
    ),
    Row(
        "rollback to a folder",
        command("rollback", "step_14"),
        [
            "'step_14' is no number of a generation, as `hotreload history` lists them",
            "hotreload reload step_14 loads a checkpoint by its name",
            "exit 2",
        ],
        ["invalid int"],
    ),
    Row(
        "reload of nothing",
        command("reload", "", "--socket", "DIR/s"),
        ["the name is empty; leave it out to load the newest checkpoint", "exit 2"],
    ),
    Row(
        "a socket that is a file",
        command("status", "--socket", "DIR/a.toml"),
        ["cannot reach the daemon on DIR/a.toml (from --socket): it is no socket", "exit 3"],
        ["any more", "start `hotreload serve`"],
    ),
    Row(
        "a daemon that is stopped",
        stopped_daemon,
        ["no answer on DIR/s within 0.1 s; its process ", " is stopped: kill -CONT "],
        ["systemd"],
    ),
    Row(
        "a daemon that hangs",
        hanging_daemon,
        ["no answer on DIR/s within 0.1 s; its process ", "hangs or is very busy", "its log"],
        ["systemd", "CONT"],
    ),
    Row(
        "--scale nan",
        command("perturb", "--scale", "nan"),
        ["--scale", "above 0", "not nan", "exit 2"],
    ),
    Row(
        "--scale -1",
        command("perturb", "--scale", "-1"),
        ["--scale", "above 0", "not -1", "exit 2"],
    ),
    Row(
        "--config beside $HOTRELOAD_SOCKET",
        command("pin", "--config", "DIR/a.toml", HOTRELOAD_SOCKET="/of/another"),
        ["DIR/s", "[server] socket in DIR/a.toml"],
        ["/of/another"],
    ),
    Row(
        "a config that is relative, in the log",
        start_of_a_file_named_from_here,
        ['"config": "DIR/a.toml"'],
    ),
]

CHECKPOINTS = [
    Row(
        "weights that are a Git LFS pointer",
        check(holding("model.safetensors", POINTER)),
        ["model.safetensors", "Git LFS pointer", "git lfs pull", "exit 1"],
        ["header claims"],
    ),
    Row(
        "a tokenizer that is a Git LFS pointer",
        check(holding("tokenizer.json", POINTER)),
        ["tokenizer.json", "Git LFS pointer", "git lfs pull"],
    ),
    Row(
        "weights that are a zip",
        check(zipped),
        ["zip archive", "unpack it", CONVERT],
        ["header claims"],
    ),
    Row(
        "weights that are a web page",
        check(holding("model.safetensors", HTML)),
        ["is a web page", "get the file again"],
        ["header claims"],
    ),
    Row(
        "a folder of pytorch_model.bin",
        check(renamed("model.safetensors", "pytorch_model.bin")),
        ["pytorch_model.bin", CONVERT],
        ["yet"],
    ),
    Row(
        "a file pytorch_model.bin",
        check(renamed("model.safetensors", "pytorch_model.bin"), "step_2/pytorch_model.bin"),
        ["pytorch_model.bin: is a file", CONVERT, "exit 2"],
    ),
    Row(
        "a whole checkpoint as a zip",
        check(archived, "step_2.zip"),
        ["step_2.zip: is a file", "unpack it"],
    ),
    Row(
        "a file model.safetensors",
        check(lambda folder: None, "step_2/model.safetensors"),
        ["is a file; name the folder of the checkpoint, such as DIR/step_2"],
    ),
    Row(
        "a folder that is not there", check(lambda folder: None, "step_3"), ["step_3: is not there"]
    ),
    Row(
        "a config.json of another width",
        check(stating(hidden_size=999)),
        ["config.json: hidden_size is 999", "[1536, 256]", "take the config.json", "exit 1"],
        ["fit: "],
    ),
    Row(
        "a config.json of fewer layers",
        check(stating(num_hidden_layers=1)),
        ["the weights have 2 layers"],
    ),
    Row(
        "a config.json of more heads",
        check(stating(num_key_value_heads=4)),
        ["num_key_value_heads is 4"],
    ),
    Row("a config.json of fewer words", check(stating(vocab_size=7)), ["vocab_size is 7"]),
]

MODELS = [
    Row(
        "an unknown architecture", started(GPT2), ["[engine] model: ", "DIR/model", *SERVED], TORCH
    ),
    Row("an unknown architecture, to doctor", doctor(GPT2), ["model", *SERVED], TORCH),
    Row(
        "no tokenizer",
        started(without("tokenizer*")),
        ["no tokenizer in DIR/model", "tokenizer.json, tokenizer.model", "copy"],
        ["llama-tokenizer", "LLaMA V1"],
    ),
    Row("no tokenizer, to doctor", doctor(without("tokenizer*")), ["no tokenizer in DIR/model"]),
    Row(
        "the path of a deleted copy",
        started(lambda model: None),
        ["[engine] model: the engine does not start on DIR/model: OSError: DIR/model/params.json"],
        ["stage-", "boot/"],
    ),
    Row(
        "a model of pickles",
        model_of_pickles,
        ["[engine] model: DIR/model", "pytorch_model.bin", CONVERT],
    ),
    Row(
        "a model whose config.json is another's",
        model_of_other_sizes,
        ["[engine] model: DIR/model cannot be served", "hidden_size is 999"],
    ),
    Row(
        "a model that may not be read",
        closed_model,
        ["[engine] model: DIR/model may not be read", "chmod a+rX DIR/model"],
    ),
    Row(
        "an empty model folder, to doctor",
        doctor(without("*")),
        ["no config.json", "config.json, tokenizer, *.safetensors", "exit 1"],
    ),
    Row(
        "whose rights doctor judges",
        doctor(lambda model: None),
        ["what may be read and written is judged for "],
        ["no port can", " 0.0 GB"],
    ),
    Row(
        "no model, to doctor",
        command("doctor", "--set", "source.path=DIR", "--set", "state.directory=DIR/state"),
        ["no model is named", "set [engine] model to the folder of one", "exit 1"],
        ["commit of the hub"],
    ),
    Row(
        "a taken port, to doctor",
        doctor_on_a_taken_port,
        ["is taken", "[metrics] address", "exit 1"],
    ),
    Row("few open files, to doctor", doctor_with_few_files, ["64 files", "fail", "LimitNOFILE"]),
]

REQUESTS = [
    Row("an empty prompt", asked(text=""), ["text: is empty; give at least one token"]),
    Row(
        "stop is an empty string",
        asked(text="a", sampling_params={"stop": ""}),
        ["sampling_params.stop: an empty string would end every answer at once; leave it out"],
        ["must be a string"],
    ),
    Row(
        "max_tokens",
        asked(text="a", sampling_params={"max_tokens": 5}),
        ["sampling_params.max_tokens", "did you mean max_new_tokens?"],
    ),
    Row(
        "temprature",
        asked(text="a", sampling_params={"temprature": 0}),
        ["sampling_params.temprature", "did you mean temperature?"],
    ),
    Row(
        "max_tokens beside the prompt",
        posted("/generate", text="a", max_tokens=5),
        ["'max_tokens'; did you mean sampling_params.max_new_tokens?"],
    ),
    Row(
        "temperature beside the prompt",
        posted("/generate", text="a", temperature=0),
        ["did you mean sampling_params.temperature?"],
    ),
    Row("prompt for text", posted("/generate", prompt="a"), ["'prompt'; did you mean text?"]),
    Row(
        "temprature to /v1",
        posted("/v1/completions", prompt="a", temprature=0),
        ["'temprature'; did you mean temperature?"],
    ),
    Row(
        "max_new_tokens to /v1",
        posted("/v1/completions", prompt="a", max_new_tokens=5),
        ["did you mean max_tokens?"],
    ),
]

WATCHED = [
    Row("pickles", passed_over(with_folder("step_9", "pytorch_model.bin")), ["step_9", CONVERT]),
    Row(
        "Orbax", passed_over(with_folder("step_9", "_METADATA")), ["step_9", "Orbax", "safetensors"]
    ),
    Row(
        "DeepSpeed",
        passed_over(with_folder("step_9", "mp_rank_00_model_states.pt")),
        ["step_9", "DeepSpeed", "zero_to_fp32.py"],
    ),
    Row(
        "a zip in a folder", passed_over(with_folder("step_9", "all.zip")), ["all.zip", "unpack it"]
    ),
    Row(
        "a link that leads outside",
        passed_over(link_outside),
        ["step_900", "leads out", "move or copy"],
    ),
    Row(
        "no step", passed_over(lambda root: write(root / "final")), ["final has no step", "step_N"]
    ),
    Row("a stray file", passed_over(stray, order="time"), ["model.safetensors", "move that file"]),
    Row("step_900_bf16", step_900_bf16, ["900"], ["16"]),
]

DAEMONS = [
    Row(
        "two with one state folder", second_daemon, ["in use by", "/run/first.sock", "set another"]
    ),
    Row(
        "a state folder that is a file",
        state_folder_that_is_a_file,
        ["no_copy: DIR/state/staging", "[state] directory"],
        ["disk_full"],
    ),
    Row(
        "a state that is not saved",
        state_that_is_not_saved,
        ["DIR/state/state.json cannot be written"],
    ),
    Row(
        "a state that is not saved, in the status",
        status(unsaved),
        ["a restart forgets what changes", "/s/state.json"],
    ),
    Row(
        "an older one by hand",
        status(overruled),
        ["by hand: reload by root (pid 77)", "the newest talks too much", "overrules the source's"],
        ["wanted           what is live\n"],
    ),
    Row("a pin", status(pinned), ["pin by root (pid 77)", "evaluation", "hotreload unpin"]),
]

ROWS = [*SETTINGS, *COMMANDS, *CHECKPOINTS, *MODELS, *REQUESTS, *WATCHED, *DAEMONS]
WHOLE = "messages.txt"
"""The golden file with the whole words of the rows that are told alike on every machine."""
OF_THE_MACHINE = {row.name for row in ROWS if "doctor" in row.name} | {"--set engine.model=."}
TOLD_ALIKE = [row for row in ROWS if row.name not in OF_THE_MACHINE]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
async def test_a_message_says_what_is_wrong_where_and_what_to_change(
    tmp_path: Path, row: Row, golden: Golden
) -> None:
    (tmp_path / "a.toml").write_text('[server]\nsocket = "s"\n')
    said = (await row.told(tmp_path)).replace(str(tmp_path), "DIR")
    assert [part for part in row.has if part not in said] == [], said
    assert [part for part in row.lacks if part in said] == [], said
    if row in TOLD_ALIKE:
        golden.section(WHOLE, row.name, without_defaults(blanked(said, tmp_path)))


def test_every_row_has_a_name_of_its_own() -> None:
    names = [row.name for row in ROWS]
    assert len(names) == len(set(names)) >= 47


def test_all_words_are_frozen_of_every_row_and_of_no_other(golden: Golden) -> None:
    assert set(golden.sections(WHOLE)) == {row.name for row in TOLD_ALIKE}
