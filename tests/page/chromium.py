"""A real Chromium without a screen, driven over DevTools on two pipes; no driver to install."""

import asyncio
import base64
import itertools
import json
import os
import shutil
import signal
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.waiting import PATIENCE

CHROMIUM = shutil.which("chromium")
LONGEST_MESSAGE = 64 * 2**20
ARTEFACTS = Path(__file__).parent.parent.parent / ".cache" / "artefacts" / "page"
KEYS = {"Enter": ("\r", 13), "Tab": ("\t", 9), " ": (" ", 32)}

ON_ITS_LOOP = pytest.mark.asyncio(loop_scope="module")
"""A module has one browser, and so one loop."""

Fields = dict[str, Any]
Test = Callable[..., Coroutine[Any, Any, None]]


def needs_chromium(test: Test) -> Test:
    """Run a test on the loop of its module's browser, where there is one."""
    why = "there is no chromium: apt-get install chromium"
    marked: Test = ON_ITS_LOOP(pytest.mark.skipif(CHROMIUM is None, reason=why)(test))
    return marked


class Tab:
    """One page in the browser, what went wrong in it, and ways to look at it and type."""

    def __init__(self, browser: "Browser", session: str) -> None:
        self._browser = browser
        self._session = session
        self._forgiven: tuple[str, ...] = ()

    async def call(self, method: str, **params: Any) -> Fields:
        return await self._browser.call(method, params, self._session)

    async def open(self, url: str) -> None:
        for domain in ("Page", "Runtime", "Log", "Network"):
            await self.call(f"{domain}.enable")
        await self.call("Page.navigate", url=url)
        await self.until("document.readyState === 'complete'")

    async def ask(self, expression: str) -> Any:
        """The value of an expression in the page; a promise is waited for."""
        answer = await self.call(
            "Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True
        )
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    async def until(self, expression: str) -> None:
        """Wait until it is true; the page looks at each frame it draws."""
        turn = f"({expression}) ? done() : requestAnimationFrame(look)"
        try:
            async with asyncio.timeout(PATIENCE):
                await self.ask(f"new Promise(done => {{ const look = () => {turn}; look(); }})")
        except TimeoutError:
            shown = await self.ask("document.body.innerText")
            raise TimeoutError(f"never true: {expression}\n{shown}\n{self.faults()}") from None

    async def text(self, selector: str) -> str:
        return str(await self.ask(f"document.querySelector({json.dumps(selector)}).innerText"))

    async def until_text(self, selector: str, *words: str) -> None:
        """Wait until an element says all of these."""
        said = f"document.querySelector({json.dumps(selector)})?.innerText"
        await self.until(" && ".join(f"{said}?.includes({json.dumps(word)})" for word in words))

    async def press(self, key: str, *, shift: bool = False) -> None:
        text, code = KEYS[key]
        fields = {"key": key, "code": key, "windowsVirtualKeyCode": code, "text": text}
        modifiers = 8 if shift else 0
        await self.call("Input.dispatchKeyEvent", type="keyDown", modifiers=modifiers, **fields)
        await self.call("Input.dispatchKeyEvent", type="keyUp", modifiers=modifiers, **fields)

    async def type(self, text: str) -> None:
        await self.call("Input.insertText", text=text)

    async def look(self, width: int = 1180, scheme: str = "light") -> None:
        """Be so wide, and light or dark."""
        await self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=900,
            deviceScaleFactor=1,
            mobile=False,
        )
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        await self.call("Emulation.setEmulatedMedia", features=features)

    async def shoot(self, name: str) -> Path:
        """Keep a picture of the whole page, and say where."""
        shot = await self.call("Page.captureScreenshot", captureBeyondViewport=True)
        ARTEFACTS.mkdir(parents=True, exist_ok=True)
        file = ARTEFACTS / f"{name}.png"
        file.write_bytes(base64.b64decode(shot["data"]))
        print(f"screenshot: {file}")
        return file

    def faults(self) -> list[str]:
        """What stands in the console as an error or a warning, and exceptions nobody caught."""
        said = [words for event in self.events() if (words := _fault(event)) is not None]
        return [words for words in said if not any(part in words for part in self._forgiven)]

    def events(self) -> list[Fields]:
        """All that the browser has said of this tab."""
        return [each for each in self._browser.events if each.get("sessionId") == self._session]

    def forgive(self, *parts: str) -> None:
        """An answer that is no 200, and a server that is away, are errors in a console."""
        self._forgiven += parts


def _fault(event: Fields) -> str | None:
    params = event["params"]
    match event["method"]:
        case "Log.entryAdded" if params["entry"]["level"] in ("error", "warning"):
            return f"{params['entry']['text']} {params['entry'].get('url', '')}"
        case "Runtime.exceptionThrown":
            return json.dumps(params["exceptionDetails"])
        case "Runtime.consoleAPICalled" if params["type"] in ("error", "warning", "assert"):
            return json.dumps(params["args"])
    return None


class Browser:
    """The browser, which each test has a tab of."""

    def __init__(self, reader: asyncio.StreamReader, out: int) -> None:
        self._reader = reader
        self._out = out
        self._numbers = itertools.count(1)
        self._answers: dict[int, asyncio.Future[Fields]] = {}
        self.events: list[Fields] = []

    @asynccontextmanager
    async def tab(self) -> AsyncIterator[Tab]:
        """An empty tab, gone at the end; it shares nothing: each server has another port."""
        target = await self.call("Target.createTarget", {"url": "about:blank"})
        attach = {**target, "flatten": True}
        session = (await self.call("Target.attachToTarget", attach))["sessionId"]
        try:
            yield Tab(self, session)
        finally:
            await self.call("Target.closeTarget", target)

    async def call(self, method: str, params: Fields, session: str | None = None) -> Fields:
        number = next(self._numbers)
        answer: asyncio.Future[Fields] = asyncio.get_running_loop().create_future()
        self._answers[number] = answer
        where = {"sessionId": session} if session else {}
        message = {"id": number, "method": method, "params": params, **where}
        os.write(self._out, json.dumps(message).encode() + b"\0")
        async with asyncio.timeout(PATIENCE + 10):
            return await answer

    async def read(self) -> None:
        while True:
            message = json.loads((await self._reader.readuntil(b"\0"))[:-1])
            if "id" not in message:
                self.events.append(message)
                continue
            answer = self._answers.pop(message["id"])
            if answer.cancelled():
                continue
            if "error" in message:
                answer.set_exception(RuntimeError(message["error"]["message"]))
            else:
                answer.set_result(message["result"])


@asynccontextmanager
async def chromium(profile: Path) -> AsyncIterator[Browser]:
    """A browser, which is gone at the end."""
    theirs_in, ours_out = os.pipe()
    ours_in, theirs_out = os.pipe()
    process = await _launch(profile, theirs_in, theirs_out)
    os.close(theirs_in)
    os.close(theirs_out)
    reader = asyncio.StreamReader(limit=LONGEST_MESSAGE)
    loop = asyncio.get_running_loop()
    pipe = os.fdopen(ours_in, "rb", 0)
    transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), pipe)
    browser = Browser(reader, ours_out)
    reading = asyncio.create_task(browser.read())
    try:
        yield browser
    finally:
        reading.cancel()
        os.killpg(process.pid, signal.SIGKILL)  # its renderers too
        await process.wait()
        transport.close()
        os.close(ours_out)


async def _launch(profile: Path, theirs_in: int, theirs_out: int) -> asyncio.subprocess.Process:
    options = [
        "--headless=new",
        "--remote-debugging-pipe",
        "--no-sandbox",  # tests may run as root, who has none
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--no-first-run",
        "--disable-background-networking",
        "--hide-scrollbars",
        f"--user-data-dir={profile}",
    ]
    # DevTools reads from descriptor 3 and writes to 4.
    script = f'exec "$@" 3<&{theirs_in} 4>&{theirs_out}'
    assert CHROMIUM is not None
    return await asyncio.create_subprocess_exec(
        "bash",
        *("-c", script, "bash", CHROMIUM, *options, "about:blank"),
        pass_fds=(theirs_in, theirs_out),
        start_new_session=True,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
        env={**os.environ, "HOME": str(profile)},
    )
