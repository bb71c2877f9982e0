"""Checks and encodes a client's request, hands it to the engine, and follows its answer."""
