"""A folder that held checkpoints and holds none now is a trouble, whoever remembers that it did."""

from pathlib import Path

import pytest

from hotreload.core.ledger import PastGeneration
from hotreload.events import TroubleNews
from hotreload.facts.files import Mount
from hotreload.sources import look as looks
from hotreload.types import Revision
from tests.sources.watching import Watching, forget, watching, write


def told(watch: Watching) -> list[str | None]:
    return [each.message for each in watch.happened if isinstance(each, TroubleNews)]


def lay(number: int, folder: Path) -> PastGeneration:
    return PastGeneration(number, Revision(f"r{number}", folder.name), "fp", str(folder), 0.0)


async def test_a_folder_that_is_emptied_is_told_until_a_checkpoint_is_back(root: Path) -> None:
    for step in (1, 2):
        write(root / f"step_{step}")
    async with watching(root) as watch:
        await watch.wished("step_2")
        forget(root / "step_2")
        await watch.look()
        assert told(watch) == []
        forget(root / "step_1")
        await watch.until(lambda: len(told(watch)) == 1)
        words = told(watch)[0]
        assert words is not None
        assert words.startswith(f"{root} holds no checkpoint now; it held 1 checkpoint, step_1; ")
        write(root / "step_3")
        await watch.until(lambda: len(told(watch)) == 2)
        assert told(watch)[1] is None


async def test_a_folder_that_is_gone_is_told_with_where_it_lay(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mounts = [Mount(root, "nfs4")]
    monkeypatch.setattr(looks, "mount_of", lambda path: mounts[-1])
    write(root / "step_1")
    write(root / "step_2")
    async with watching(root) as watch:
        await watch.wished("step_2")
        mounts.append(Mount(Path("/"), "ext4"))
        root.rename(root.with_name("away"))
        await watch.until(lambda: len(told(watch)) == 1)
        assert told(watch) == [
            f"{root}: cannot be looked at: No such file or directory; it held 2 checkpoints, "
            f"the newest step_2; it lay on {root} (nfs4), and lies on / (ext4) now"
        ]


async def test_what_went_live_in_earlier_lives_counts_as_held(root: Path) -> None:
    lived = [lay(1, root.parent / "model"), lay(2, root / "step_1"), lay(3, root / "step_2")]
    async with watching(root, generations=lambda: lived) as watch:
        (words,) = told(watch)
        assert words is not None
        assert "; generation 3 (step_2) lay there, and 1 before it; it lies on /" in words


async def test_a_folder_in_which_nothing_ever_lay_is_no_trouble(root: Path) -> None:
    lived = [lay(1, root.parent / "model"), PastGeneration(2, Revision("n", "n"), "fp", "", 0.0)]
    async with watching(root, generations=lambda: lived) as watch:
        await watch.look()
        assert watch.waiting is not None
        assert "no checkpoint" in watch.waiting
        assert told(watch) == []


async def test_a_pattern_that_leaves_all_out_is_no_trouble(root: Path) -> None:
    write(root / "step_1")
    async with watching(
        root, pattern="other_*", generations=lambda: [lay(1, root / "step_1")]
    ) as w:
        await w.look()
        assert told(w) == []
