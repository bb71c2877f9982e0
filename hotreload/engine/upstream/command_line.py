"""The command line of `python -m sgl_jax.launch_server`, read by its own parser."""

import argparse
import dataclasses
from collections.abc import Sequence
from typing import Any

FIELD_NAMES = {"tensor_parallel_size": "tp_size", "data_parallel_size": "dp_size"}
"""The fields of upstream's ServerArgs whose flags have another name."""


def read_command_line(command: Sequence[str], program: str) -> dict[str, Any]:
    """Return the arguments that a command gives, by the names of upstream's ServerArgs.

    A flag that the installed release does not know ends the process as upstream ends it. A flag
    without a field in ServerArgs is left out: upstream drops it, too.
    """
    from sgl_jax.srt.server_args import ServerArgs

    usage = f"{program} --model-path MODEL [--watch DIR | --hub ORG/NAME] [sglang-jax's flags]"
    parser = argparse.ArgumentParser(prog=program, usage=usage)  # its own has 150 lines
    ServerArgs.add_cli_args(parser)
    for action in parser._actions:
        action.default = argparse.SUPPRESS  # so that only what was given is found
    found, unknown = parser.parse_known_args(command)
    # A multimodal server has flags of its own; the caller says that there is none here.
    if unknown and not getattr(found, "multimodal", False):
        parser.error(f"unrecognized arguments: {' '.join(unknown)}")
    named = {FIELD_NAMES.get(name, name): value for name, value in vars(found).items()}
    known = {each.name for each in dataclasses.fields(ServerArgs)}
    return {name: value for name, value in named.items() if name in known and value is not None}
