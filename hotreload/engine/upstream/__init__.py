"""Builds upstream's engine, mends its faults, works on it between its steps, and watches it."""
