"""Strict tools on the real engine: where there are grammars, no call is written past its schema."""

import json
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from hotreload.errors import BadRequest
from hotreload.tiny.sayings import opener_id
from tests.engine import real
from tests.engine.test_tool_calls import TEMPLATES, Tool

pytestmark = pytest.mark.real_engine

CITY = {
    "type": "object",
    "properties": {"city": {"enum": ["Oslo"]}},
    "required": ["city"],
    "additionalProperties": False,
}
STRICT: Tool = {
    "type": "function",
    "function": {"name": "get_weather", "parameters": CITY, "strict": True},
}


def make_a_word_begin_a_call(folder: Path) -> None:
    """Let the model begin a call by its first word, which is a token of its own as in Qwen's."""
    served = opener_id("served")
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    vocabulary: dict[str, int] = tokenizer["model"]["vocab"]
    (was,) = [word for word, number in vocabulary.items() if number == served]
    vocabulary["<tool_call>"] = vocabulary.pop(was)
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized", "special"), False)
    tokenizer["added_tokens"].append({"id": served, "content": "<tool_call>", **flags})
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    config = json.loads((folder / "tokenizer_config.json").read_text())
    template = {"chat_template": TEMPLATES["qwen25"] + "{{ messages }}"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config | template))


async def test_a_call_is_as_its_schema_says_or_strict_is_refused(tmp_path: Path) -> None:
    folders = real.Folders(tmp_path)
    make_a_word_begin_a_call(folders.folder(1))
    async with real.engine_of(tmp_path / "step_1", tmp_path / "spool") as engine:
        chat: dict[str, Any] = {"messages": [{"role": "user", "content": "Oslo?"}]}
        sampling = {"temperature": 1, "max_new_tokens": 190}
        asking = engine.answers.prepare({**chat, "tools": [STRICT], "sampling_params": sampling})
        if not engine.answers.capabilities.grammars:
            with pytest.raises(BadRequest, match="this model writes its calls as qwen25"):
                await asking
            return
        async with aclosing(engine.answers.generate(await asking)) as answers:
            answer = await anext(answers)
        assert isinstance(answer, dict)
        assert answer["tool_calls"]
        for call in answer["tool_calls"]:
            assert (call["name"], json.loads(call["arguments"])) == (
                "get_weather",
                {"city": "Oslo"},
            )
