"""The settings of how new weights are compared with the live ones before they answer."""

from typing import Self

from pydantic import Field, model_validator

from hotreload.features.compare.rules import CompareRules, HearingRules
from hotreload.settings.kinds import (
    AtMost,
    CorpusFile,
    Deadline,
    PartOfAll,
    Replayed,
    SettingsTable,
)


class BehaviourLimitSettings(SettingsTable):
    """Limits on how new weights may differ from the live ones; beyond one they are refused.

    Unset, each allows everything. One that could not be measured is broken,
    but for those along answers where the live weights say nothing.
    """

    min_agreement: PartOfAll | None = Field(
        default=None,
        description="The least part of an answer that must be the same up to the first token that "
        "differs, on average.",
        examples=[0.3],
    )
    max_kl: AtMost | None = Field(
        default=None,
        description="The most that what both expect may diverge, along the live weights' answers: "
        "the mean Kullback-Leibler divergence of a token, in nats.",
        examples=[0.5],
    )
    max_kl_over_noise: AtMost | None = Field(
        default=None,
        description="The same as a multiple of what the live weights differ by when they are asked "
        "twice.",
        examples=[1000.0],
    )
    max_perplexity_ratio: AtMost | None = Field(
        default=None,
        description="How many times as much a plain text may surprise the new weights.",
        examples=[1.2],
    )
    max_length_ratio: AtMost | None = Field(
        default=None,
        description="How many times as long, or as short, their answers may be.",
        examples=[2.0],
    )
    min_accuracy: PartOfAll | None = Field(
        default=None,
        description="The least share of right answers, of those that the corpus expects.",
        examples=[0.8],
    )
    min_change: AtMost | None = Field(
        default=None,
        description="The least mean divergence: what differs by less is probably a copy of the "
        "wrong folder.",
        examples=[1e-6],
    )
    max_heard_perplexity_ratio: AtMost | None = Field(
        default=None,
        description="The same along clients' answers, of 16 heard or more.",
        examples=[1.5],
    )
    min_heard_same_top: PartOfAll | None = Field(
        default=None,
        description="In how much of those both must expect the same token.",
        examples=[0.5],
    )


class BehaviourSettings(SettingsTable):
    """New weights beside the live ones, asked the same questions before they answer anybody.

    Without limits it decides nothing: the history tells how they differ.
    """

    report: bool = Field(
        default=True,
        description="Whether new weights are compared with the live ones. Where the engine answers "
        "by one set of weights alone, or over several hosts, they are not.",
    )
    time: Deadline = Field(
        default=CompareRules().within,
        description="How long that may take. A checkpoint that it takes longer for is postponed if "
        "there are limits, and else goes live without a report. Where clients are answered "
        "meanwhile, it is divided by shadow_share. Without limits and command it is 2 s at most, "
        "but for a dry run.",
    )
    corpus: CorpusFile | None = Field(
        default=None,
        description="A file of questions that both are asked beside those that are built in: a "
        "JSON object a line, with prompt or messages, max_tokens, and answer, contains or matches "
        "where an answer is expected. Read again with the settings.",
        examples=["/etc/hotreload/prompts.jsonl"],
    )
    mirror: PartOfAll = Field(
        default=HearingRules().mirror,
        description="This share of the requests that end while a checkpoint waits is heard, to be "
        "compared, too.",
    )
    replay: Replayed = Field(
        default=HearingRules().replay,
        description="So many of the last requests are kept in memory, and compared, too.",
    )
    command: tuple[str, ...] = Field(
        default=(),
        description="An eval and its arguments: its exit code decides about each checkpoint. "
        "Empty: none does.",
        examples=[["/opt/evals/run.sh"]],
    )
    command_timeout: Deadline = Field(
        default=600.0, description="How long it may take; else the checkpoint is postponed."
    )
    command_user: str | None = Field(
        default=None,
        description="The user it runs as, if hotreload is root. Unset: hotreload's own.",
        examples=["evals"],
    )
    command_tokens: int = Field(
        default=8192,
        ge=256,
        description="Room for what it asks new weights; a KV pool of up to 64 MiB is taken whole.",
    )
    limits: BehaviourLimitSettings = BehaviourLimitSettings()

    @model_validator(mode="after")
    def _answers_are_expected(self) -> Self:
        if self.limits.min_accuracy is not None and self.corpus is None:
            raise ValueError("limits.min_accuracy needs a corpus that says what answers it expects")
        return self

    @model_validator(mode="after")
    def _limits_can_be_kept(self) -> Self:
        limits = self.limits
        if limits != BehaviourLimitSettings() and not self.report:
            raise ValueError("limits are kept by the report: set report = true, or leave them out")
        heard = (limits.max_heard_perplexity_ratio, limits.min_heard_same_top)
        if heard != (None, None) and not (self.mirror or self.replay):
            raise ValueError("limits on what clients were answered need mirror or replay")
        return self
