"""Refuses a checkpoint whose config.json changes a frozen field."""

import json
from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any

from hotreload.attempts import Evidence
from hotreload.core.judge import Case
from hotreload.core.ports import Engine
from hotreload.errors import CheckpointRejected, NotJudged
from hotreload.threads import in_thread
from tests.sample_feature import BLANK, REASON


class FrozenJudge:
    """Compares the config.json of one attempt with that in the folder of the model."""

    takes_long = False
    watch = nullcontext[None]

    def __init__(self, fields: Sequence[str], model: Path | None) -> None:
        self._fields, self._model = fields, model

    def check_can_judge(self, engine: Engine) -> None:
        """Raise NotJudged where nothing says what is served."""
        if self._model is None:
            raise NotJudged("[frozen] fields cannot judge: set [engine] model")

    async def judge(self, case: Case) -> None:
        """Note which fields the checkpoint changes; raise if there is one."""
        assert self._model is not None, "it said that it can judge"
        assert case.progress.checkpoint is not None, "there are files by now"
        folders = (self._model, case.progress.checkpoint.path)
        served, new = [await in_thread(partial(_config_in, folder)) for folder in folders]
        changed = [each for each in self._fields if new.get(each) != served.get(each)]
        words = f"config.json changes {', '.join(changed)}" if changed else ""
        outcome = "refused" if changed else "passed"
        case.progress.note(Evidence(BLANK.name, outcome, words, {"frozen_changed": changed}))
        if changed:
            raise CheckpointRejected(f"{words} ([frozen] fields)", code=REASON)


def _config_in(folder: Path, cancel: Event) -> dict[str, Any]:
    return dict(json.loads((folder / "config.json").read_bytes()))
