"""Stop strings: how far back the scheduler looks for them."""

from typing import Any


def look_by_bytes(sampling_params: type) -> None:
    """Let the scheduler look back as many tokens as a stop string has bytes.

    0.0.2 and main encode each stop string on our loop to learn how many tokens it has, once for
    every prompt of a batch: five requests of 50 kB held up everybody for 8 s. A model seldom cuts a
    text into tokens as an encoder does, but never into more tokens than the text has bytes, plus
    one for a mark that some tokenizers put before it. Goes when `normalize` does not encode.
    """

    def normalize(self: Any, tokenizer: Any) -> None:
        stops = self.stop_strs or []
        self.stop_strs = [stops] if isinstance(stops, str) else list(stops)
        longest = max((len(stop.encode()) for stop in self.stop_strs), default=0)
        self.stop_str_max_len = longest + 1 if longest else 0

    sampling_params.normalize = normalize  # type: ignore[attr-defined]
