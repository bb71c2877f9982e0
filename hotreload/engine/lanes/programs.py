"""The newer engine's ahead-of-time programs (SGLANG_JAX_AOT_DISPATCH), one set of leaves a lane.

Its dispatcher holds the leaves beside the compiled programs and drops both when it meets other
leaves: with two lanes it would compile at each turn. So each lane has a dispatcher, and a new one
begins with the programs of the old, since programs know shapes and no values.
"""

from typing import Any


def dispatcher_for(dispatcher: Any, leaves: list[Any]) -> Any:
    """A dispatcher for these leaves that needs not compile what the given one has compiled."""
    if dispatcher is None:
        return None
    model_def, state_def, old = dispatcher._stable_call_args
    made = type(dispatcher)(
        dispatcher._jit_fn,
        stable_call_args=(model_def, state_def, leaves),
        stable_flat_args=(model_def, leaves),
        name=dispatcher._name,
    )
    made._enabled = dispatcher._enabled
    for key, program in list(dispatcher._cache.items()):
        if isinstance(program, tuple) and (own := _with_leaves(program, old, leaves)):
            made._cache[key] = own
    return made


def _with_leaves(program: tuple[Any, ...], old: list[Any], new: list[Any]) -> Any:
    """The program with the new leaves at the places of the old; None if they cannot be found."""
    places = {id(leaf): place for place, leaf in enumerate(old)}
    before, (run, handlers, tree, held, *rest) = len(old), program
    found = [places.get(id(buffer), before) for buffer in held]
    if before in found:
        return None
    return (run, handlers, tree, [new[place] for place in found], *rest)
