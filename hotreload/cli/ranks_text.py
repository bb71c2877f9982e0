"""Which of several hosts of one engine a daemon is, as people read it."""

from hotreload.cli.show import Fields, plain


def follows(status: Fields) -> bool:
    """Whether it decides nothing and answers nobody: another host does."""
    return bool((status.get("rank") or {}).get("own"))


def rank_text(rank: Fields) -> str:
    """Say which rank this is, and who decides."""
    which = f"{rank['own']} of {rank['of']}"
    if not rank["own"]:
        return f"{which}, decides and answers"
    return f"{which}; rank 0, met at {plain(rank['leader'])}, decides and answers"
