"""Compiles grammars before they reach the engine, and hands them to its scheduler compiled.

Upstream compiles them beside its scheduler, where one that does not compile ends the engine.
Knows llguidance, which upstream uses; nothing of prompts.
"""

import threading
from collections import OrderedDict
from collections.abc import Mapping
from copy import copy
from dataclasses import replace
from typing import Any
from weakref import WeakValueDictionary

import numpy as np

from hotreload.engine.answering.crews import Crew
from hotreload.engine.answering.items import Parsed
from hotreload.engine.answering.sampling_params import Key, grammar_of
from hotreload.engine.grammar_trials.program import fault_of, in_deep_thread, matcher_of
from hotreload.engine.grammar_trials.runner import Trial, Verdict
from hotreload.errors import BadRequest, NotServing, cut
from hotreload.threads import in_thread

KEPT_GRAMMARS = 64
KEPT_CHARACTERS = 2**18
"""Compiled grammars that are kept though no request uses them, and the characters of text they
may have together; the largest take a kilobyte of memory for each character."""
IN_USE_CHARACTERS = 2**20
"""Characters that all grammars in memory may have together: it is the daemon's memory."""
A_REQUEST = 8
"""Different grammars that one request may have."""
QUICK_SECONDS, SLOW_SECONDS = 0.05, 0.5
"""Seconds of the processor a grammar may take. Most take a hundredth of a second; one that takes
longer than QUICK_SECONDS is tried again apart from the others, which then do not wait for it."""
PARAMETER = {"json": "json_schema"}


class Compiled:
    """One compiled grammar, which many requests may follow.

    `why` says why a request could not follow it to its end, the last time that happened.
    """

    def __init__(self, key: Key, matcher: Any, eos: int) -> None:
        self.key = key
        self.why = ""
        self._matcher = matcher
        self._eos = eos

    def follow(self) -> "FollowedGrammar":
        """The way of one request through the grammar, from its start."""
        return FollowedGrammar(self, self._matcher.deep_copy(), self._eos)


class FollowedGrammar:
    """One request's way through its grammar; upstream's scheduler and sampler call these methods.

    Upstream's own class gives one state to all requests with the same text, leaves the rows of
    requests without a grammar empty, so that these answer at random, and fills one array again
    and again while the device may still read it.
    """

    def __init__(self, of: Compiled, matcher: Any, eos: int) -> None:
        self._of = of
        self._matcher = matcher
        self._eos = eos
        self._is_at_end = False

    @property
    def finished(self) -> bool:
        """True when the text is whole."""
        return self._is_at_end

    @finished.setter
    def finished(self, is_so: bool) -> None:
        # Upstream says after each token whether its request has ended, also when it has not.
        self._is_at_end = self._is_at_end or is_so

    def is_terminated(self) -> bool:
        """Say if the text is whole; upstream then ends the request."""
        return self._is_at_end

    def accept_token(self, token: int) -> None:
        """Take the sampled token; a ValueError aborts the request, other errors end the engine."""
        if self._is_at_end:
            return
        if token == self._eos and self._matcher.is_stopped() and not self._matcher.is_error():
            self._is_at_end = True
            return
        self._matcher.consume_token(token)
        if self._matcher.is_error():
            self._of.why = fault_of(self._matcher)
            raise ValueError(self._of.why)

    def allocate_vocab_mask(self, vocab_size: int, batch_size: int) -> np.ndarray[Any, Any]:
        """A new array for each step, in which everything is allowed."""
        return np.full((batch_size, (vocab_size + 31) // 32), -1, dtype=np.int32)

    def fill_vocab_mask(self, vocab_mask: np.ndarray[Any, Any], idx: int) -> None:
        """Allow only what may come next; after a fault anything, since the request ends."""
        row = vocab_mask[idx]
        if self._is_at_end or self._matcher.is_error():
            return
        allowed = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.int32)[: len(row)]
        if not self._matcher.is_error() and allowed.any():
            row[:] = 0  # the model may have more tokens than its tokenizer
            row[: len(allowed)] = allowed


class Grammars:
    """All grammars of one engine. Stands in its scheduler where upstream keeps its backend."""

    def __init__(self, backend: Any, tokenizer: Any) -> None:
        self._tokenizer = backend.llguidance_tokenizer
        setup = _setup(backend, tokenizer)
        self._quick, self._patient = Trial(setup, QUICK_SECONDS), Trial(setup, SLOW_SECONDS)
        self._quick_crew = Crew(1, "the compilation of a grammar")
        self._slow_crew = Crew(1, "the compilation of a slow grammar")
        self._known: WeakValueDictionary[Key, Compiled] = WeakValueDictionary()
        self._recent: OrderedDict[Key, Compiled] = OrderedDict()
        self._lock = threading.Lock()

    async def prepare_grammars(self, parsed: Parsed) -> Parsed:
        """The request with its grammars compiled; BadRequest has the compiler's words."""
        keys = {grammar_of(item.sampling_params) for item in parsed.items} - {None}
        if not keys:
            return parsed
        if len(keys) > A_REQUEST:
            raise BadRequest(f"{len(keys)} grammars in one request, there may be {A_REQUEST}")
        compiled = {key: await self.compile(key) for key in keys if key}
        items = (
            replace(item, grammar=compiled.get(grammar_of(item.sampling_params)))  # type: ignore[arg-type]
            for item in parsed.items
        )
        return replace(parsed, items=tuple(items))

    async def compile(self, key: Key) -> Compiled:
        """One grammar, compiled within bounds."""
        if (found := self._find(key)) is not None:
            return found
        verdict = await self._quick_crew.run(lambda cancel: self._quick.judge(key))
        if verdict.is_slow:
            verdict = await self._slow_crew.run(lambda cancel: self._patient.judge(key))
        grammar = _accept(key, verdict)
        return await in_thread(lambda cancel: self._compile(key, grammar))

    def close(self) -> None:
        """End the programs that try grammars."""
        self._quick.close()
        self._patient.close()

    def get_cached_or_future_value(self, key: Key) -> tuple[Any, bool]:
        """Give upstream's scheduler the grammar it asks for: compiled, never one to wait for."""
        from sgl_jax.srt.constrained.base_grammar_backend import INVALID_GRAMMAR_OBJ

        try:
            found = self._find(key) or self._compile(key, _accept(key, self._patient.judge(key)))
        except (BadRequest, NotServing):
            return INVALID_GRAMMAR_OBJ, True
        return found.follow(), True

    def reset(self) -> None:
        """Keep them: upstream forgets grammars when it flushes, but no weights are in them."""

    def _find(self, key: Key) -> Compiled | None:
        with self._lock:
            found = self._known.get(key)
            if found is not None:
                self._keep(key, found)
            return found

    def _compile(self, key: Key, grammar: str) -> Compiled:
        with self._lock:
            taken = sum(len(text) for _, text in self._known)
        if taken + len(key[1]) > IN_USE_CHARACTERS:
            words = f"{taken} characters of grammars are in use, there may be {IN_USE_CHARACTERS}"
            raise NotServing(words, code="grammars_full", retry_after=1)
        made: list[Any] = []
        in_deep_thread(lambda: made.append(matcher_of(self._tokenizer, grammar)))
        (matcher,) = made
        if matcher.is_error():
            raise _refusal_of(key, fault_of(matcher))
        compiled = Compiled(key, matcher, self._tokenizer.eos_token)
        with self._lock:
            self._known[key] = compiled
            self._keep(key, compiled)
        return compiled

    def _keep(self, key: Key, compiled: Compiled) -> None:
        self._recent[key] = compiled
        self._recent.move_to_end(key)
        while len(self._recent) > 1 and (
            len(self._recent) > KEPT_GRAMMARS
            or sum(len(text) for _, text in self._recent) > KEPT_CHARACTERS
        ):
            self._recent.popitem(last=False)


def grammars_of(scheduler: Any, tokenizer: Any) -> Grammars | None:
    """Take the place of upstream's backend; None when this engine has no backend that we know.

    In 0.1.0rc0 and main three errors in the scheduler end the engine: NotImplementedError for a
    grammar that does not compile, AttributeError for one that is aborted while it compiles, and
    CancelledError when another request waits for that one too. And every grammar is compiled a
    second time on the scheduler's thread. Goes when `get_cached_or_future_value` gives every
    request a state of its own and `move_ready_grammar_requests` survives each of these.
    An engine over several ranks follows none: each rank would look by its own clock whether one is
    compiled, and their batches would differ.
    """
    backend = getattr(scheduler, "grammar_backend", None)
    known = hasattr(backend, "llguidance_tokenizer") and hasattr(tokenizer, "backend_tokenizer")
    if not known or scheduler.nnodes > 1:
        return None
    grammars = Grammars(backend, tokenizer)
    scheduler.grammar_backend = grammars
    return grammars


def _setup(backend: Any, tokenizer: Any) -> Mapping[str, Any]:
    plain = copy(tokenizer.backend_tokenizer)
    plain.no_padding()
    plain.no_truncation()
    return {
        "tokenizer": plain.to_str(),
        "vocabulary": backend.llguidance_tokenizer.vocab_size,
        "eos": backend.llguidance_tokenizer.eos_token,
        "json": {
            "whitespace_flexible": backend.any_whitespace,
            "whitespace_pattern": backend.whitespace_pattern,
        },
    }


def _accept(key: Key, verdict: Verdict) -> str:
    if verdict.grammar is None:
        raise _refusal_of(key, verdict.fault)
    return verdict.grammar


def _refusal_of(key: Key, words: str) -> BadRequest:
    param = f"sampling_params.{PARAMETER.get(key[0], key[0])}"
    return BadRequest(f"{param}: {cut(words.strip(), 300)}", code="grammar", param=param)


def could_not_follow(compiled: Compiled) -> BadRequest:
    """The error for an answer that ended in the middle of its grammar."""
    return _refusal_of(compiled.key, f"the answer could not follow it to its end: {compiled.why}")
