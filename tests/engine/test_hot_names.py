"""Models of Tunix, bonsai and MaxText go live by their own names, from the device they lie on."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from hotreload import HotEngine, HotTerms, bonsai_names, maxtext_names, tunix_names
from hotreload.errors import CheckpointIncompatible
from hotreload.tiny import write_tiny
from hotreload.tiny.weights import ARCHS, LAYERS
from tests.engine import real
from tests.hot.bonsai_model import bonsai_model
from tests.hot.maxtext_model import MODELS, maxtext_model
from tests.hot.on_accelerators import forbid_reading, take_for_accelerators
from tests.hot.tunix_model import tunix_model

pytestmark = pytest.mark.real_engine

import jax  # noqa: E402
from flax import nnx  # noqa: E402
from jax.sharding import AxisType, Mesh, NamedSharding  # noqa: E402
from jax.sharding import PartitionSpec as P  # noqa: E402

Tree = dict[str, Any]
TERMS = HotTerms(dtype_change="cast")
QUERIES = "decoder.layers.self_attention.query.kernel"


@dataclass
class Served:
    hot: HotEngine
    arch: str
    root: Path

    def leaves(self) -> dict[str, bytes]:
        """Every live leaf's bytes."""
        live = self.hot.asynchronous._replica.engine.weights.live_leaves()
        return {path: np.asarray(leaf).tobytes() for path, leaf in live.items()}

    def of_files(self, number: int) -> dict[str, bytes]:
        """The leaves that a checkpoint's files make."""
        self.hot.update(write_tiny(self.root / f"{number}", f"policy {number}", arch=self.arch))
        return self.leaves()

    def said(self) -> str:
        return str(self.hot.generate("Who serves?", real.GREEDY)["text"])


@pytest.fixture(
    scope="module",
    # How each one's leaves lie in an engine `test_sglang.py` and `test_own_loader.py` look at, and
    # `tests/hot/test_ready_made_names.py` by day at the file that each becomes.
    params=[
        each if each == "qwen3" else pytest.param(each, marks=pytest.mark.at_night)
        for each in ARCHS
    ],
)
def served(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Served]:
    root = tmp_path_factory.mktemp(f"own-{request.param}")
    model = write_tiny(root / "model", "policy 0", arch=request.param)
    with HotEngine(model, device="cpu", dtype="bfloat16", args=real.ARGS, terms=TERMS) as hot:
        yield Served(hot, request.param, root)


def tunix(arch: str, number: int) -> tuple[Tree, Any]:
    return tunix_model(number, arch), tunix_names


def bonsai(arch: str, number: int) -> tuple[Tree, Any]:
    return bonsai_model(number, arch), bonsai_names


def maxtext(arch: str, number: int) -> tuple[Tree, Any]:
    return maxtext_model(number, arch), maxtext_names(MODELS[arch])


def maxtext_by_layers(arch: str, number: int) -> tuple[Tree, Any]:
    return maxtext_model(number, arch, scanned=False), maxtext_names(MODELS[arch])


Model = Callable[[str, int], tuple[Tree, Any]]
MODELS_OF: list[Model] = [tunix, bonsai, maxtext, maxtext_by_layers]


@pytest.mark.parametrize("model", MODELS_OF)
def test_a_model_goes_live_from_its_device_as_its_files_would(
    served: Served, model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    number = 20 + MODELS_OF.index(model)
    wanted, before = served.of_files(number), served.hot.fingerprint
    served.of_files(19)
    take_for_accelerators(monkeypatch)
    forbid_reading(monkeypatch)
    tree, names = model(served.arch, number)
    state = nnx.State(jax.tree.map(nnx.Param, jax.tree.map(jax.device_put, tree)))
    served.hot.update(state, names=names)
    assert served.leaves() == wanted
    assert (served.hot.fingerprint, served.said()) == (before, f"policy {number}")


def test_over_the_host_it_is_the_same(served: Served) -> None:
    wanted = served.of_files(30)
    served.of_files(31)
    tree, names = maxtext(served.arch, 30)
    served.hot.update(tree, names=names)
    assert (served.leaves(), served.said()) == (wanted, "policy 30")
    served.of_files(31)
    served.hot.update(jax.tree.map(jax.device_put, tree), names=names)
    assert served.leaves() == wanted


@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit])
@pytest.mark.parametrize("along", [0, 1])
def test_stacks_that_several_devices_share_are_the_same(
    served: Served, along: int, kind: AxisType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Along the layers, too: then no device could take one out alone, so the host does."""
    wanted = served.of_files(32)
    served.of_files(33)
    take_for_accelerators(monkeypatch)
    mesh = Mesh(np.array(jax.devices()[:LAYERS]), ("x",), axis_types=(kind,))
    tree, names = maxtext(served.arch, 32)

    def shared(array: Any) -> Any:
        is_split = array.ndim > along and array.shape[along] % LAYERS == 0
        spec = P(*[None] * along, "x") if is_split else P()  # type: ignore[no-untyped-call]
        return jax.device_put(array, NamedSharding(mesh, spec))

    served.hot.update(jax.tree.map(shared, tree), names=names)
    assert (served.leaves(), served.said()) == (wanted, "policy 32")


def test_a_tree_that_does_not_fit_is_refused_by_its_own_path(served: Served) -> None:
    live = served.hot.generation
    tree, names = maxtext(served.arch, 34)
    query = tree["decoder"]["layers"]["self_attention"]["query"]
    query["kernel"] = query["kernel"][..., :64]
    with pytest.raises(
        CheckpointIncompatible,
        match=rf"the engine serves \[256, 256\] \(it was given as '{QUERIES}'\)",
    ):
        served.hot.update(tree, names=names)
    tree, names = maxtext(served.arch, 34)
    mlp = tree["decoder"]["layers"]["mlp"]["wi_0"]
    mlp["kernel"] = np.repeat(mlp["kernel"], 2, axis=1)
    with pytest.raises(
        CheckpointIncompatible,
        match=r"not used by the engine.*given as 'decoder\.layers\.mlp\.wi_0\.kernel'",
    ):
        served.hot.update(tree, names=names)
    assert served.hot.generation == live


def test_a_part_of_a_stack_is_a_part_of_the_tensors(served: Served) -> None:
    wanted = served.of_files(35)
    tree, names = maxtext(served.arch, 35)
    of_mlp = {"decoder": {"layers": {"mlp": tree["decoder"]["layers"]["mlp"]}}}
    with served.hot.stage(of_mlp, names=names) as staged:
        assert staged.loading is not None
        of_the_mlp = 3 * LAYERS
        assert (staged.loading.leaves_staged, staged.loading.leaves_changed) == (of_the_mlp, 0)
        staged.flip()
    assert served.leaves() == wanted


def test_bfloat16_queries_of_a_llama_may_be_off_by_a_last_bit(served: Served) -> None:
    if served.arch != "llama":
        return
    served.of_files(36)
    tree = maxtext_model(36, "llama", dtype=ml_dtypes.bfloat16)
    served.hot.update(tree, names=maxtext_names("llama3.1"))
    assert served.said() == "policy 36"
