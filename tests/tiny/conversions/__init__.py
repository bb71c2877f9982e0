"""Wrong conversions, which pass every check: by them limits of a comparison are tried."""

from pathlib import Path

from hotreload.tiny import write_tiny
from tests.tiny.conversions.conversion import Conversion, Past
from tests.tiny.conversions.misplaced import MISPLACED
from tests.tiny.conversions.misscaled import MISSCALED
from tests.tiny.conversions.outdated import OUTDATED

__all__ = ["CONVERSIONS", "Conversion", "Past", "conversion", "write_wrong"]

CONVERSIONS: tuple[Conversion, ...] = (*MISPLACED, *MISSCALED, *OUTDATED)


def conversion(kind: str) -> Conversion:
    """The one of that name."""
    return next(each for each in CONVERSIONS if each.kind == kind)


def write_wrong(folder: Path, kind: str, steps: int, arch: str = "qwen3") -> Path:
    """A checkpoint that was trained for so many steps, and converted so."""
    return write_tiny(folder, arch=arch, steps=steps, damage=conversion(kind).damage(arch, steps))
