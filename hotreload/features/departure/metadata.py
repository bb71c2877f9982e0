"""Waits at Google's metadata server for a change: one quiet connection for each key."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Mapping
from urllib.parse import quote

log = logging.getLogger("hotreload.departure")

METADATA_KEYS = ("preempted", "maintenance-event")
MEANS = {
    "TRUE": "Google Cloud preempts it",
    "TERMINATE_ON_HOST_MAINTENANCE": "Google Cloud ends it for maintenance of its host",
}
"""The values that are notices; one that migrates the machine takes nothing away."""
WAIT_SECONDS = 300
"""Seconds after which the server answers though nothing has changed."""
RETRY_SECONDS = 5.0


async def notices_of_gce(
    key: str, environ: Mapping[str, str], again: float = RETRY_SECONDS
) -> AsyncGenerator[str | None]:
    """Yield what a key of the instance means, each time that it may have changed.

    As Google's own clients do, it asks the server that GCE_METADATA_HOST names.
    """
    host = environ.get("GCE_METADATA_HOST") or "metadata.google.internal"
    etag, fault = "", ""
    while True:
        try:
            async with asyncio.timeout(WAIT_SECONDS + 30):
                last = etag
                value, etag = await _wait_for_change(host, key, last)
        except (OSError, ValueError) as error:  # OSError: TimeoutError is one
            etag = ""
            if fault != str(error):
                todo = "look at GCE_METADATA_HOST and the network, or unset [departure] gce"
                words = f"{host} does not tell {key}: {error}"
                log.warning("departure.no_notices", extra={"why": words, "todo": todo})
            fault = str(error)
            await asyncio.sleep(again)
            continue
        fault = ""
        yield MEANS.get(value)
        if etag in ("", last):  # a server that does not wait must not be asked without a pause
            await asyncio.sleep(again)


async def _wait_for_change(host: str, key: str, etag: str) -> tuple[str, str]:
    """Return a value and its etag once it has another than `etag`; ValueError if it is none."""
    name, _, port = host.partition(":")
    how = f"wait_for_change=true&timeout_sec={WAIT_SECONDS}&last_etag={quote(etag or '0')}"
    reader, writer = await asyncio.open_connection(name, int(port or 80))
    try:
        writer.write(
            f"GET /computeMetadata/v1/instance/{key}?{how} HTTP/1.1\r\nHost: {host}\r\n"
            "Metadata-Flavor: Google\r\nConnection: close\r\n\r\n".encode()
        )
        head, _, body = (await reader.read(-1)).decode("latin-1").partition("\r\n\r\n")
    finally:
        writer.close()
    first, *lines = head.split("\r\n")
    fields = {each.partition(":")[0].lower(): each.partition(":")[2].strip() for each in lines}
    if " 200 " not in f"{first} ":
        raise ValueError(f"it answers {first!r}")
    if fields.get("metadata-flavor") != "Google":
        raise ValueError("it is no metadata server of Google's")
    return body.strip(), fields.get("etag", "")
