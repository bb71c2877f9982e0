"""Lists the commits that a hub source knows of: the one it wishes, and those that lie here."""

from collections.abc import Callable, Iterable

from hotreload.listed import Listed, Standing
from hotreload.sources.hub.snapshots import Snapshot
from hotreload.types import Revision, holds_weights


def listed_commits(
    wished: str | None,
    here: Iterable[tuple[Snapshot, float]],
    named: Callable[[str], Revision],
) -> list[Listed]:
    """The wished commit first, then the others as they came."""
    commits = [_commit(snapshot, at, wished, named(snapshot.sha)) for snapshot, at in here]
    newest = [each for each in commits if each.standing is Standing.NEWEST]
    if wished is not None and not newest:
        revision = named(wished)
        newest = [Listed(revision.label, Standing.NEWEST, "not downloaded yet", revision=revision)]
    return [*newest, *(each for each in commits if each.standing is not Standing.NEWEST)]


def _commit(snapshot: Snapshot, at: float, wished: str | None, revision: Revision) -> Listed:
    is_wished = snapshot.sha == wished
    return Listed(
        revision.label,
        Standing.NEWEST if is_wished else Standing.OLDER,
        "" if is_wished else "the hub names another commit now",
        revision=revision,
        path=str(snapshot.folder),
        bytes=sum(file.size for file in snapshot.files if holds_weights(file.name)),
        written_at=at,
    )
