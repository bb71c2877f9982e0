"""The commands of sglang-jax's own pages, with one word changed.

Upstream's parser is imported and reads them; no engine starts here.
"""

import argparse
import dataclasses
import runpy
import shlex
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from hotreload.cli import main, serve
from hotreload.facts.upstream import OWNED_ARGS
from hotreload.features import FEATURES
from hotreload.life.saved.state_lock import StateFolder
from hotreload.settings import from_upstream
from hotreload.settings.load import Settings, load

pytestmark = pytest.mark.real_engine

REPO = "Qwen/Qwen-7B-Chat"
QUICK = f"--model-path {REPO} --trust-remote-code --tp-size=4 --device=tpu --dtype=bfloat16"
ONE_HOST = "--dist-init-addr=0.0.0.0:10011 --nnodes=1 --node-rank=0"
OPEN = "--host 0.0.0.0 --port 30000"
OPEN_AT = {"server.tcp": "0.0.0.0:30000"}
FOLLOWED = {"source.kind": "huggingface", "source.repo": REPO, "engine.model": None}
ON_FOUR_TPUS = {"engine.tp": 4, "engine.device": "tpu", "engine.dtype": "bfloat16"}
RECIPE = "--page-size 128 --max-running-requests 256 --chunked-prefill-size 2048"
RECIPE_ARGS = {
    "engine.args.page_size": 128,
    "engine.args.max_running_requests": 256,
    "engine.args.chunked_prefill_size": 2048,
}

PAGES: Mapping[str, tuple[str, dict[str, Any]]] = {
    "get_started/install": (
        f"{QUICK} --mem-fraction-static=0.8 --download-dir=/tmp/models {OPEN}",
        {
            **FOLLOWED,
            **ON_FOUR_TPUS,
            **OPEN_AT,
            "source.cache": Path("/tmp/models/hotreload"),
            "server.model_name": REPO,
            "engine.args": {"trust_remote_code": True, "mem_fraction_static": 0.8},
        },
    ),
    "get_started/gke-tpu-install": (
        "--model-path Qwen/Qwen2.5-7B-Instruct --tp-size 8 --dp-size 2 --device tpu "
        f"{OPEN} --mem-fraction-static 0.8 --watchdog-timeout 1200 DISABLE-PRECOMPILE",
        {
            **OPEN_AT,
            "engine.tp": 8,
            "engine.args.dp_size": 2,
            "engine.args.watchdog_timeout": 1200,
            "source.repo": "Qwen/Qwen2.5-7B-Instruct",
        },
    ),
    "get_started/sglang-jax-gpu-install": (
        f"--model-path {REPO} --trust-remote-code {ONE_HOST} --tp-size=1 "
        "--attention-backend=native --device=cuda --random-seed=3 --mem-fraction-static=0.8 "
        "--max-prefill-tokens=64 --max-running-requests=1 --download-dir=/tmp --dtype=bfloat16 "
        f"--skip-server-warmup {OPEN}",
        {
            **FOLLOWED,
            "engine.device": "gpu",
            "engine.nnodes": 1,
            "engine.dist_init_addr": None,
            "engine.args.attention_backend": "native",
        },
    ),
    "basic_usage": (
        f"--model-path Qwen/Qwen3-8B --trust-remote-code --tp-size 4 --device tpu {OPEN}",
        {"engine.tp": 4, **OPEN_AT, "server.model_name": "Qwen/Qwen3-8B"},
    ),
    "cookbook/Qwen3": (
        f"--model-path MODEL --trust-remote-code --reasoning-parser qwen3 --tp-size 8 "
        f"--dtype bfloat16 --context-length 32768 {RECIPE} --mem-fraction-static 0.90 "
        f"--skip-server-warmup {OPEN}",
        {**RECIPE_ARGS, "engine.args.context_length": 32768, "server.model_name": "MODEL"},
    ),
    "developer_guide/contribution_guide": (
        f"{QUICK} {ONE_HOST} --random-seed=3 --max-prefill-tokens=8192 --download-dir=/tmp "
        "--skip-server-warmup --port 30000 --max-running-requests 256 --page-size 128",
        {**FOLLOWED, **ON_FOUR_TPUS, "server.tcp": "127.0.0.1:30000", "engine.args.random_seed": 3},
    ),
    "features/chunked_prefill": (
        "--model-path Qwen/Qwen-7B --chunked-prefill-size 2048 --disable-radix-cache",
        {"engine.args": {"chunked_prefill_size": 2048, "disable_radix_cache": True}},
    ),
    "features/run_in_pathways": (
        "--model-path deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B --trust-remote-code --tp-size=4 "
        "--download-dir=/tmp --dtype=bfloat16 --skip-server-warmup --page-size=64 "
        "--precompile-token-paddings=2048 --precompile-bs-paddings=8 --enable-single-process",
        {"engine.args.precompile_bs_paddings": [8], "engine.args.page_size": 64},
    ),
    "deployment/gke-indexed-job": (
        f"--model-path MODEL --trust-remote-code --tp-size 16 {OPEN} --nnodes 4 --node-rank 2 "
        "--dist-init-addr job-0.job-headless-svc:5000 --insecure-join",
        {
            "engine.nnodes": 4,
            "engine.node_rank": 2,
            "engine.dist_init_addr": "job-0.job-headless-svc:5000",
            "engine.tp": 16,
        },
    ),
}
"""Flags of each page's command, and some of the settings that they come to. A model in a folder is
written MODEL. Hosts that meet without a secret say so, in one flag more."""


@dataclasses.dataclass
class Launch:
    """`hotreload launch`, up to the daemon that it would run."""

    folder: Path
    sets: list[Any] = dataclasses.field(default_factory=list)
    served: int = 0

    def serve(self, args: argparse.Namespace) -> int:
        self.sets, self.served = args.set, self.served + 1
        self.settings = load(args.config, args.set, {}, FEATURES).settings
        return 0

    def __call__(self, flags: str) -> Settings:
        assert main(["launch", *shlex.split(flags)]) == 0
        return self.settings


@pytest.fixture
def launch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Launch:
    launch = Launch(tmp_path)
    monkeypatch.setattr(serve, "run", launch.serve)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.delenv("HOTRELOAD_CONFIG", raising=False)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model").mkdir()
    return launch


def known_to_upstream() -> set[str]:
    from sgl_jax.srt.server_args import ServerArgs

    return {each.name for each in dataclasses.fields(ServerArgs)}


def value_at(settings: Settings, name: str) -> Any:
    found: Any = settings
    for part in name.split("."):
        found = found[part] if isinstance(found, Mapping) else getattr(found, part)
    return found


@pytest.mark.parametrize("page", PAGES)
def test_a_command_of_upstreams_pages_runs_with_one_word_changed(launch: Launch, page: str) -> None:
    flags, wanted = PAGES[page]
    quick = (
        "disable-precompile"
        if "disable_precompile" in known_to_upstream()
        else "disable-jax-precompile"
    )
    model = str(launch.folder / "model")
    settings = launch(flags.replace("MODEL", model).replace("DISABLE-PRECOMPILE", f"--{quick}"))
    for name, value in wanted.items():
        assert value_at(settings, name) == (model if value == "MODEL" else value), name
    assert not settings.engine.args.keys() & OWNED_ARGS.keys()
    assert settings.engine.args.keys() <= known_to_upstream()
    assert launch.served == 1


def flags_of_upstream() -> list[list[str]]:
    """Each flag of the installed release, with a value that its parser takes."""
    from sgl_jax.srt.server_args import ServerArgs

    parser = argparse.ArgumentParser()
    ServerArgs.add_cli_args(parser)
    commands = []
    for action in parser._actions:
        flag = next((each for each in action.option_strings if each.startswith("--")), "")
        if action.nargs == 0 or not flag:
            commands.append([flag])
        elif action.choices:
            commands.append([flag, str(list(action.choices)[-1])])
        else:
            samples = ("2", "127.0.0.1", "1:127.0.0.1", '{"image": 1}', "a=b")
            commands.append([flag, next(each for each in samples if takes(action, each))])
    return [command for command in commands if command[0] not in ("--help", "--model-path")]


def takes(action: argparse.Action, text: str) -> bool:
    try:
        action.type(text) if callable(action.type) else None
    except (ValueError, argparse.ArgumentTypeError):
        return False
    return True


def test_every_flag_of_upstream_is_taken_or_its_refusal_says_why(
    launch: Launch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It becomes a setting, an argument of the engine, is so already, or its absence is said."""
    known = known_to_upstream()
    other = {"--tensor-parallel-size": "tp_size", "--data-parallel-size": "dp_size"}
    plain = launch("--model-path model")
    for command in flags_of_upstream():
        flag = command[0]
        name = other.get(flag, flag.removeprefix("--").replace("-", "_"))
        code = main(["launch", "--model-path", "model", *command])
        said = capsys.readouterr().err
        if code:
            assert name in said.replace("-", "_")
            assert name in {*from_upstream.REFUSED_FLAGS, *NEED_OTHERS}
        elif from_upstream.why_no_effect(name):
            assert said.count(f"{flag} does nothing: ") == 1
        elif launch.settings == plain:
            assert name in {*from_upstream.ALREADY_SO, *SAME_AS_PLAIN} or name not in known


NEED_OTHERS = {"device_indexes", "nnodes", "node_rank", "load_format", "log_level", "tp_size"}
NEED_OTHERS |= {"device", "api_key"}
"""Flags whose value above is none that a machine of one host has."""
SAME_AS_PLAIN = {"revision", "dist_init_addr", "log_level_http", "log_requests", "download_dir"}
"""Flags that mean something only with others, and have tests of their own below."""


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ("--multimodal --vae-precision bf16", "--multimodal: hotreload serves models that"),
        ("--is-embedding", "--is-embedding: hotreload serves models that generate text"),
        ("--stream-output", "--stream-output: each piece of a streamed answer holds all of it"),
        ("--load-format gguf", "--load-format: gguf: checkpoints are safetensors"),
        ("--tp-size 0", "--tp-size: [engine] tp: should be greater than or equal to 1"),
        ("--device xpu", "--device: [engine] device"),
        ("--nnodes 2 --node-rank 5", "--node-rank: [engine] node_rank"),
        ("--api-key short", "--api-key: give 16 characters or more"),
        ("--api-key 'name a-key-of-16-letters'", "--api-key: give one word of printable ASCII"),
        ("--api-key '#-a-key-of-16-letters'", "--api-key: give one word of printable ASCII"),
        ("--nnodes 2 --dist-init-addr a:5000", "set [engine] join_secret_file"),
    ],
)
def test_what_cannot_be_served_is_refused_by_its_flag(
    launch: Launch, flags: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if "--multimodal" in flags and "multimodal" not in known_to_upstream():
        pytest.skip("this sglang-jax has no such flag")
    assert main(["launch", "--model-path", "model", *shlex.split(flags)]) == 78
    assert words in capsys.readouterr().err
    assert launch.served == 0


def test_a_flag_that_the_release_does_not_know_is_refused_as_upstream_refuses_it(
    launch: Launch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        main(["launch", "--model-path", "model", "--no-such-flag", "1"])
    assert end.value.code == 2
    assert "error: unrecognized arguments: --no-such-flag 1" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["launch", "--tp-size", "1"])
    assert "the following arguments are required: --model-path" in capsys.readouterr().err


def test_flags_of_ours_say_what_is_followed_and_what_is_asked(launch: Launch) -> None:
    settings = launch("--model-path ./model --watch steps --probe '2 + 2 = => 4' --probe Hello")
    assert settings.source.path == launch.folder / "steps"
    assert settings.engine.model == launch.folder / "model"
    asked = [(each.prompt, each.contains) for each in settings.probe]
    assert asked == [("2 + 2 =", "4"), ("Hello", None)]
    assert settings.server.model_name == "./model"
    hub = launch("--model-path ./model --hub org/name@v1 --served-model-name mine").source
    assert (hub.kind, hub.repo, hub.revision) == ("huggingface", "org/name", "v1")
    assert launch.settings.server.model_name == "mine"
    assert launch("--model-path ./model").source.path == launch.folder / "model"
    again = launch("--model-path org/name --revision v2").source
    assert (again.repo, again.revision) == ("org/name", "v2")


def test_a_name_that_no_client_can_send_is_said(
    launch: Launch, capsys: pytest.CaptureFixture[str]
) -> None:
    (launch.folder / "my model").mkdir()
    assert launch("--model-path './my model' --watch c").model_name == "my-model"
    said = capsys.readouterr().err
    assert said.count("clients call the model 'my-model', and not './my model'") == 1
    assert "/flush_cache" in said
    launch("--model-path model --watch c")
    assert "clients call" not in capsys.readouterr().err


def test_a_model_on_a_hub_is_downloaded_where_something_else_is_followed(
    launch: Launch, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    async def download(name: str, *, cache: Path, **_: object) -> Path:
        asked.append((name, cache))
        return launch.folder / "downloaded"

    monkeypatch.setattr("hotreload.cli.launch.download", download)
    settings = launch("--model-path org/name --revision v1 --watch c --download-dir /tmp/d")
    assert settings.engine.model == launch.folder / "downloaded"
    assert settings.server.model_name == "org/name"
    assert asked == [("org/name@v1", Path("/tmp/d/hotreload"))]


def test_it_listens_logs_and_keeps_its_state_as_a_server_of_upstream_would(launch: Launch) -> None:
    settings = launch("--model-path model --watch c")
    assert settings.server.tcp == "127.0.0.1:30000"
    home = launch.folder / "state" / "hotreload" / "30000"
    assert settings.server.socket == home / "hotreload.sock"
    assert settings.state.directory.parent == home
    assert (settings.log.level, settings.server.access_log) == ("info", True)
    assert settings.metrics.address == ""
    quiet = launch("--model-path model --watch c --log-level WARN --host :: --port 8000")
    assert (quiet.log.level, quiet.server.access_log) == ("warning", False)
    assert quiet.server.tcp == "[::]:8000"


def test_another_model_or_another_source_has_a_state_of_its_own(launch: Launch) -> None:
    """It would start from what was live last, and wait for a folder that is followed no more."""
    model = launch.folder / "model"
    other = model.rename(launch.folder / "other")
    model.mkdir()
    commands = ("model --watch c", "model --watch d", "other --watch c", "model --hub org/name")
    states = [launch(f"--model-path {flags}").state.directory for flags in commands]
    assert len(set(states)) == len(commands)
    assert launch(f"--model-path ./model --watch {launch.folder}/c").state.directory == states[0]
    assert launch(f"--model-path {other} --watch c").state.directory == states[2]


def test_a_file_and_the_environment_say_the_rest_and_flags_win(
    launch: Launch, monkeypatch: pytest.MonkeyPatch
) -> None:
    (launch.folder / "more.toml").write_text(
        '[server]\nsocket = "here"\ntcp = "127.0.0.1:1"\n[source]\npath = "steps"\n'
        "[engine]\ntp = 2\nnnodes = 2\n[checks]\nmax_drift = 5.0\n"
    )
    monkeypatch.setenv("HOTRELOAD__STATE__DIRECTORY", "kept")
    told = "--model-path ./model --hotreload-config more.toml --tp-size 4 --nnodes 1"
    settings = launch(told)
    assert settings.engine.nnodes == 1
    assert (settings.server.tcp, settings.engine.tp) == ("127.0.0.1:1", 4)
    assert settings.server.socket == launch.folder / "here"
    assert (settings.source.path, settings.checks.max_drift) == (launch.folder / "steps", 5)
    assert settings.engine.model == launch.folder / "model"
    assert launch(f"{told} --port 7").server.tcp == "127.0.0.1:7"


def test_the_api_key_lies_in_a_file_of_its_own(launch: Launch) -> None:
    keys = launch("--model-path model --watch c --api-key a-key-of-16-letters").server.api_keys_file
    assert keys is not None
    assert keys.read_text() == "a-key-of-16-letters\n"
    assert keys.stat().st_mode & 0o777 == 0o600
    launch("--model-path model --watch c --api-key another-of-16-letters")
    assert keys.read_text() == "another-of-16-letters\n"


def test_a_second_launch_leaves_the_key_of_a_daemon_that_runs(
    launch: Launch, capsys: pytest.CaptureFixture[str]
) -> None:
    keys = launch("--model-path model --watch c --api-key a-key-of-16-letters").server.api_keys_file
    assert keys is not None
    with StateFolder(keys.parent).hold(keys.parent / "hotreload.sock"):
        command = ["launch", "--model-path", "model", "--watch", "c", "--api-key", "b" * 16]
        assert main(command) == 78
    assert keys.read_text() == "a-key-of-16-letters\n"
    said = capsys.readouterr().err
    assert "is in use by " in said
    assert "give another --port" in said
    assert launch.served == 1


def test_a_key_that_cannot_be_kept_is_refused(
    launch: Launch, capsys: pytest.CaptureFixture[str]
) -> None:
    (launch.folder / "state").write_text("a file where a folder should be")
    assert main(["launch", "--model-path", "model", "--watch", "c", "--api-key", "k" * 16]) == 78
    assert "--api-key: " in capsys.readouterr().err


def test_the_settings_file_that_it_prints_comes_to_the_same(
    launch: Launch, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = "--model-path ./model --watch c --tp-size 2 --random-seed 3 --probe 'a => b'"
    flags += " --api-key a-key-of-16-letters --served-model-name mine"
    assert main(["launch", *shlex.split(flags), "--print-config"]) == 0
    printed = capsys.readouterr().out
    assert launch.served == 0
    assert not (launch.folder / "state").exists()
    file = launch.folder / "printed.toml"
    file.write_text(printed)
    assert load(file, [], {}, FEATURES).settings == launch(flags)
    assert "tp = 2" in printed
    assert "a-key-of" not in printed
    assert "drain_timeout" not in printed
    assert tomllib.loads(printed)["engine"]["args"] == {"random_seed": 3}


def test_the_module_is_called_as_upstreams_is(
    launch: Launch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["launch_server", "--model-path", "./model", "--watch", "c"])
    with pytest.raises(SystemExit) as end:
        runpy.run_module("hotreload.launch_server", run_name="__main__")
    assert (end.value.code, launch.served) == (0, 1)
    assert launch.settings.source.path == launch.folder / "c"
