"""Why no engine can be started with a model's folder, in words its owner can act on.

Upstream's words send people elsewhere: to install PyTorch, or to another model's tokenizer.
"""

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

from hotreload.checkpoint_files import CONFIG, TOKENIZERS
from hotreload.engine.source_text import unserved


def unservable(model: Path, tokenizer: Path | None = None) -> str | None:
    """What the folder lacks for an engine; None when nothing is known to be wrong with it.

    `tokenizer` is where the tokenizer lies, if it is not the model's.
    """
    why = unserved(_config(model).get("architectures"))
    folder = tokenizer or model
    if why is None and folder.is_dir() and not _has_tokenizer(folder):
        these = ", ".join(TOKENIZERS)
        why = f"there is no tokenizer in {folder}: copy the model's own there (one of {these})"
    return why


def _config(model: Path) -> dict[str, Any]:
    with suppress(OSError, ValueError, RecursionError):
        stated = json.loads((model / CONFIG).read_bytes())
        return stated if isinstance(stated, dict) else {}
    return {}


def _has_tokenizer(folder: Path) -> bool:
    return any((folder / name).is_file() for name in TOKENIZERS) or any(folder.glob("*.tiktoken"))
