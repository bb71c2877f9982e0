"""What a hostile client may send: random bodies, and which of them must be refused."""

import json
import random
from typing import Any, NamedTuple

from tests.integration.running import PROMPTS


class Body(NamedTuple):
    """The bytes of a request; `lacking` when it asks for what this engine has not."""

    content: bytes
    lacking: bool = False


class Can(NamedTuple):
    """What the engine under attack can do."""

    logprobs: bool
    grammars: bool


ODD_NUMBERS: tuple[Any, ...] = (
    0,
    1,
    -1,
    7,
    2**31,
    2**63,
    -(2**70),
    0.5,
    -0.1,
    1e308,
    1e-320,
    True,
    None,
    "1",
    [],
    {},
)
ODD_TEXTS = ("", " ", "x", "\0", "é", "\ud800", "𝄞" * 50, "<|end|>", "a" * 300, "word " * 400)
ODD = (*ODD_NUMBERS, *ODD_TEXTS, 40, ["a", "b"])
NO_JSON = (b"", b"{", b"null", b"[]", b'"x"', b"\xff\xfe", b"[" * 100_000, b"{}" * 10, b"x" * 9**7)
LIKELY: dict[str, tuple[Any, ...]] = {
    "temperature": (0, 0.5, 1.0, 2.0),
    "top_p": (0.1, 0.9, 1.0),
    "top_k": (1, 5, -1),
    "min_p": (0.0, 0.1),
    "stop": ("by", ["step", "x"], ["é" * 256] * 32, "𝄞"),
    "stop_token_ids": ([257], [1, 2, 3], list(range(256))),
    "frequency_penalty": (-2.0, 0.5, 2.0),
    "presence_penalty": (-2.0, 0.5, 2.0),
    "repetition_penalty": (0.5, 1.0, 1.5),
    "min_new_tokens": (0, 1, 3),
    "ignore_eos": (True, False),
    "skip_special_tokens": (True, False),
    "spaces_between_special_tokens": (True, False),
    "no_stop_trim": (True, False),
    "n": (1,),
}
GRAMMARS: dict[str, tuple[Any, ...]] = {
    "json_schema": (
        "{}",
        '{"type":"object"}',
        {"enum": [1, "two", None]},
        {"type": "array", "items": {"type": "integer"}, "minItems": 2},
        {"$ref": "#"},
        {"$ref": "#/nowhere"},
        {"type": "string", "pattern": "^(a{1000}){1000}$"},
        {"type": "array", "minItems": 10**8},
        {"oneOf": [{}, {}]},
        "{",
        "[]",
        "5",
        "true",
        "null",
        '{"a":' * 5000,
    ),
    "regex": (
        "[a-z]{3}",
        "",
        "(",
        "(?=x)",
        "a*",
        "\\w+",
        ".*x.{30}",
        "(a{1000}){1000}",
        "\0",
        "𝄞?",
    ),
    "ebnf": (
        'start: "a"',
        'root ::= "a" root | "b"',
        "start: r0\n" + "\n".join(f"r{i}: r{i + 1}" for i in range(4000)) + '\nr4000: "a"',
        'start: ("a"{1000}){1000}',
        "",
        "x",
        "start: start",
        "start: " + "(" * 9000,
        'root ::= "',
    ),
    "structural_tag": (
        {
            "structures": [{"begin": "<f>", "schema": {"const": 7}, "end": "</f>"}],
            "triggers": ["<f"],
        },
        {"structures": [{"begin": "<f>", "schema": "(", "end": ""}], "triggers": ["<f"]},
        {"structures": [], "triggers": []},
        {"structures": [{}], "triggers": [5]},
        {"structures": 7},
        "{",
        "",
        "[]",
    ),
}
LOGPROBS: dict[str, tuple[Any, ...]] = {
    "logprob_start_len": (-1, 0, 1),
    "top_logprobs_num": (0, 1, 5),
    "token_ids_logprob": ([1, 2], [0]),
    "return_text_in_logprobs": (True, False),
}
OTHERS = (
    "logit_bias",
    "sampling_seed",
    "stream_interval",
    "lora_path",
    "nonsense",
    "max_new_tokens",
)
BIASES = ({"1": 5.0}, {"99999999": -100}, {"x": 1}, {"5": "y"}, *ODD)


def any_body(chance: random.Random, can: Can) -> Body:
    """Mostly JSON that looks like a request; sometimes not even that."""
    if chance.random() < 0.05:
        return Body(chance.choice(NO_JSON))
    wish: dict[str, Any] = {"sampling_params": any_sampling(chance)}
    wish |= any_prompt(chance)
    if chance.random() < 0.3:
        wish["stream"] = chance.choice((True, True, True, "yes", 1))
    if chance.random() < 0.2:
        wish |= any_logprobs(chance)
    if chance.random() < 0.1:
        name = chance.choice(("rid", "surprise", "lora_path", "top_logprobs_num"))
        wish[name] = chance.choice((*ODD, "r" * 129, "r" * 10**6, ["a", "b"]))
    return Body(json.dumps(wish).encode(), is_lacking(wish, can))


def is_lacking(wish: dict[str, Any], can: Can) -> bool:
    """Whether it asks for what this engine has not: it must be refused, not ignored."""
    sampling = wish["sampling_params"] if isinstance(wish["sampling_params"], dict) else {}
    asked = {name for name, value in sampling.items() if value is not None}
    return bool(
        (asked & GRAMMARS.keys() and not can.grammars)
        or (wish.get("return_logprob") is True and not can.logprobs)
        or asked & {"logit_bias", "nonsense", "stream_interval", "lora_path"}
    )


def any_prompt(chance: random.Random) -> dict[str, Any]:
    prompt = chance.random()
    if prompt < 0.5:
        return {"text": chance.choice((*PROMPTS, *PROMPTS, *ODD_TEXTS))}
    if prompt < 0.6:
        texts = [chance.choice((*PROMPTS, *ODD_TEXTS)) for _ in range(chance.randrange(5))]
        return {"text": texts}
    return {"input_ids": any_ids(chance)} if prompt < 0.97 else {}


def any_ids(chance: random.Random) -> Any:
    likely = [
        chance.randrange(1500) for _ in range(chance.choice((0, 1, 2, 5, 50, 100, 200, 255, 2000)))
    ]
    return chance.choice(
        (
            *[likely] * 6,
            [likely, likely],
            [*likely, chance.choice(ODD_NUMBERS)],
            [-5],
            [10**9],
            "ids",
        )
    )


def any_sampling(chance: random.Random) -> Any:
    if chance.random() < 0.05:
        return chance.choice(ODD_NUMBERS)
    sampling: dict[str, Any] = {"max_new_tokens": chance.randrange(1, 12)}
    for name in chance.sample((*LIKELY, *OTHERS), chance.choice((0, 0, 1, 2, 4))):
        likely = LIKELY.get(name, ()) if chance.random() < 0.8 else ()
        sampling[name] = chance.choice(likely or ODD)
    if "logit_bias" in sampling:
        sampling["logit_bias"] = chance.choice(BIASES)
    if chance.random() < 0.3:
        sampling |= any_grammar(chance)
    return sampling


def any_grammar(chance: random.Random) -> dict[str, Any]:
    name = chance.choice(list(GRAMMARS))
    value = chance.choice((*GRAMMARS[name], *GRAMMARS[name], chance.choice(ODD)))
    if isinstance(value, str) and chance.random() < 0.3:  # broken somewhere
        at = chance.randrange(len(value) + 1)
        value = value[:at] + chance.choice(("(", "{", '"', "\\", "|", "$ref", "%", "")) + value[at:]
    second = chance.choice(list(GRAMMARS)) if chance.random() < 0.05 else name
    return {second: chance.choice(GRAMMARS[second]), name: value}


def any_logprobs(chance: random.Random) -> dict[str, Any]:
    asked: dict[str, Any] = {"return_logprob": chance.choice((True, True, True, False, 1))}
    for name in chance.sample(list(LOGPROBS), chance.choice((0, 1, 2))):
        asked[name] = chance.choice(LOGPROBS[name] if chance.random() < 0.7 else ODD)
    return asked
