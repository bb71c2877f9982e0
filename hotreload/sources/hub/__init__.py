"""What following a Hugging Face Hub takes: asking it, waiting for it, downloading, keeping.

`client` asks, `patience` says when to ask again, `download` lays files down and holds them
against the hub's digests, `snapshots` is the folder they stay in. `huggingface.py` above joins
them to a source.
"""
