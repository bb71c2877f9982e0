"""Reads the page for gateways as they do, and knows what it promises."""

from collections.abc import Mapping

from prometheus_client.parser import text_string_to_metric_families

ALWAYS = {
    "sglang:num_running_reqs": "gauge",
    "sglang:num_queue_reqs": "gauge",
    "sglang:prompt_tokens": "counter",
    "sglang:generation_tokens": "counter",
    "sglang:gen_throughput": "gauge",
    "sglang:cache_hit_rate": "gauge",
    "sglang:time_to_first_token_seconds": "histogram",
    "sglang:e2e_request_latency_seconds": "histogram",
    "sglang:inter_token_latency_seconds": "histogram",
}
OF_A_POOL = dict.fromkeys(
    [
        "sglang:token_usage",
        "sglang:cache_config_info",
        "sglang:page_size",
        "sglang:num_pages",
    ],
    "gauge",
)
"""They are there once an engine has said how large its pool is."""
BUCKETS = {
    "time_to_first_token": "0.1 0.2 0.4 0.6 0.8 1 2 4 6 8 10 20 40 60 80 100 200 400",
    "e2e_request_latency": "0.1 0.2 0.4 0.6 0.8 1 2 4 6 8 10 20 40 60 80 100 200 400 "
    "600 1200 1800 2400",
    "inter_token_latency": "0.002 0.004 0.006 0.008 0.01 0.015 0.02 0.025 0.03 0.035 0.04 0.06 "
    "0.08 0.1 0.2 0.4 0.6 0.8 1 2 4 6 8",
}
"""Those of SGLang."""


def kinds_of(page: str) -> dict[str, str]:
    """The type of each of SGLang's metrics on the page."""
    families = text_string_to_metric_families(page)
    return {each.name: each.type for each in families if each.name.startswith("sglang:")}


def read(page: str) -> dict[str, float]:
    """The value of each series by its name; a bucket's with its bound. Each is there once."""
    values: dict[str, float] = {}
    for family in text_string_to_metric_families(page):
        if not family.name.startswith("sglang:"):
            continue
        for sample in family.samples:
            name = sample.name.removeprefix("sglang:")
            name += f" {float(sample.labels['le']):g}" if "le" in sample.labels else ""
            assert name not in values, f"a gateway takes the first series of {name}"
            values[name] = sample.value
    return values


def labels_of(page: str, name: str) -> Mapping[str, str]:
    """The labels of the only series of this name."""
    families = text_string_to_metric_families(page)
    [sample] = next(each.samples for each in families if each.name == f"sglang:{name}")
    return sample.labels
