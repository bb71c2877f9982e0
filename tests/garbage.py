"""Keeps what imports and pytest hold out of every garbage collection: a quarter of the time.

That is half a million objects, and an engine has all there is looked at twice: when it has started,
before it is frozen, and at its end, when all is thawed (`hotreload/engine/upstream/frozen.py`). So
in the process of the tests nothing is thawed, and what is there when a module ends stays frozen: a
collection looks at what its tests have made. Tests that are about this, or measure, have it as it
is in a daemon.
"""

import gc
from collections.abc import Generator, Iterator

import pytest

AS_IN_A_DAEMON = (
    "tests/bench/",
    "tests/soak/",
    "tests/engine/test_four_engines.py",
    "tests/engine/test_frozen.py",
    "tests/engine/test_hot_end.py",
    "tests/integration/test_replicas.py",
)
"""Tests of what an engine leaves when it ends, and those that measure."""

MANY = 20_000
"""Objects that are left when a module ends, and stay: each engine leaves what JAX has traced, until
one collection in a process that had thirty takes half a second."""

_freeze, _unfreeze = gc.freeze, gc.unfreeze


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Generator[None, object, object]:
    """Look for no garbage in what pytest collects, nor in what engines import: it stays."""
    gc.disable()
    try:
        done = yield
        if any(item.get_closest_marker("real_engine") for item in session.items):
            from hotreload.engine.upstream.build import import_upstream

            import_upstream()
        return done
    finally:
        gc.enable()
        _keep_frozen()


def _keep_frozen() -> None:
    """Freeze all there is, for good."""
    gc.collect()
    _freeze()
    gc.freeze = gc.unfreeze = _nothing


def _nothing() -> None:
    """What there is stays as it is."""


@pytest.fixture(autouse=True, scope="module")
def _as_in_a_daemon(request: pytest.FixtureRequest) -> Iterator[None]:
    """Let tests that need it freeze and thaw what there is."""
    needs_it = request.node.nodeid.startswith(AS_IN_A_DAEMON)
    if needs_it:
        gc.freeze, gc.unfreeze = _freeze, _unfreeze
    yield
    if needs_it or len(gc.get_objects(generation=2)) > MANY:
        _keep_frozen()
