"""How weights were loaded, and what changed with them, as people read it."""

from hotreload.cli.show import Fields, plain
from hotreload.figures import percent

LOADERS = {"own": "by our own loader", "upstream": "by upstream's loader"}


def loader_text(loading: Fields) -> str:
    """Say which loader made the weights, and why it was not our own."""
    words, why = LOADERS[loading["loader"]], loading["loader_reason"]
    return f"{words} ({plain(why)})" if why else words


def drift_text(loading: Fields) -> str:
    """Say how many leaves changed, and which of them most."""
    all_leaves = loading["leaves_staged"] + loading["leaves_shared"]
    words = f"{loading['leaves_changed']} of {all_leaves} leaves changed"
    if not loading["most_changed"]:
        return words
    return f"{words}, most: {plain(loading['most_changed'])}{_by(loading['largest_change'])}"


def _by(change: float | None) -> str:
    """By how much; nothing where no number says it, as with a leaf that was zero."""
    if change is None:
        return ""
    return f" by {percent(change)}"


def damage_text(drifted: Fields) -> str:
    """Name the live leaves that are no longer what went live."""
    shown = [plain(leaf) for leaf in drifted["leaves"]]
    more = drifted["leaves_total"] - len(shown)
    return ", ".join([*shown, *([f"and {more} more"] if more > 0 else [])])
