"""The parts of following a Hugging Face Hub: asking it, waiting for it, downloading, keeping.

`client` asks, `faults` says when to ask again, `download` lays files down and holds them
against the hub's digests, `snapshots` is the folder they stay in. `sources/huggingface.py` joins
these parts into a source.
"""
