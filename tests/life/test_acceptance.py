"""What `serve` refuses of its settings, `check-config` and a SIGHUP refuse in the same words."""

import asyncio
import json
import logging
import threading
import tomllib
from contextlib import suppress
from pathlib import Path

import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

from hotreload.cli import main
from hotreload.errors import ConfigError
from hotreload.features import FEATURES
from hotreload.features.compare import settings as compare
from hotreload.features.compare.settings import CompareSettings
from hotreload.life import acceptance
from hotreload.life.acceptance import REFUSED, check, check_at_start, read_settings
from hotreload.life.start.start_engine import engine_options
from hotreload.settings.load import load
from hotreload.settings.sections import Settings
from tests.life.test_rereading import living

CONFIG = {
    "max_position_embeddings": 4096,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
}
HUB = "[source]\nkind = 'huggingface'\nrepo = 'a/b'\n"
CONTEXT_OF_64 = "[engine]\nmodel = 'm'\nargs = {context_length = 64}\n[[probe]]\n"
SEVERAL = "[server]\ngroup = 'nosuch'\nadmin_group = 'nosuch'\n[engine.args]\npage_siez = 1\n"

BAD = {
    "no factor": ("[checks]\nmax_drift = 0.5", "[checks] max_drift: 0.5 would refuse every"),
    "contains against equals": (
        "[[probe]]\nprompt = 'a'\nequals = 'yes'\ncontains = 'no'",
        "[[probe]] number 1: no answer can equal 'yes' and contain 'no'",
    ),
    "regex against equals": (
        "[[probe]]\nprompt = 'a'\nequals = 'yes'\nregex = 'n+'",
        "[[probe]] number 1: no answer can equal 'yes' and match 'n+'",
    ),
    "a join secret that is not there": (
        "[engine]\nnnodes = 2\ntp = 2\nnode_rank = 0\ndist_init_addr = '127.0.0.1:4000'\n"
        "join_secret_file = 'nosuch'",
        "[engine] join_secret_file: DIR/nosuch: cannot be read",
    ),
    "ranks that anybody may join": (
        "[engine]\nnnodes = 2\ntp = 2\nnode_rank = 0\ndist_init_addr = '192.0.2.1:4000'",
        "[engine] dist_init_addr: whoever reaches 192.0.2.1:4000 could run",
    ),
    "a pattern of nothing": (
        "[source]\npattern = 'step_[9-0]*'",
        "[source] pattern: 'step_[9-0]*' fits no folder",
    ),
    "a range that does not end": (
        "[source]\npattern = '['",
        "[source] pattern: '[': no ']' ends what '[' begins; write [0-9] for a digit, or '[[]' if",
    ),
    "a range that does not end after one that does": (
        "[source]\npattern = 'step_[0-9]*_[!]x'",
        "no ']' ends what '[' begins; write [0-9] for a digit, or 'step_[0-9]*_[[]!]x' if",
    ),
    "a range that does not end in what is downloaded": (
        f"{HUB}allow = ['*.safetensors[']",
        "[source] allow: '*.safetensors[': no ']' ends what '[' begins",
    ),
    "a range that does not end in names of tensors": (
        "[checks]\nextra_tensors = ['*.inv_freq', '*[0']",
        "[checks] extra_tensors: '*[0': no ']' ends what '[' begins",
    ),
    "a pattern of another place": ("[source]\npattern = '/srv/*'", "'/srv/*' fits no folder"),
    "a pattern of the folder above": ("[source]\npattern = '../a'", "'../a' fits no folder"),
    "no path": ("[engine]\nmodel = 5", "[engine] model: 5 is no path: write it in quotes"),
    "a state folder within the source": (
        "[source]\npath = 'c'\n[state]\ndirectory = 'c/state'",
        "[state] directory: DIR/c/state lies in [source] path",
    ),
    "a state folder that is the source": (
        "[source]\npath = 'c'\n[state]\ndirectory = 'd/../c'",
        "[state] directory: DIR/c lies in [source] path",
    ),
    "a source that is cleared": (
        "[source]\npath = 's/staging'\n[state]\ndirectory = 's'",
        "[source] path: DIR/s/staging lies in a folder of its own in [state] directory",
    ),
    "a model that is cleared": (
        "[engine]\nmodel = 's/model'\n[state]\ndirectory = 's'",
        "[engine] model: DIR/s/model lies in a folder of its own in [state] directory",
    ),
    "a long socket": (
        f"[server]\nsocket = '/{'s' * 107}'",
        "[server] socket: /sss",
    ),
    "no such group": ("[server]\ngroup = 'nosuch'", "[server] group: there is no group 'nosuch'"),
    "no such admins": ("[server]\nadmin_group = 'nosuch'", "[server] admin_group: there is no"),
    "no keys file": (
        "[server]\napi_keys_file = 'keys'",
        "[server] api_keys_file: DIR/keys: cannot be read: No such file",
    ),
    "no admin keys file": (
        "[server]\nadmin_keys_file = 'keys'",
        "[server] admin_keys_file: DIR/keys: cannot be read: No such file",
    ),
    "no certificate": (
        "[server]\ntls_cert = 'c'\ntls_key = 'k'",
        "[server] tls_cert, tls_key: DIR/c cannot be read: No such file",
    ),
    "a keys file that is a folder": (
        "[server]\napi_keys_file = 'm'",
        "[server] api_keys_file: DIR/m: cannot be read: Is a directory",
    ),
    "no token": (
        f"{HUB}token_file = 't'",
        "[source] token_file: DIR/t: cannot be read: No such file",
    ),
    "no secret": (f"{HUB}webhook = 't'", "[source] webhook: DIR/t: cannot be read"),
    "an unknown argument": ("[engine.args]\npage_siez = 1", "did you mean page_size?"),
    "an argument of ours": ("[engine.args]\nmodel_path = 'm'", "use [engine] model"),
    "heads that cannot be shared": ("[engine]\nmodel = 'm'\ntp = 3", "[engine] tp = 3: the model"),
    "a probe longer than the model's context": (
        "[engine]\nmodel = 'm'\n[[probe]]\nprompt = 'a'\nmax_new_tokens = 4096",
        "[[probe]] number 1 max_new_tokens: 4096 tokens and a prompt do not fit in the context "
        "of 4096",
    ),
    "a probe longer than the engine's context": (
        "[engine.args]\ncontext_length = 33\n[[probe]]\nprompt = 'a'",
        "32 tokens and a prompt do not fit in the context of 33",
    ),
    "a prompt longer than the context": (
        f"{CONTEXT_OF_64}prompt = '{' served' * 500}'",
        "[[probe]] number 1 prompt: 500 tokens and 32 new ones do not fit in the context of 64",
    ),
    "no corpus": (
        "[compare]\ncorpus = 'nosuch.jsonl'",
        "[compare] corpus: DIR/nosuch.jsonl: cannot be read: No such file",
    ),
    "a corpus that is no text": (
        "[compare]\ncorpus = 'm'",
        "[compare] corpus: DIR/m: cannot be read: Is a directory",
    ),
    "a corpus of something else": (
        "[compare]\ncorpus = 'm/config.json'",
        "[compare] corpus: DIR/m/config.json: line 1: unknown field 'max_position_embeddings'",
    ),
    "right answers without a corpus": (
        "[compare.limits]\nmin_accuracy = 0.8",
        "[compare]: limits.min_accuracy needs a corpus that says what answers it expects",
    ),
    "limits without a report": (
        "[compare]\nreport = false\nlimits = {max_kl = 1}",
        "[compare]: limits are kept by the report: set report = true, or leave them out",
    ),
    "limits on what nobody hears": (
        "[compare.limits]\nmin_heard_same_top = 0.5",
        "[compare]: limits on what clients were answered need mirror or replay",
    ),
    "a hub without a repo": ("[source]\nkind = 'huggingface'", "[source] repo: not set"),
    "several": (SEVERAL, "3 settings are wrong:"),
}


@pytest.fixture(autouse=True)
def log_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hotreload.observe.log.configure", lambda level, format: None)


def sets_beside(text: str, folder: Path) -> list[str]:
    """What a daemon needs and the text does not set."""
    given = tomllib.loads(text)
    needed = {"engine.model": "m", "source.path": "c", "state.directory": "state"}
    if "huggingface" in text:
        del needed["source.path"]
    lacking = {
        name: place
        for name, place in needed.items()
        if name.partition(".")[2] not in given.get(name.partition(".")[0], {})
    }
    return ["metrics.address=", *(f"{name}={folder / place}" for name, place in lacking.items())]


async def reread(folder: Path, text: str) -> str | None:
    async with living(folder) as life:
        life.usual = sets_beside(text, folder)
        return (await life.reread(text)).error


def model_in(folder: Path) -> None:
    (folder / "m").mkdir()
    (folder / "m/config.json").write_text(json.dumps(CONFIG))
    words = Tokenizer(WordLevel({"served": 0}, unk_token="served"))
    words.pre_tokenizer = Whitespace()
    words.save(str(folder / "m/tokenizer.json"))


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(words) == 78
    return capsys.readouterr().err.strip().removeprefix("hotreload: ")


@pytest.mark.parametrize("name", BAD)
def test_serve_check_config_and_a_reload_refuse_it_in_the_same_words(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    text, why = BAD[name]
    model_in(tmp_path)
    reloaded = asyncio.run(reread(tmp_path, text))
    capsys.readouterr()
    file = tmp_path / "hotreload.toml"
    sets = [f"--set={each}" for each in sets_beside(text, tmp_path)]
    served = refused(capsys, "serve", "--config", str(file), *sets)
    assert why in served.replace(str(tmp_path), "DIR")
    assert refused(capsys, "check-config", "--quiet", str(file), *sets) == served
    assert reloaded == served


def test_each_check_of_the_list_is_tried_here(tmp_path: Path) -> None:
    model_in(tmp_path)
    file, tried = tmp_path / "hotreload.toml", set()
    for text, _ in BAD.values():
        file.write_text(text)
        with suppress(ConfigError):
            settings = load(file, sets_beside(text, tmp_path), {}, FEATURES).settings
            tried |= {refused for refused in REFUSED if [*refused(settings)]}
    assert tried == set(REFUSED)


def test_what_can_be_met_is_taken(tmp_path: Path) -> None:
    good = """
[checks]
max_drift = 1
[source]
path = 'state/c'
pattern = 'runs/*/step_[0-9]*[!]x][]][[]]'
[state]
directory = 'state'
[engine]
model = 'm'
args = {context_length = 34}
[[probe]]
prompt = 'a'
equals = 'yes 4'
contains = 'yes'
regex = '\\d$'
"""
    (tmp_path / "hotreload.toml").write_text(good)
    read_settings(tmp_path / "hotreload.toml", [], {}, FEATURES)


def test_secrets_that_systemd_hides_from_a_reload_are_left_to_the_daemon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "[server]\napi_keys_file = 'keys'"
    (tmp_path / "hotreload.toml").write_text(text)
    settings = load(tmp_path / "hotreload.toml", sets_beside(text, tmp_path), {}, FEATURES).settings
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path / "hidden"))
    check(settings)
    (tmp_path / "hidden").mkdir()
    with pytest.raises(ConfigError, match="keys: cannot be read"):
        check(settings)


async def test_a_disk_that_hangs_holds_up_no_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    comes_back = threading.Event()
    monkeypatch.setattr(acceptance, "CHECK_SECONDS", 0.01)
    monkeypatch.setattr("hotreload.threads.LEAVE_AFTER", 0.01)
    monkeypatch.setattr(acceptance, "REFUSED", [lambda settings: comes_back.wait()])
    try:
        with caplog.at_level(logging.WARNING):
            await check_at_start(Settings())
        assert "boot.settings_not_checked" in caplog.messages
    finally:
        comes_back.set()


CORPUS = "[compare]\ncorpus = 'prompts.jsonl'\n"


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b'{"prompt": "caf\xe9"}', "is not UTF-8 text; save it as such"),
        (b"\n", "holds no question"),
        (b'{"prompt": "a"}', "no line says which answer it expects"),
        (b"a" * 200, "has 200 bytes, and 100 are allowed"),
    ],
)
def test_a_corpus_that_cannot_judge_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes, why: str
) -> None:
    monkeypatch.setattr(compare, "MOST_BYTES", 100)
    (tmp_path / "prompts.jsonl").write_bytes(content)
    text = f"{CORPUS}[compare.limits]\nmin_accuracy = 0.5"
    (tmp_path / "hotreload.toml").write_text(text)
    with pytest.raises(ConfigError) as fault:
        read_settings(tmp_path / "hotreload.toml", sets_beside(text, tmp_path), {}, FEATURES)
    assert str(fault.value).startswith(f"[compare] corpus: {tmp_path / 'prompts.jsonl'}: ")
    assert why in str(fault.value)


def test_each_line_of_a_corpus_that_is_no_question_is_listed(tmp_path: Path) -> None:
    (tmp_path / "prompts.jsonl").write_text('{"prompt": 5}\n{"prompt": "a"}\n5')
    (tmp_path / "hotreload.toml").write_text(CORPUS)
    with pytest.raises(ConfigError, match="2 settings are wrong") as fault:
        read_settings(tmp_path / "hotreload.toml", sets_beside(CORPUS, tmp_path), {}, FEATURES)
    assert [each.rpartition("line ")[2][0] for each in fault.value.findings] == ["1", "3"]


async def test_a_start_goes_by_the_questions_that_it_read(tmp_path: Path) -> None:
    (tmp_path / "prompts.jsonl").write_text('\ufeff{"prompt": "2 + 2 =", "answer": "4"}\n')
    (tmp_path / "hotreload.toml").write_text(CORPUS)
    loaded = load(tmp_path / "hotreload.toml", sets_beside(CORPUS, tmp_path), {}, FEATURES)
    with pytest.raises(AssertionError, match="was not read"):
        _ = loaded.settings.of(CompareSettings).questions
    settings = await check_at_start(loaded.settings)
    (asked,) = settings.of(CompareSettings).questions
    assert (asked.prompt, asked.place) == ("2 + 2 =", f"{tmp_path / 'prompts.jsonl'}: line 1")
    assert list(engine_options(settings, tmp_path).unseen.corpus) == [asked]


def test_a_long_prompt_is_counted_in_tokens_where_the_tokenizer_can_be_read(tmp_path: Path) -> None:
    model_in(tmp_path)
    sets = sets_beside(CONTEXT_OF_64, tmp_path)
    file = tmp_path / "hotreload.toml"
    file.write_text(f"{CONTEXT_OF_64}prompt = '{' served' * 10}'\nmax_new_tokens = 1")
    check(load(file, sets, {}, FEATURES).settings)  # 70 characters, and fewer tokens
    file.write_text(f"{CONTEXT_OF_64}prompt = '{' served' * 500}'")
    (tmp_path / "m/tokenizer.json").write_text("{")
    check(load(file, sets, {}, FEATURES).settings)  # the engine's start will say it
