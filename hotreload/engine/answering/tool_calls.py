"""Tools that a chat's model may call: shows them to the model, and reads its calls.

Pure. The chat template of a model describes how the model writes its calls: the parser is chosen
by it.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence, Set
from functools import partial
from typing import Any, Protocol

from hotreload.engine.answering.sampling_params import UNSUPPORTED, bad, grammar_of
from hotreload.errors import ConfigError

Call = dict[str, str]
"""The `name` of a function, and its `arguments` as a JSON object in a string."""
Parse = Callable[[str], list[Call]]
"""Reads the calls out of the text of one; none if it is none."""
ParseWith = Callable[[str, Sequence[dict[str, Any]]], Parse]
"""Makes that of the name of a parser and the tools."""
StrictTag = Callable[[str, Sequence[dict[str, Any]]], str | None]
"""Makes of the same the structural tag that strict tools need, if it can be had."""

CALL_BEGINS, CALL_ENDS = "<tool_call>", "</tool_call>"
"""They stand round a call in every format that a parser of upstream's reads."""
_FORMATS: Sequence[tuple[str, str]] = (
    (r"<parameter=[^>]*>\n", "qwen3_coder"),
    (r"<parameter=", "mimo"),
    (r"\}\n<arg_key>", "glm45"),
    (r"\}<arg_key>", "glm47"),
    (r"<function-name>", "qwen25"),
)
"""Things that stand in a template of tools, and the parser that reads such calls."""


class CallReader(Protocol):
    """Reads the calls of one answer, whose text comes whole each time, longer than before."""

    def read(self, text: str, *, is_whole: bool) -> tuple[str, list[Call]]:
        """The text beside the calls as far as it will stay, and the calls so far."""
        ...


MakeReader = Callable[[], CallReader]


class WrittenCalls:
    """Calls that the model wrote into its text, each between two signs."""

    def __init__(self, parse: Parse) -> None:
        self._parse = parse
        self._beside = ""
        self._calls: list[Call] = []
        self._read = 0

    def read(self, text: str, *, is_whole: bool) -> tuple[str, list[Call]]:
        """Keep back what may become a call, until it is one or is none."""
        while (begin := text.find(CALL_BEGINS, self._read)) >= 0:
            end = text.find(CALL_ENDS, begin)
            if end < 0:
                break
            last = text.rfind(CALL_BEGINS, begin, end)  # one before it was begun and given up
            self._take(text, last, end + len(CALL_ENDS))
        rest = self._unread(text)
        if is_whole:
            said = self._beside + rest
            return (said.rstrip() if self._calls else said), self._calls
        sure = rest[: rest.find(CALL_BEGINS)] if CALL_BEGINS in rest else _without_begun(rest)
        return (self._beside + sure).rstrip(), self._calls

    def _take(self, text: str, begin: int, end: int) -> None:
        calls = self._parse(text[begin:end])
        if calls:  # blanks beside a call are none of the answer
            self._beside = (self._beside + self._unread(text[:begin])).rstrip()
        else:
            self._beside += self._unread(text[:end])
        self._calls += calls
        self._read = end

    def _unread(self, text: str) -> str:
        rest = text[self._read :]
        return rest.lstrip() if self._calls and not self._beside else rest


class ListedCalls:
    """Calls of which a grammar made the whole answer a JSON list."""

    def read(self, text: str, *, is_whole: bool) -> tuple[str, list[Call]]:
        """Return nothing before the list is whole; a list that was cut short is text."""
        if not is_whole:
            return "", []
        try:
            listed = [(each["name"], json.dumps(each["parameters"])) for each in json.loads(text)]
        except (ValueError, TypeError, KeyError):
            return text, []
        return "", [{"name": name, "arguments": arguments} for name, arguments in listed]


class CallsOfAnswers:
    """Puts the calls of each answer to a request beside its text."""

    def __init__(self, make: MakeReader) -> None:
        self._make = make
        self._readers: dict[int, CallReader] = {}

    def add_calls(self, answer: Any) -> Any:
        """The answer, or the list of them, with `tool_calls`."""
        if isinstance(answer, list):
            return [self._one(at, each) for at, each in enumerate(answer)]
        return self._one(answer.get("index", 0), answer)

    def _one(self, at: int, answer: Mapping[str, Any]) -> dict[str, Any]:
        reader = self._readers.setdefault(at, self._make())
        is_whole = bool(answer["meta_info"].get("finish_reason"))
        text, calls = reader.read(answer["text"], is_whole=is_whole)
        return {**answer, "text": text, "tool_calls": list(calls)}


class ToolFormat:
    """The way in which an engine's model gets its tools, and writes its calls."""

    def __init__(
        self,
        template: object,
        parsers: Set[str],
        parse_with: ParseWith,
        strict_tag: StrictTag,
        *,
        grammars: bool,
        asked: str | None = None,
    ) -> None:
        """ConfigError if the operator asked for a parser that this engine has not."""
        if asked is not None and asked not in parsers:
            words = f"[server] tool_call_parser: this engine has no {asked!r}"
            raise ConfigError(f"{words}; it has {', '.join(sorted(parsers))}")
        self._template = _text_of(template)
        self._parsers = parsers
        self._parse_with = parse_with
        self._strict_tag = strict_tag
        self._grammars = grammars
        self._parser = asked or format_of(self._template)

    def arrange(self, request: Mapping[str, Any]) -> tuple[Mapping[str, Any], MakeReader | None]:
        """The request as its prompt is made of it, and what reads its calls, if it has tools."""
        tools, messages = request.get("tools"), request.get("messages")
        if tools and messages is None:
            raise bad("tools", "only with messages")
        if tools or any(is_of_tools(each) for each in messages or ()):
            self._check_shows("tools" if tools else "messages")
        if not tools:
            return request, None
        choice = request.get("tool_choice") or "auto"
        rest = {name: request[name] for name in request.keys() - {"tool_choice"}}
        if choice == "auto":
            parser = self._readable()
            if any(tool["function"].get("strict") for tool in tools):
                rest |= self._hold_to_schemas(parser, tools, rest)
            return rest, partial(WrittenCalls, self._parse_with(parser, tools))
        sampling = self._with_list_grammar(rest["sampling_params"], tools, choice)
        return {**rest, "sampling_params": sampling}, ListedCalls

    def _check_shows(self, param: str) -> None:
        if "tools" not in self._template:
            words = "the chat template of this model shows it no tools; leave them out"
            raise bad(param, words, UNSUPPORTED)

    def _readable(self) -> str:
        """The parser of the calls that this model writes."""
        have = f"this engine can parse {', '.join(sorted(self._parsers))}"
        if self._parser is None:
            words = f"nobody here knows how this model writes its calls; {have}: set [server] "
            words += "tool_call_parser if it is one of them, else leave tools out"
            raise bad("tools", words, UNSUPPORTED)
        if self._parser not in self._parsers:
            words = f"this model writes its calls as {self._parser}, and {have}; leave tools out, "
            raise bad("tools", f"{words}or serve it by a release that can", UNSUPPORTED)
        return self._parser

    def _hold_to_schemas(
        self, parser: str, tools: Sequence[dict[str, Any]], request: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Parameters of a request that hold the calls which the model writes to their schemas."""
        tag = self._strict_tag(parser, tools) if self._grammars else None
        if tag is None:
            words = "nothing holds the calls that this model writes to a schema; leave strict out"
            words += ', or use tool_choice "required"' if self._grammars else ""
            raise bad("tools", words, UNSUPPORTED)
        sampling = request["sampling_params"]
        if grammar_of(sampling) is not None:
            raise bad("tools", "strict ones not together with a format of the answer")
        # The tag lets no token through that stands for the beginning of a thought.
        arguments = {"enable_thinking": False, **(request.get("template_args") or {})}
        return {"sampling_params": {**sampling, "structural_tag": tag}, "template_args": arguments}

    def _with_list_grammar(
        self, sampling: Mapping[str, Any], tools: Sequence[dict[str, Any]], choice: str
    ) -> dict[str, Any]:
        """The parameters with the grammar of a list of calls."""
        if not self._grammars:
            words = 'this engine has no grammars, so nothing makes a model call; use "auto"'
            raise bad("tool_choice", words, UNSUPPORTED)
        if grammar_of(sampling) is not None:
            raise bad("tool_choice", "not together with a format of the answer; give one of them")
        return {**sampling, "json_schema": json.dumps(schema_of(tools, choice))}


def format_of(template: str) -> str | None:
    """Return the parser of the calls that a template describes; None if it describes none."""
    if CALL_BEGINS not in template:
        return None
    return next((name for sign, name in _FORMATS if re.search(sign, template)), None)


def schema_of(tools: Sequence[dict[str, Any]], choice: str) -> dict[str, Any]:
    """The JSON schema of a list of calls of these functions."""
    most = {"maxItems": 1} if choice == "one" else {}
    calls = [_call_schema(tool["function"]) for tool in tools]
    shared = _definitions(tools)
    return {"type": "array", "minItems": 1, **most, "items": {"anyOf": calls}, **shared}


def _call_schema(function: Mapping[str, Any]) -> dict[str, Any]:
    parameters = {k: v for k, v in function["parameters"].items() if k not in _SHARED}
    return {
        "type": "object",
        "properties": {
            "name": {"enum": [function["name"]]},
            "parameters": {"type": "object", **parameters},
        },
        "required": ["name", "parameters"],
        "additionalProperties": False,
    }


_SHARED = frozenset({"$defs", "definitions"})


def _definitions(tools: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Definitions that schemas refer to from their root, which is another one here."""
    shared: dict[str, Any] = {}
    for tool in tools:
        parameters = tool["function"]["parameters"]
        for kind in _SHARED & parameters.keys():
            if not isinstance(parameters[kind], dict):
                raise bad("tools", f"{kind} of parameters must be an object")
            for name, schema in parameters[kind].items():
                if shared.setdefault(kind, {}).setdefault(name, schema) != schema:
                    raise bad("tools", f"{kind}.{name} means two things in them; rename one")
    return shared


def _without_begun(text: str) -> str:
    """The text without what may become the sign of a call."""
    sizes = range(min(len(text), len(CALL_BEGINS) - 1), 0, -1)
    return text[: -next((size for size in sizes if text.endswith(CALL_BEGINS[:size])), 0) or None]


def is_of_tools(message: Mapping[str, Any]) -> bool:
    return message["role"] == "tool" or "tool_calls" in message


def _text_of(template: object) -> str:
    """All of a template, or of the several that a tokenizer may have, as its model reads it."""
    several = template.values() if isinstance(template, dict) else [template or ""]
    return "\n".join(map(str, several)).replace("\\n", "\n")
