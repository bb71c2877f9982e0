"""Checks the settings of an engine over several hosts: what it needs, and what it cannot do."""

from collections.abc import Iterator

from hotreload.settings.given import Where
from hotreload.settings.kinds import is_local
from hotreload.settings.sections import Settings

Unfit = tuple[Where, str]
"""A setting, and why it cannot be so."""


def unfit_for_hosts(settings: Settings) -> Iterator[Unfit]:
    """Each setting that does not fit the number of hosts, with what to change."""
    if settings.engine.nnodes == 1:
        yield from _of_several(settings)
    else:
        yield from _of_these(settings)
        yield from _not_with_several(settings)


def _of_several(settings: Settings) -> Iterator[Unfit]:
    """A fault for each setting that speaks of other hosts, if there are none."""
    why = "is for an engine over several hosts: set [engine] nnodes, too, or leave it out"
    if (rank := settings.engine.node_rank) > 0:
        yield ("engine", "node_rank"), f"{rank} {why}"
    if (address := settings.engine.dist_init_addr) is not None:
        yield ("engine", "dist_init_addr"), f"{address} {why}"
    if (secret := settings.engine.join_secret_file) is not None:
        yield ("engine", "join_secret_file"), f"{secret} {why}"


def _of_these(settings: Settings) -> Iterator[Unfit]:
    engine = settings.engine
    count = engine.nnodes
    if engine.dist_init_addr is None:
        words = f"not set, and nnodes = {count}; name rank 0's host and a port of it"
        yield ("engine", "dist_init_addr"), words
    elif not (engine.join_secret_file or engine.insecure_join or is_local(engine.dist_init_addr)):
        words = f"whoever reaches {engine.dist_init_addr} could run programs on every host"
        todo = "set [engine] join_secret_file, the same on all hosts, or serve --insecure-join"
        yield ("engine", "dist_init_addr"), f"{words}: {todo}"
    if engine.node_rank >= count:
        words = f"there is no rank {engine.node_rank} with nnodes = {count}: 0 to {count - 1}"
        yield ("engine", "node_rank"), words
    if engine.tp % count:
        words = f"{engine.tp} devices cannot be shared out evenly with nnodes = {count}"
        yield ("engine", "tp"), f"{words}; make it a multiple of that"


def _not_with_several(settings: Settings) -> Iterator[Unfit]:
    """A fault for each setting that an engine over several hosts cannot follow yet."""
    engine, reload = settings.engine, settings.reload
    beside = f"with nnodes = {engine.nnodes}"
    if engine.replicas > 1:
        words = f"only 1 {beside}: one daemon leads one engine there"
        yield ("engine", "replicas"), words
    if engine.loader == "upstream":
        words = f"not 'upstream' {beside}: that loader would stop every rank to load; use 'auto'"
        yield ("engine", "loader"), words
    if engine.boot == "dummy":
        words = f"not 'dummy' {beside}: the ranks would not have the same weights; use 'model'"
        yield ("engine", "boot"), words
    if engine.args.get("schedule_policy") == "random":
        words = f"not 'random' {beside}: the ranks would not take the same request next"
        yield ("engine", "args", "schedule_policy"), words
    if reload.keep_previous == "host":
        words = f"not 'host' {beside}: no host holds all of the weights; use 'device' or 'none'"
        yield ("reload", "keep_previous"), words
    if reload.memory != "double":
        words = f"not {reload.memory!r} {beside}: no host holds all of the weights; use 'double'"
        yield ("reload", "memory"), words
