"""What a start is at, as people read it."""

from hotreload.cli.show import Fields, plain
from hotreload.figures import duration, size


def boot_text(boot: Fields) -> str:
    """Say which step of a start runs, for how long, how far it is and how long it took last."""
    words = f"{plain(boot['doing'])}, for {duration(boot['step_seconds'])}"
    if boot["usual_seconds"] is not None:
        words += f" ({duration(boot['usual_seconds'])} last time)"
    return f"{words}, {_how_far(boot)}" if boot["total"] else words


def _how_far(boot: Fields) -> str:
    done, total = boot["done"], boot["total"]
    if boot["unit"] == "bytes":
        return f"{size(done)} of {size(total)}"
    return f"{done} of {total} {plain(boot['unit'])}"
