"""Upstream's parsers of tool calls, each for the way in which a family of models writes them.

For streams they mix calls up, lose text, or take a call for text, depending on where the pieces end
(0.0.2 and 0.1.0rc0). Therefore a parser gets one whole call, which all of them read correctly.
"""

import json
import logging
from collections.abc import Callable, Sequence
from typing import Any


def known_parsers() -> frozenset[str]:
    """Names of the parsers that this release has."""
    from sgl_jax.srt.function_call.function_call_parser import FunctionCallParser

    # They log what models say when it is no call, which is nobody's business but the client's.
    logging.getLogger("sgl_jax.srt.function_call").setLevel(logging.CRITICAL)
    return frozenset(FunctionCallParser.ToolCallParserEnum)


def parse_with(
    parser: str, tools: Sequence[dict[str, Any]]
) -> Callable[[str], list[dict[str, str]]]:
    """Make what reads the calls of these functions out of the text of one; none if it is none.

    Each has the `name` of a function, and its `arguments` as a JSON object in a string.
    """
    from sgl_jax.srt.entrypoints.openai.protocol import Tool
    from sgl_jax.srt.function_call.function_call_parser import FunctionCallParser

    known = [Tool(**tool) for tool in tools]
    names = {tool["function"]["name"] for tool in tools}

    def parse(text: str) -> list[dict[str, str]]:
        try:
            _, found = FunctionCallParser(known, parser).parse_non_stream(text)
        except Exception:  # whatever a model may write: then it is no call
            return []
        calls = [{"name": str(each.name), "arguments": each.parameters} for each in found]
        return calls if all(_is_of(call, names) for call in calls) else []

    return parse


def strict_tag(parser: str, tools: Sequence[dict[str, Any]]) -> str | None:
    """Make the grammar that holds calls to the schemas of strict tools; None where there is none.

    It is a structural tag: beside calls the model says what it likes.
    """
    from sgl_jax.srt.entrypoints.openai.protocol import Tool
    from sgl_jax.srt.function_call.function_call_parser import FunctionCallParser

    found = FunctionCallParser([Tool(**tool) for tool in tools], parser)
    if not found.detector.supports_structural_tag():
        return None
    tag: str = found.get_structure_tag().model_dump_json(by_alias=True)
    return tag


def _is_of(call: dict[str, str], names: set[str]) -> bool:
    try:
        return call["name"] in names and isinstance(json.loads(call["arguments"]), dict)
    except ValueError:
        return False
