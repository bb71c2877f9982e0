"""The real daemon on an engine of words: a process of its own that starts in a second.

`python -m tests.words serve …` is `hotreload serve …` but for the one call that starts an engine.
"""
