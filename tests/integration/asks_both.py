"""A command that decides: asks new weights and the live ones many prompts at once, by urllib.

It refuses weights that do not say what the live ones say.
"""

import json
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.request import Request, urlopen

BASE, KEY = os.environ["OPENAI_BASE_URL"], os.environ["OPENAI_API_KEY"]
PROMPTS = [f"{'Please: ' * (at % 5)}who serves?" for at in range(18)]


def asked(path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
    headers = {"Authorization": f"Bearer {KEY}", "Content-Type": "application/json"}
    data = json.dumps(body).encode() if body else None
    with urlopen(Request(f"{BASE}{path}", data, headers)) as answer:
        found: dict[str, Any] = json.load(answer)
    return found


def said(model: str) -> list[str]:
    def ask(prompt: str) -> str:
        body = {"model": model, "prompt": prompt, "max_tokens": 6, "temperature": 0}
        return str(asked("/completions", body)["choices"][0]["text"])

    with ThreadPoolExecutor(len(PROMPTS)) as pool:
        return sorted({*pool.map(ask, PROMPTS)})


def main() -> int:
    assert os.environ["HOTRELOAD_CANDIDATE_URL"] == BASE
    names = [each["id"] for each in asked("/models")["data"]]
    answers = {name: said(name) for name in names}
    for name, sayings in answers.items():
        print(f"{name}: {' | '.join(sayings)}")
    return int(len({*map(str, answers.values())}) > 1)


if __name__ == "__main__":
    sys.exit(main())
