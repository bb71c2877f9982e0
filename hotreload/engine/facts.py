"""Facts of a built engine, found by looking at it: what it is, and what it can do."""

import dataclasses
import inspect
from typing import Any

from hotreload.engine.answering.grammars import grammars_of
from hotreload.engine.answering.prompts import Prompts
from hotreload.engine.answering.sampling_params import GRAMMARS
from hotreload.engine.answering.tool_calls import ToolFormat
from hotreload.engine.capabilities import Capabilities, EngineLimits
from hotreload.engine.upstream.parts import Parts
from hotreload.engine.upstream.tool_calls import known_parsers, parse_with, strict_tag
from hotreload.engine.versions import installed_version


def capabilities_of(parts: Parts, *, grammars: bool) -> Capabilities:
    """Find out what this engine can do; `grammars` says if it follows grammars."""
    from sgl_jax.srt.managers.io_struct import TokenizedGenerateReqInput
    from sgl_jax.srt.sampling.sampling_params import SamplingParams

    fields = {each.name for each in dataclasses.fields(TokenizedGenerateReqInput)}
    names = frozenset(inspect.signature(SamplingParams.__init__).parameters) - {"self"}
    scheduler = parts.running_scheduler.scheduler
    return Capabilities(
        # The field came with the repair of log-probabilities off the fast path.
        logprobs="return_output_logprob_only" in fields,
        grammars=grammars,
        seeds=bool(getattr(parts.engine.server_args, "enable_deterministic_sampling", False)),
        # Both versions check `logit_bias` and then ignore it.
        sampling=names - {"logit_bias", "stream_interval"} | GRAMMARS.keys(),
        tools="tools" in fields,
        n="n" in fields,
        flush=hasattr(scheduler, "flush_cache"),
        pause=hasattr(scheduler, "pause_generation"),
    )


def tokenizer_of(parts: Parts) -> Any:
    """The front's; on a rank without one that of the scheduler, which is the same."""
    front = parts.tokenizer_manager
    return parts.running_scheduler.scheduler.tokenizer if front is None else front.tokenizer


def make_prompts(parts: Parts) -> Prompts:
    """Make what checks and encodes requests for this engine; it blocks."""
    tokenizer, limits = tokenizer_of(parts), limits_of(parts)
    grammars = grammars_of(parts.running_scheduler.scheduler, tokenizer)
    can = capabilities_of(parts, grammars=grammars is not None)
    return Prompts(tokenizer, limits, can, grammars, calling_of(parts, tokenizer, can))


def calling_of(parts: Parts, tokenizer: Any, can: Capabilities) -> ToolFormat:
    """Find out how its model calls tools; ConfigError for a parser that this release has not."""
    asked = getattr(parts.engine.server_args, "tool_call_parser", None)
    template = getattr(tokenizer, "chat_template", None)
    return ToolFormat(
        template, known_parsers(), parse_with, strict_tag, grammars=can.grammars, asked=asked
    )


def limits_of(parts: Parts) -> EngineLimits:
    """Limits of the running engine."""
    scheduler = parts.running_scheduler.scheduler
    return EngineLimits(
        vocabulary=scheduler.model_config.vocab_size,
        input_tokens=scheduler.max_req_input_len,
        total_tokens=scheduler.model_config.context_len,
        at_once=scheduler.max_running_requests,
    )


def facts_of(parts: Parts) -> dict[str, Any]:
    """Return the model, devices and settings of the engine, under upstream's names."""
    import jax.numpy as jnp

    given, runner = parts.engine.server_args, parts.model_runner
    scheduler, model = parts.running_scheduler.scheduler, runner.model_config.hf_config
    return {
        "device": given.device,
        "devices": [str(device) for device in runner.mesh.devices.flat],
        "tp_size": given.tp_size,
        "dp_size": given.dp_size,
        "dtype": str(jnp.dtype(runner.model_config.dtype)),
        "load_format": given.load_format,
        "engine_version": installed_version("sglang-jax"),
        "ep_size": getattr(given, "ep_size", 1),
        "context_length": scheduler.model_config.context_len,
        "max_req_input_len": scheduler.max_req_input_len,
        "max_total_tokens": int(scheduler.max_total_num_tokens),
        "max_prefill_tokens": int(scheduler.max_prefill_tokens),
        "max_running_requests": int(scheduler.max_running_requests),
        "model_type": getattr(model, "model_type", None),
        "architectures": list(getattr(model, "architectures", None) or ()),
    }
