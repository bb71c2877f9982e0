"""An update in steps, with asyncio: an older answer goes on under the weights that it began under.

Begin with `hotreload tiny ./model --say "policy 1"` and the same for `./step_2`.
"""

import asyncio

from hotreload import AsyncHotEngine

LONG = {"temperature": 0, "max_new_tokens": 200, "ignore_eos": True}
SMALL = {"context_length": 256, "max_total_tokens": 4096, "max_running_requests": 8}
SMALL["chunked_prefill_size"] = 256


async def watched(hot, given):
    """Put new weights into an `AsyncHotEngine` while an answer that began before goes on."""
    pieces = hot.stream("Who?", LONG)
    began = await anext(pieces)
    async with await hot.stage(given, name="step 12") as staged:  # checked and loaded
        await staged.probe()  # where no client sees it
        generation = await staged.flip()  # live; without the line above it probes first
    later, now = await asyncio.gather(anext(pieces), hot.generate("Who are you?"))
    await pieces.aclose()
    return generation, [each["meta_info"]["generation"] for each in (began, later, now)]


async def main():
    """Start an engine on this loop."""
    async with await AsyncHotEngine.start("./model", device="cpu", args=SMALL) as hot:
        print(await watched(hot, "./step_2"))


if __name__ == "__main__":
    asyncio.run(main())
