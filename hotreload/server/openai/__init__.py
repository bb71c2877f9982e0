"""OpenAI's API: its requests put into the engine's schema, the engine's answers into its own.

Written here and not taken from sglang-jax, whose serving classes drop unknown parameters without
a word, invent a chat template, run it on the event loop and ask the engine past the gate.
"""
