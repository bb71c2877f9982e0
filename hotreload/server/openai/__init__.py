"""OpenAI's API: translates its requests to the engine's schema, and the engine's answers back.

sglang-jax's own serving classes are not used: they ignore unknown parameters silently, invent a
chat template, run it on the event loop, and bypass the gate.
"""
