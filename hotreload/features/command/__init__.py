"""Has an operator's command decide about new weights, before they answer any request."""

from hotreload.feature import Feature, FeatureParts, Given
from hotreload.features.command.command import BLANK, COMMAND, CommandSettings, words_of_command


def _begin(given: Given) -> FeatureParts:
    from hotreload.features.command.judge import CommandReport, CommandRunner
    from hotreload.server.ports import FeatureRoutes

    report = CommandReport(given.attempts.ledger)
    adds = FeatureRoutes(adds={"Attempt": {"command_said": list[str]}})
    return FeatureParts(judges=CommandRunner(given).judges, report=report, routes=adds)


COMMAND_FEATURE = Feature(
    name=COMMAND,
    settings=CommandSettings,
    blank=BLANK,
    words=words_of_command,
    reasons={
        COMMAND: (
            "[`[command] run`](judge.md#a-command-decides) ended with another code than 0",
            "read its last lines in `hotreload history`; if the command was wrong, mend it and "
            "force the checkpoint",
        )
    },
    begin=_begin,
)
