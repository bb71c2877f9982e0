"""Each fact has one home; where a layer may not look at it, both places are compared here."""

import ast
import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from hotreload.checkpoint import file_names
from hotreload.cli import main
from hotreload.core.rules import Rules
from hotreload.engine.answering import requests, sampling
from hotreload.engine.answering.probe import Probe
from hotreload.engine.options import EngineOptions
from hotreload.engine.upstream.arguments import arguments_of
from hotreload.errors import ConfigError
from hotreload.facts.mount_table import MOUNTINFO
from hotreload.facts.owned_args import OWNED_ARGS
from hotreload.observe.labels import OTHER_SERVERS_ROUTES, ROUTES
from hotreload.server.answerer import MIN_GENERATION
from hotreload.server.api_schema.known_fields import GENERATE, PROMPTS, SAMPLING_PARAMS
from hotreload.server.api_schema.operations import OPERATIONS
from hotreload.server_limits import Limits
from hotreload.settings.rules import rules_of
from hotreload.settings.sections import LimitSettings, ProbeSettings, Settings
from hotreload.settings.source import SourceSettings
from hotreload.sources.options import FolderOptions, HubOptions
from tests.source import MODULES, PACKAGE, nodes_of

BAD_CONFIG = 78

# --- the engine's arguments --------------------------------------------------------------


@dataclass
class UpstreamArgs:
    """What upstream's ServerArgs is to us: names."""

    context_length: int = 0


@pytest.mark.parametrize("name", OWNED_ARGS)
def test_check_config_refuses_what_serve_refuses_in_the_same_words(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ConfigError, match=name) as refused:
        arguments_of(UpstreamArgs, EngineOptions(tmp_path, "cpu", args={name: 1}), "cpu")
    file = tmp_path / "hotreload.toml"
    file.write_text(f"[engine.args]\n{name} = 1\n")
    assert main(["check-config", str(file)]) == BAD_CONFIG
    assert str(refused.value).partition(f"{name} ")[2] in capsys.readouterr().err


def test_other_arguments_are_handed_on(tmp_path: Path) -> None:
    file = tmp_path / "hotreload.toml"
    needed = "[engine]\nmodel = 'm'\n[source]\npath = 'c'\n"
    file.write_text(f"{needed}[engine.args]\ncontext_length = 1\n")
    assert main(["check-config", str(file)]) == 0
    options = EngineOptions(tmp_path, "tpu", args={"context_length": 1})
    assert arguments_of(UpstreamArgs, options, "tpu") == {"context_length": 1}


# --- names ---------------------------------------------------------------------------------


def strings_of(module: Path) -> Iterator[str]:
    for node in nodes_of(module):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def attributes_of(module: Path) -> set[str]:
    nodes = nodes_of(module)
    return {node.attr for node in nodes if isinstance(node, ast.Attribute)}


@pytest.mark.parametrize(
    "name",
    [file_names.INDEX, file_names.SINGLE, ".joblib", "skip_tokenizer_init", str(MOUNTINFO)],
)
def test_a_name_is_written_in_one_module(name: str) -> None:
    assert len([module for module in MODULES if name in strings_of(module)]) == 1


@pytest.mark.parametrize("call", ["flock", "fsync"])
def test_one_module_locks_files_and_flushes_them(call: str) -> None:
    found = [module for module in MODULES if call in attributes_of(module)]
    assert found == [PACKAGE / "facts" / "files.py"]


@pytest.mark.parametrize(
    "sentence",
    ["no answer to the probe within", " is not remembered; known are"],
)
def test_a_sentence_is_written_in_one_module(sentence: str) -> None:
    homes = [each for each in MODULES if any(sentence in words for words in strings_of(each))]
    assert len(homes) == 1, homes


def test_a_hub_serves_what_the_checks_know() -> None:
    known = {file_names.INDEX, file_names.CONFIG, *file_names.SIDE_FILES}
    served = set(file_names.SERVED_FILES)
    assert served - {f"*{file_names.WEIGHTS}"} == known


# --- defaults --------------------------------------------------------------------------------


def defaults_of(model: type[BaseModel]) -> dict[str, Any]:
    return model.model_construct().model_dump()


def test_the_servers_limits_are_what_the_settings_say() -> None:
    said = defaults_of(LimitSettings)
    ours = dataclasses.asdict(Limits())
    assert {name: ours[name] for name in said} == said


def test_the_rules_of_an_attempt_are_what_the_settings_say() -> None:
    assert rules_of(Settings()) == Rules()


@pytest.mark.parametrize("options", [FolderOptions(), HubOptions()])
def test_the_sources_defaults_are_what_the_settings_say(options: Any) -> None:
    said = defaults_of(SourceSettings)
    names = [field.name for field in dataclasses.fields(options) if field.name in said]
    ours = {name: getattr(options, name) for name in names}
    assert ours
    assert ours == {name: said[name] for name in ours}


def test_how_long_a_probes_answer_may_be_the_settings_alone_say() -> None:
    fields = {field.name: field.default for field in dataclasses.fields(Probe)}
    said = defaults_of(ProbeSettings)
    assert fields.keys() == said.keys() | {"prompt"}
    assert fields["max_new_tokens"] is dataclasses.MISSING
    assert {name: fields[name] for name in said.keys() - {"max_new_tokens", "prompt"}} == {
        name: said[name] for name in said.keys() - {"max_new_tokens", "prompt"}
    }


# --- requests and routes -----------------------------------------------------------------


def test_the_engine_takes_the_fields_that_the_server_lets_through() -> None:
    made_by_the_server = {"messages", "template_args", "tools", "tool_choice"}
    made_by_the_server |= requests.OF_THE_SERVER
    for_the_server = {"model", *MIN_GENERATION}
    assert GENERATE.honoured.keys() - for_the_server == requests.FIELDS - made_by_the_server
    assert set(PROMPTS) == requests.PROMPTS - made_by_the_server
    numbers = sampling.NUMBERS | sampling.INTEGERS | sampling.FLAGS
    lists = {"stop", "stop_token_ids"}
    assert SAMPLING_PARAMS.honoured.keys() == numbers | lists | sampling.GRAMMARS.keys()


def test_every_route_has_its_label() -> None:
    counted_as_other = {"/openapi.json", "/page/{name}", "/v1/models/{name}"}
    paths = {path for _, path in OPERATIONS}
    assert {*ROUTES, *OTHER_SERVERS_ROUTES} - {"other"} == paths - counted_as_other
