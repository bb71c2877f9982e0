"""The settings of the operator's command that decides about new weights."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, override

from hotreload.setting import Bounds, Deadline, SettingsOfFeature, setting


@dataclass(frozen=True, slots=True)
class CommandSettings(SettingsOfFeature):
    """An operator's command that decides about new weights before they answer anybody."""

    run: tuple[str, ...] = setting(
        (),
        "An eval and its arguments; its exit code decides about each checkpoint. Unset: none.",
        example=["/opt/evals/run.sh"],
        was="behaviour.command",
    )
    timeout: Deadline = setting(
        600.0,
        "How long it may take; then the checkpoint is postponed.",
        live=True,
        was="behaviour.command_timeout",
    )
    user: str | None = setting(
        None,
        "The user it runs as, if hotreload is root; unset, hotreload's own.",
        example="evals",
        was="behaviour.command_user",
    )
    tokens: Annotated[int, Bounds(least=256)] = setting(
        8192,
        "Its room for tokens of the new weights; a KV pool of up to 64 MiB is taken whole.",
        was="behaviour.command_tokens",
    )

    @override
    def unfit_for_hosts(self, beside: str) -> Iterator[tuple[str, str]]:
        if self.run:
            yield "run", f"not {beside}: clients alone are answered there, and no candidate"

    @override
    def engine_needs(self) -> Mapping[str, Any]:
        return {"candidate_tokens": self.tokens if self.run else 0}
