"""The settings of notices that this machine will be taken away."""

from dataclasses import dataclass

from hotreload.setting import Deadline, Location, setting


@dataclass(frozen=True, slots=True)
class DepartureSettings:
    """Notices that this machine will be taken away."""

    gce: bool = setting(
        False,
        "Ask Google's metadata server for preemptions and maintenance that ends the machine.",
    )
    file: Location | None = setting(
        None,
        "A file that is there as long as the machine is to be left.",
        example="/run/hotreload/leave",
    )
    run: tuple[str, ...] = setting(
        (),
        "A command, run every 5 s: it exits with 0 as long as the machine is to be left.",
        example=["/opt/is-preempted.sh"],
    )
    grace: Deadline = setting(
        25.0, "How long answers may take from the notice on; then they end with what they have."
    )
