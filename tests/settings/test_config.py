"""Settings: where they come from, what is refused, and how it is said."""

import argparse
import json
import pickle
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import FrozenInstanceError, fields, replace
from pathlib import Path
from typing import Any

import pytest

from hotreload.checkpoint.fit import Policy
from hotreload.checkpoint.settings import CheckSettings
from hotreload.cli.ops import check_config
from hotreload.core.rules import ReloadSettings, Rules
from hotreload.errors import ConfigError
from hotreload.feature import Feature
from hotreload.features import FEATURES
from hotreload.features.compare.settings import CompareSettings
from hotreload.server_limits import Limits, LimitSettings
from hotreload.settings import load as config
from hotreload.settings.faults import mask
from hotreload.settings.load import Loaded, config_file, default_toml, load, missing_to_serve
from hotreload.settings.sections import Settings, class_with
from hotreload.settings.tables import fields_in, fields_of, table_of
from hotreload.sources.hub.client import HubOptions
from hotreload.sources.place import FolderOptions
from hotreload.sources.settings import OF_KIND, FolderSettings, HubSettings
from hotreload.tiny import write_tiny

ALL = class_with(FEATURES)
CONFIG = Path(__file__).parents[2] / "config"
HUB = "[source]\nkind = 'huggingface'\n"


def read(tmp_path: Path, text: str, *sets: str, **environ: str) -> Loaded:
    file = tmp_path / "hotreload.toml"
    file.write_text(text)
    return load(file, sets, environ, FEATURES)


def faults(tmp_path: Path, text: str, *sets: str, **environ: str) -> tuple[str, ...]:
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, text, *sets, **environ)
    for fault in caught.value.findings:
        assert fault in str(caught.value)
    return caught.value.findings


def tables(table: type[Any]) -> Iterator[type[Any]]:
    yield table
    for field in fields_of(table).values():
        if (inner := table_of(field)) is not None:
            yield from tables(inner)


# --- precedence --------------------------------------------------------------------------


def test_the_last_word_wins_and_is_named_as_the_origin(tmp_path: Path) -> None:
    text = "[reload]\nmax_held = 2\nprobe_timeout = 2\ndrain_timeout = 2\n"
    env = {"HOTRELOAD__RELOAD__MAX_HELD": "3", "HOTRELOAD__RELOAD__PROBE_TIMEOUT": "3s"}
    loaded = read(tmp_path, text, "reload.max_held=4", **env)
    chosen = loaded.settings.reload
    assert (chosen.max_held, chosen.probe_timeout, chosen.drain_timeout) == (4, 3.0, 2.0)
    assert chosen.min_interval == 0.0
    assert loaded.origins["reload.max_held"] == "--set"
    assert loaded.origins["reload.probe_timeout"] == "env HOTRELOAD__RELOAD__PROBE_TIMEOUT"
    assert loaded.origins["reload.drain_timeout"] == f"file {tmp_path / 'hotreload.toml'}"
    assert loaded.origins["reload.min_interval"] == "default"


def test_without_a_file_everything_is_default() -> None:
    loaded = load(None, [], {"HOME": "/root", "HOTRELOAD_SOCKET": "/run/x"}, FEATURES)
    assert loaded.settings == ALL()
    assert set(loaded.origins.values()) == {"default"}


def test_what_is_no_toml_value_is_plain_text() -> None:
    sets = ["source.marker=2024-01-01", "server.group=1000", 'source.pattern="a b"']
    env = {
        "HOTRELOAD__ENGINE__ARGS__CHUNKED_PREFILL_SIZE": "512",
        "HOTRELOAD__SERVER__MODE": "0600",
    }
    settings = load(None, sets, env, FEATURES).settings
    assert (settings.source.marker, settings.source.pattern) == ("2024-01-01", "a b")
    assert settings.server.group == "1000"
    assert settings.server.mode == 0o600
    assert settings.engine.args == {"chunked_prefill_size": 512}


def test_probes_can_be_set_as_a_whole() -> None:
    settings = load(None, ['probe=[{prompt = "2+2", contains = 4}]'], {}, FEATURES).settings
    assert [(probe.prompt, probe.contains) for probe in settings.probe] == [("2+2", "4")]


def test_engine_arguments_are_handed_on_as_they_are(tmp_path: Path) -> None:
    text = "[engine.args]\npage_size = 1\n[engine.args.deep]\nnames = ['a', 'b']\n"
    loaded = read(tmp_path, text, "engine.args.page_size=16")
    assert loaded.settings.engine.args == {"page_size": 16, "deep": {"names": ["a", "b"]}}
    assert loaded.origins["engine.args.page_size"] == "--set"


def test_paths_in_a_file_start_at_its_folder_and_others_where_we_stand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    monkeypatch.setenv("HOME", "/home/op")
    text = "[engine]\nmodel = 'm'\n[state]\ndirectory = '~/state'\n[server]\napi_keys_file = 'k'\n"
    settings = read(tmp_path, text, "source.path=ckpt").settings
    assert settings.engine.model == tmp_path / "m"
    assert settings.server.api_keys_file == tmp_path / "k"
    assert settings.source.path == here / "ckpt"
    assert settings.state.directory == Path("/home/op/state")
    roots = "[server]\nupdate_roots = ['out', '~/runs', '/mnt']\n"
    assert read(tmp_path, roots).settings.server.update_roots == (
        tmp_path / "out",
        Path("/home/op/runs"),
        Path("/mnt"),
    )
    assert read(tmp_path, "", "server.update_roots=['o']").settings.checkpoint_roots == [here / "o"]
    assert settings.server.socket == Path("/run/hotreload/hotreload.sock")


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("'250ms'", 0.25), ("'30s'", 30), ("'5m'", 300), ("'1.5h'", 5400), ("7", 7), ("'7'", 7)],
)
def test_durations_are_seconds_or_have_a_unit(tmp_path: Path, text: str, seconds: float) -> None:
    assert read(tmp_path, f"[source]\nsettle = {text}").settings.source.settle == seconds


def test_settings_never_change_once_read() -> None:
    with pytest.raises(FrozenInstanceError):
        Settings().reload.max_held = 5  # type: ignore[misc]


# --- what is refused ---------------------------------------------------------------------


def test_an_unknown_key_is_named_with_the_one_that_was_meant(tmp_path: Path) -> None:
    (fault,) = faults(tmp_path, "[reload]\ndrain_timout = 3\n")
    assert fault.endswith("[reload] drain_timout: unknown; did you mean drain_timeout?")
    assert fault.startswith(str(tmp_path / "hotreload.toml"))


def test_a_key_in_the_wrong_section_is_sent_home(tmp_path: Path) -> None:
    (fault,) = faults(tmp_path, "[reload]\nsettle = 3\n")
    assert fault.endswith("[reload] settle: unknown; it belongs to [source]")


def test_an_unknown_section_is_named_with_its_file(tmp_path: Path) -> None:
    (fault,) = faults(tmp_path, "[relod]\nmax_held = 3\n")
    assert fault == f"{tmp_path / 'hotreload.toml'}: [relod]: unknown; did you mean reload?"


def test_an_unknown_variable_is_an_error_in_its_own_spelling() -> None:
    with pytest.raises(ConfigError, match=r"did you mean HOTRELOAD__LOG__LEVEL\?") as caught:
        load(None, [], {"HOTRELOAD__LOG__LEVL": "info"}, FEATURES)
    assert str(caught.value).startswith("HOTRELOAD__LOG__LEVL: unknown")


def test_an_unknown_override_is_an_error_in_its_own_spelling() -> None:
    with pytest.raises(ConfigError, match=r"^--set log\.levl: unknown; did you mean level\?$"):
        load(None, ["log.levl=info"], {}, FEATURES)


def test_an_override_without_a_value_says_how_to_write_it() -> None:
    with pytest.raises(ConfigError, match=r"--set log\.level: write it as section\.key=value"):
        load(None, ["log.level"], {}, FEATURES)


def test_everything_wrong_is_told_at_once(tmp_path: Path) -> None:
    text = "[reload]\nmax_held = -1\nnonsense = 1\n[[probe]]\nprompt = 'x'\nregex = '('\n"
    env = {"HOTRELOAD__LOG__LEVEL": "loud"}
    told = faults(tmp_path, text, "engine.tp=0", **env)
    assert len(told) == 5
    for part in ("max_held", "nonsense", "[[probe]] number 1 regex", "--set engine.tp", "'loud'"):
        assert any(part in fault for fault in told), part


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[source]\nrepo = 'org/name'", "repo: only for kind = 'huggingface', and kind is 'dir"),
        (f"{HUB}path = 'p'\norder = 'name'", "path, order: only for kind = 'directory', and kind"),
        (f"{HUB}repo = 'name'", "'name' is no repo: write it as org/name"),
        (f"{HUB}repo = 'org/../name'", "is no repo"),
        (f"{HUB}revision = '../x'", "'../x' is no branch, tag or commit"),
        (f"{HUB}token_file = 'hf_abc'", "never write the secret itself here"),
        (f"{HUB}allow = ['*.bin']", "a pickle runs code when it is read"),
        (f"{HUB}allow = ['a/*']", "only files at the top of the repo are served"),
        (f"{HUB}endpoint = 'https://u:p@hub'", "is no address of a hub"),
        ("[reload]\nmemory = 'triple'", "should be 'double', 'host' or 'auto', not 'triple'"),
        ("[server]\ncors_origins = ['*']", "each site is named, there is no *"),
        ("[server]\ncors_origins = ['https://a.example/']", "'https://a.example/' is no origin"),
        ("[server]\ncors_origins = ['chat.example.com']", "is no origin"),
        ("[server]\ncors_origins = ['https://Chat.example']", "is no origin"),
        ("[server]\ncors_origins = ['null']", "is no origin"),
        ("[server]\ncors_origins = ['https://me@a.example']", "is no origin"),
        ("[reload]\non_drain_timeout = 'replay'\nwhile_closed = 'refuse'", "needs while_closed"),
        ("[engine]\ntp = true", "[engine] tp: should be a valid integer, not True"),
        ("[engine]\ntp = 0", "should be greater than or equal to 1, not 0"),
        ("[engine]\nboot = 'last'", "should be 'last-good', 'model' or 'dummy', not 'last'"),
        ("engine = 5", "[engine]: must be a table"),
        ("[engine.args]\nmodel_path = 'm'", "model_path cannot be set: use [engine] model"),
        ("[source]\npath = ''", "[source] path: must be a path"),
        ("[source]\nmarker = 'a/b'", "[source] marker"),
        ("[source]\nrescan = 0", "should be greater than 0, not 0"),
        ("[source]\nsettle = -1", "[source] settle: should be greater than or equal to 0"),
        ("[source]\nsettle = 'soon'", "'soon' is no duration: write seconds, or '250ms'"),
        ("[source]\nsettle = true", "True is no duration"),
        ("[source]\nsettle = inf", "[source] settle: should be a finite number"),
        (f"[source]\nsettle = 1{'0' * 400}", "[source] settle"),
        ("[server]\nmode = 660", 'write it in quotes, such as "0660"'),
        ("[server]\nmode = '0999'", "'0999' is no file mode"),
        ("[server]\ntcp = 'localhost'", "'localhost' is no address: write host:port"),
        ("[server]\ntcp = 'localhost:99999'", "[server] tcp"),
        ("[server.limits]\nbatch = 0", "[server.limits] batch"),
        ("[metrics]\naddress = 'here'", "write host:port, such as '127.0.0.1:9479'"),
        ("[server]\ntcp = 'here'", "write host:port, such as '127.0.0.1:8000'"),
        ("[server]\ntcp = '8123'", "write host:port, such as '127.0.0.1:8123'"),
        ("[server]\ntcp = '127.0.0.1:9479'", "[server] tcp and [metrics] address are both"),
        ("[server]\ntls_cert = 'c'", "[server] tls_cert and tls_key go together"),
        ("[[probe]]\ncontains = 'x'", "[[probe]] number 1 prompt: must be set"),
        ("[[probe]]\nprompt = 'x'\nregex = '('", "'(' is no regular expression"),
        ("[[probe]]\nprompt = 'x'\nmin_mean_logprob = 0.5", "less than or equal to 0, not 0.5"),
        (
            "[probe]\nprompt = 'x'",
            "[probe]: must be an array; tables in it are written as [[probe]]",
        ),
        ("[reload", "is not TOML"),
        ("[log]\nlevel = 'info'\nlevel = 'info'", "is not TOML"),
    ],
)
def test_a_bad_value_says_what_to_change(tmp_path: Path, text: str, said: str) -> None:
    (fault, *_) = faults(tmp_path, text) or ("",)
    assert said in fault


def test_the_file_is_the_one_given_or_named_or_the_default_if_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    default = tmp_path / "default.toml"
    monkeypatch.setattr(config, "DEFAULT_CONFIG", default)
    named = {"HOTRELOAD_CONFIG": "/etc/b.toml"}
    assert config_file(Path("a.toml"), named) == Path("a.toml")
    assert config_file(None, named) == Path("/etc/b.toml")
    assert config_file(None, {}) is None
    default.touch()
    assert config_file(None, {}) == default


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.toml: cannot be read: No such file"):
        load(tmp_path / "none.toml", [], {}, FEATURES)


def test_a_file_that_is_not_text_is_named(tmp_path: Path) -> None:
    file = tmp_path / "bad.toml"
    file.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match=r"bad\.toml: is not TOML"):
        load(file, [], {}, FEATURES)


def test_serving_needs_a_model_and_a_source(tmp_path: Path) -> None:
    assert [fault.partition(":")[0] for fault in missing_to_serve(Settings())] == [
        "[engine] model",
        "[source] path",
    ]
    settings = read(tmp_path, "[engine]\nmodel='m'\n[source]\npath='p'").settings
    assert list(missing_to_serve(settings)) == []


# --- the tables of features ----------------------------------------------------------------

MOVED = {
    "reload.bake": "bake.time",
    "reload.bake_max": "bake.max_time",
    "reload.bake_inconclusive": "bake.inconclusive",
    "reload.allowed_increase": "bake.allowed_increase",
    "reload.sessions": "sessions.keep",
    "server.pause_limit": "pause.limit",
    "behaviour.report": "compare.report",
    "behaviour.time": "compare.time",
    "behaviour.corpus": "compare.corpus",
    "behaviour.mirror": "compare.mirror",
    "behaviour.replay": "compare.replay",
    "behaviour.limits.max_kl": "compare.limits.max_kl",
    "behaviour.limits": "compare.limits",
    "behaviour.command": "command.run",
    "behaviour.command_timeout": "command.timeout",
    "behaviour.command_user": "command.user",
    "behaviour.command_tokens": "command.tokens",
    "behaviour": "compare or command",
    "behaviour.no_such": "compare or command",
}


@pytest.mark.parametrize("old", MOVED)
def test_an_old_name_is_refused_with_the_new_one(tmp_path: Path, old: str) -> None:
    """In the words of the file, of a variable and of --set."""
    named = "behaviour" if old == "behaviour.no_such" else old
    value = "{max_kl = 1}" if old in ("behaviour", "behaviour.limits") else "1"
    with pytest.raises(ConfigError) as caught:
        load(None, [f"{old}={value}"], {}, FEATURES)
    assert str(caught.value) == f"--set {named}: is {MOVED[old]} now"
    variable, new = (f"HOTRELOAD__{each.replace('.', '__').upper()}" for each in (old, MOVED[old]))
    with pytest.raises(ConfigError) as caught:
        load(None, [], {variable: value}, FEATURES)
    assert str(caught.value).endswith(f": is {new} now") or " or " in MOVED[old]


def test_an_old_name_in_the_file_is_refused_as_the_file_writes_it(tmp_path: Path) -> None:
    text = "[reload]\nbake_max = 3\n[behaviour]\ncommand = ['a']\n[behaviour.limits]\nmax_kl = 1\n"
    file = tmp_path / "hotreload.toml"
    assert faults(tmp_path, f"{text}no_such = 1") == (
        f"{file}: [reload] bake_max: is [bake] max_time now",
        f"{file}: [behaviour] command: is [command] run now",
        f"{file}: [behaviour.limits] max_kl: is [compare.limits] max_kl now",
        f"{file}: [behaviour.limits] no_such: is [compare.limits] no_such now",
    )
    told = faults(tmp_path, "[behaviour]\nno_such = 1")
    assert told == (f"{file}: [behaviour]: is [compare] or [command] now",)


@pytest.mark.parametrize(
    "left_out",
    [each for each in FEATURES if isinstance(each.settings, type)],
    ids=lambda feature: feature.name,
)
def test_a_table_of_a_feature_that_is_not_there_is_unknown(left_out: Feature) -> None:
    others = [each for each in FEATURES if each is not left_out]
    assert left_out.settings is not None
    key = next(iter(fields_of(left_out.settings)))
    with pytest.raises(ConfigError, match=rf"--set {left_out.name}: unknown; "):
        load(None, [f"{left_out.name}.{key}=1"], {}, others)
    settings = load(None, [], {}, others).settings
    assert settings.of(left_out.settings) == left_out.settings()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("bake.time=-1", "bake.time: should be greater than or equal to 0, not -1"),
        ("bake.inconclusive=no", "should be 'promote', 'hold' or 'rollback', not 'no'"),
        ("bake.allowed_increase=2", "should be less than or equal to 1, not 2"),
        ("pause.limit=soon", "'soon' is no duration"),
        ("pause=3", "pause: must be a table"),
        ("compare.time=0", "should be greater than 0, not 0"),
        ("compare.mirror=true", "compare.mirror: should be a valid number, not True"),
        ("compare.replay=1001", "should be less than or equal to 1000, not 1001"),
        ("compare.corpus=''", "compare.corpus: must be a path"),
        ("compare.limits.min_agreement=2", "should be less than or equal to 1, not 2"),
        ("compare.limits.max_kl=-1", "should be greater than or equal to 0, not -1"),
        ("compare.limits.max_kl=inf", "should be a finite number"),
        ("compare.limits.max_kk=1", "max_kk: unknown; did you mean max_kl?"),
        ("compare.keep=1", "compare.keep: unknown; it belongs to [sessions]"),
        ("command.run=eval", "command.run: must be an array"),
        ("command.timeout=0", "should be greater than 0, not 0"),
        ("command.tokens=255", "should be greater than or equal to 256, not 255"),
    ],
)
def test_a_bad_value_of_a_feature_says_what_to_change(given: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(None, [given], {}, FEATURES)
    assert said in str(caught.value)


def test_settings_reach_a_worker_with_the_tables_of_features() -> None:
    settings = load(None, ["compare.corpus=c", "bake.time=5m"], {}, FEATURES).settings
    assert pickle.loads(pickle.dumps(settings)) == settings


def test_the_settings_of_features_need_no_pydantic() -> None:
    """Client verbs know features, and must not pay for reading settings."""
    program = "import hotreload.features, sys; sys.exit('pydantic' in sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True)


# --- the files we ship -------------------------------------------------------------------


def test_every_setting_has_a_description() -> None:
    for table in tables(ALL):
        assert table.__doc__
        for name, field in fields_of(table).items():
            assert table is ALL or field.setting.words or name == "limits", (table, name)


@pytest.mark.parametrize(
    ("section", "declared", "options"),
    [
        ("reload", ReloadSettings, Rules),
        ("checks", CheckSettings, Policy),
        ("source", FolderSettings, FolderOptions),
        ("source", HubSettings, HubOptions),
        ("server.limits", LimitSettings, Limits),
    ],
)
def test_a_part_goes_by_the_very_settings_that_are_read(
    section: str, declared: Any, options: Any
) -> None:
    """Nothing copies their names or their defaults: what the part has is declared once."""
    own = dict(fields_of(options))
    resolved = {"finish_timeout"}  # unset in the file: as long as a request may run
    for name, field in fields_of(declared).items():
        assert dict(fields_in(ALL))[(*section.split("."), name)] == field
        assert own[name] == field or name in resolved
    assert issubclass(options, declared)


def test_the_file_of_defaults_is_made_from_the_settings() -> None:
    assert (CONFIG / "hotreload.toml").read_text() == default_toml(FEATURES)


@pytest.mark.parametrize("sets", [1, 4, "many"])
def test_a_number_of_sets_is_one_of_two_or_left_to_memory(tmp_path: Path, sets: object) -> None:
    most = [read(tmp_path, "", f"reload.sets={each}").settings.rules.most_sets for each in (2, 3)]
    assert most == [2, 3]
    rules = read(tmp_path, "", "reload.sets=auto").settings.rules
    assert (rules.sets, rules.most_sets) == ("auto", 6)
    with pytest.raises(ConfigError, match=r"reload.sets: should be 2, 3 or 'auto', not "):
        read(tmp_path, "", f"reload.sets={sets}")


def test_the_file_of_defaults_sets_nothing() -> None:
    assert load(CONFIG / "hotreload.toml", [], {}, FEATURES).settings == ALL()


def test_the_lines_of_the_file_of_defaults_are_the_defaults(tmp_path: Path) -> None:
    paragraphs = default_toml(FEATURES).replace("#[[", "[[").split("\n\n")
    shown = [part for part in paragraphs if "Not set by default" not in part or "[engine." in part]
    awake = re.sub(r"^#(\w+ = )", r"\1", "\n\n".join(shown), flags=re.MULTILINE)
    settings = read(tmp_path, awake).settings
    assert settings.engine.args
    shown_args = replace(settings.engine, args={})
    without: Any = {"engine": shown_args, "probe": (), "notify": ()}
    assert replace(settings, **without) == ALL()
    assert settings.probe[0].max_new_tokens == 32


@pytest.mark.parametrize("kind", OF_KIND)
def test_the_examples_in_the_file_of_defaults_are_valid(tmp_path: Path, kind: str) -> None:
    awake = re.sub(r"^#(\[\[\w+\]\]|\w+ = )", r"\1", default_toml(FEATURES), flags=re.MULTILINE)
    others = "|".join(
        each.name for other in OF_KIND if other != kind for each in fields(OF_KIND[other])
    )
    ours = re.sub(rf"^({others}) = .*$", "", awake, flags=re.MULTILINE)
    of_kind = ours.replace('kind = "directory"', f'kind = "{kind}"')
    whole, begin, limits = of_kind.partition("[compare.limits]")
    limits, end, after = limits.partition("\n[")
    several = ("engine.nnodes=2", "engine.tp=2", "command.run=[]")
    settings = read(tmp_path, f"{whole}{end}{after}", *several).settings
    alone = ("compare.corpus=/c", "compare.replay=16")
    assert read(tmp_path, f"{begin}{limits}", *alone).settings.of(CompareSettings).limits.max_kl
    assert settings.probe[0].regex == r"\b4\b"
    assert settings.source.marker == ("_SUCCESS" if kind == "directory" else None)
    assert settings.source.repo == ("org/name" if kind == "huggingface" else None)


def test_the_folder_example_can_be_served() -> None:
    settings = load(CONFIG / "directory.toml", [], {}, FEATURES).settings
    assert list(missing_to_serve(settings)) == []
    assert settings.source.kind == "directory"
    assert settings.probe


def test_the_hub_example_can_be_served_without_a_model_of_its_own() -> None:
    settings = load(CONFIG / "huggingface.toml", [], {}, FEATURES).settings
    assert list(missing_to_serve(settings)) == []
    assert (settings.source.kind, settings.engine.model) == ("huggingface", None)
    (fault,) = missing_to_serve(load(None, ["source.kind=huggingface"], {}, FEATURES).settings)
    assert "[source] repo: not set" in fault


def test_a_secrets_file_is_shown_and_a_secret_in_its_place_is_not_repeated(
    tmp_path: Path,
) -> None:
    file = "/etc/hotreload/token"
    assert mask("source.token_file", file) == file
    assert "hf_abc" not in "".join(faults(tmp_path, f"{HUB}token_file = 'hf_abc'"))


# --- check-config ------------------------------------------------------------------------


def check(*words: str) -> int:
    parser = argparse.ArgumentParser()
    check_config.add(parser.add_subparsers())
    args = parser.parse_args(["check-config", *words])
    return int(args.run(args))


GOOD = """
[engine]
model = 'm'
args = {api_key = 'hf_abc', tokenizer_path = 't', json_model_override_args = {secrets = ['hf_abc']}}
[source]
path = 'p'
[[probe]]
prompt = 'hi'
max_new_tokens = 7
"""


def test_check_config_prints_settings_with_their_origins_and_no_secrets(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "a.toml"
    file.write_text(GOOD)
    assert check(str(file), "--set", "reload.max_held=3") == 0
    out, err = capsys.readouterr()
    assert "memory of each device" not in out  # there is no model
    assert err == ""
    assert "hf_abc" not in out
    assert re.search(r'^api_key = "\*\*\*" +# file .*a\.toml$', out, re.MULTILINE)
    assert re.search(r'^tokenizer_path = "t" ', out, re.MULTILINE)
    assert re.search(r"^max_held = 3 +# --set$", out, re.MULTILINE)
    assert re.search(r'^boot = "last-good" +# default$', out, re.MULTILINE)
    assert "max_new_tokens = 7" in out


def test_check_config_does_not_show_the_url_of_a_webhook(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "a.toml"
    file.write_text(GOOD + '\n[[notify]]\nurl = "https://hooks.example.com/T1/B2/xyz"\n')
    assert check(str(file)) == 0
    out, err = capsys.readouterr()
    assert "hooks.example.com" not in out + err
    assert re.search(r'url = "\*\*\*"', out)


def test_check_config_plans_the_memory_of_a_device(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_tiny(tmp_path / "model", "served by step 1")
    check(f"--set=engine.model={tmp_path / 'model'}", "--set=engine.device=cpu")
    rows = [line.split() for line in capsys.readouterr().out.splitlines()[-5:]]
    assert rows[0] == ["#", "memory", "of", "each", "device,", "in", "bytes"]
    assert [row[-1] for row in rows[1:3]] == ["6822912", "33554432"]


def test_what_check_config_prints_can_be_loaded_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "a.toml"
    file.write_text(GOOD.replace("api_key = 'hf_abc', ", "").replace("secrets", "names"))
    assert check(str(file)) == 0
    again = read(tmp_path, capsys.readouterr().out).settings
    assert again == load(file, [], {}, FEATURES).settings


def test_check_config_takes_its_file_as_other_verbs_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "a.toml"
    file.write_text(GOOD)
    assert check(str(file)) == 0
    alone = capsys.readouterr()
    assert check("--config", str(file)) == 0
    assert capsys.readouterr() == alone
    assert check("--config", str(tmp_path / "none.toml"), "--quiet") == 78
    assert "none.toml" in capsys.readouterr().err


def test_check_config_speaks_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "a.toml"
    file.write_text(GOOD)
    assert check(str(file), "--json") == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["ok"] is True
    assert answer["settings"]["engine"]["model"] == str(tmp_path / "m")
    assert answer["settings"]["engine"]["args"]["json_model_override_args"] == {"secrets": ["***"]}
    assert answer["origins"]["engine.model"] == f"file {file}"


def test_check_config_shows_what_there_is_and_says_what_serving_still_needs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "a.toml"
    file.write_text("[engine]\nmodel = 'm'\n")
    assert check(str(file)) == 78
    out, err = capsys.readouterr()
    assert f'model = "{tmp_path / "m"}"' in out
    assert "[source] path: not set" in err


def test_check_config_says_nothing_of_what_is_sound_where_only_faults_are_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "a.toml"
    file.write_text(GOOD)
    assert check(str(file), "--quiet") == 0
    assert capsys.readouterr() == ("", "")
    file.write_text("[engine]\ntp = 0\n")
    assert check(str(file), "--quiet") == 78
    assert "[engine] tp" in capsys.readouterr().err


def test_check_config_ends_with_78_and_every_fault(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "a.toml"
    file.write_text("[engine]\nmodle = 'm'\ntp = 0\n")
    assert check(str(file)) == 78
    out, err = capsys.readouterr()
    assert out == ""
    assert "did you mean model?" in err
    assert "[engine] tp" in err
    assert check(str(file), "--json") == 78
    assert len(json.loads(capsys.readouterr().out)["faults"]) == 2


def test_check_config_prints_the_file_of_defaults(capsys: pytest.CaptureFixture[str]) -> None:
    assert check("--defaults") == 0
    assert capsys.readouterr().out == default_toml(FEATURES)
