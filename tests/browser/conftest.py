"""The app in a real browser: a server per service, and pages that notice what must not happen."""

import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

ROOT = Path(__file__).parents[2]
FAILURES = Path(__file__).parent / "failures"
CHROMIUM = ("/usr/bin/chromium", "/usr/bin/chromium-browser", "/usr/bin/google-chrome")
ARGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-default-apps",
    "--disable-extensions",
    "--disable-domain-reliability",
]
START_S = 60
SETTLE_MS = 60_000
# A busy machine may take its time to draw a field; a wait ends as soon as it is there.
expect.set_options(timeout=30_000)


@contextmanager
def serve(script: str, folder: Path, **environment: str) -> Iterator[str]:
    """Runs the app on a free port and returns its address."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    log_path = folder / "server.log"
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    with log_path.open("w") as log:
        server = subprocess.Popen(
            [sys.executable, "-m", "streamlit", "run", script, "--server.port", str(port)],
            cwd=ROOT,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=os.environ | {"HF_HUB_OFFLINE": "1", "PYTHONPATH": path} | environment,
        )
    address = f"http://127.0.0.1:{port}"
    end = time.monotonic() + START_S
    while True:
        try:
            with urllib.request.urlopen(f"{address}/_stcore/health", timeout=1) as answer:
                answer.read()
            break
        except OSError:
            if server.poll() is not None or time.monotonic() > end:
                server.kill()
                pytest.fail(f"the app did not start:\n{log_path.read_text()}")
            time.sleep(0.1)
    try:
        yield address
    finally:
        server.terminate()
        server.wait(10)


@pytest.fixture(scope="session")
def fake_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The app on the fake service."""
    with serve("tests/browser/app_fake.py", tmp_path_factory.mktemp("fake")) as address:
        yield address


@pytest.fixture(scope="session")
def slow_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The app on a fake service that takes its time."""
    folder = tmp_path_factory.mktemp("slow")
    with serve("tests/browser/app_fake.py", folder, FAKE_STEP_S="1.0") as address:
        yield address


@pytest.fixture(scope="session")
def real_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The app as people start it, on the embedded models."""
    with serve("app.py", tmp_path_factory.mktemp("real")) as address:
        yield address


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    installed = next((path for path in CHROMIUM if Path(path).exists()), None)
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=installed, args=ARGS)
        yield opened
        opened.close()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    report = yield
    setattr(item, f"report_{report.when}", report)
    return report


@pytest.fixture
def open_page(browser: Browser, request: pytest.FixtureRequest) -> Iterator[Callable[..., Page]]:
    """Returns a function that opens an address and waits until it is drawn.

    Afterwards no page may have asked another machine for anything, met an error, or shown a
    dialog.
    """
    contexts, troubles, pages = [], [], []

    def open_at(address: str, **options: object) -> Page:
        context = browser.new_context(
            viewport={"width": 1280, "height": 900}, locale="en-US", **options
        )
        contexts.append(context)
        page = context.new_page()
        pages.append(page)
        origin = "/".join(address.split("/")[:3])
        allowed = (origin, "data:", "blob:", origin.replace("http", "ws", 1))

        def on_request(asked: object) -> None:
            if not asked.url.startswith(allowed):
                troubles.append(f"request to {asked.url}")

        def on_console(message: object) -> None:
            if message.type == "error":
                troubles.append(f"console: {message.text} {message.location}")

        def on_dialog(dialog: object) -> None:
            troubles.append(f"dialog: {dialog.message}")
            dialog.dismiss()

        page.on("request", on_request)
        page.on("console", on_console)
        page.on("dialog", on_dialog)
        page.on("pageerror", lambda error: troubles.append(f"page error: {error}"))
        page.goto(address)
        settled(page)
        return page

    yield open_at
    report = getattr(request.node, "report_call", None)
    if report is not None and report.failed and pages:
        FAILURES.mkdir(exist_ok=True)
        pages[-1].screenshot(path=FAILURES / f"{request.node.name}.png", full_page=True)
    for context in contexts:
        context.close()
    assert not troubles


def settled(page: Page) -> None:
    """Waits until the script has run and nothing on the page is stale."""
    page.wait_for_selector('.stApp[data-test-script-state="notRunning"]', timeout=SETTLE_MS)


def title_of_map(page: Page) -> str:
    """Returns the title of the painted heatmap, or nothing while it is being replaced."""
    return str(page.evaluate("document.querySelector('.gtitle')?.textContent ?? ''"))


def wait_for_title(page: Page, start: str) -> None:
    """Waits until a heatmap whose title starts so is painted."""
    page.wait_for_function(
        "start => (document.querySelector('.gtitle')?.textContent ?? '').startsWith(start)",
        arg=start,
        timeout=SETTLE_MS,
    )
    settled(page)


def click_head(page: Page, layer: int, head: int) -> None:
    """Clicks the cell of a head in the grid of 12 x 12 heads."""
    grid = page.locator("canvas.grid")
    box = grid.bounding_box()
    assert box is not None
    space = 22
    cell = (box["width"] - space - 2) / 12
    grid.click(position={"x": space + (head + 0.5) * cell, "y": space + (layer + 0.5) * cell})
