"""A real browser, without a window: Debian's Chromium. Playwright drives it and brings none of its own."""

import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Page, sync_playwright

CANDIDATES = ("chromium", "chromium-browser", "google-chrome")
WITHOUT = (
    "no Chromium; as root: apt-get install --no-install-recommends chromium, "
    "or name one: NRI_PIN_CHROMIUM=FILE hack/test tests/browser"
)


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:  # of this folder only: other tests fork, and want no event loop
    path = os.environ.get("NRI_PIN_CHROMIUM") or next(filter(None, map(shutil.which, CANDIDATES)), None)
    if path is None:
        pytest.skip(WITHOUT)
    with sync_playwright() as driver:
        # Without a sandbox of its own: it starts as root, and reads files that these tests have written.
        browser = driver.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


@dataclass
class Watched:
    """A page and all that it said and asked for."""

    page: Page
    file: Path
    said: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)
    dialogs: list[str] = field(default_factory=list)

    def listen(self) -> None:
        self.page.on("console", self._console)
        self.page.on("pageerror", lambda error: self.said.append(f"uncaught: {error}"))
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.on("dialog", self._dialog)

    def complaints(self) -> list[str]:
        """Whatever a report must not do: say something, ask for something, open a dialog."""
        return [*self.said, *(url for url in self.asked if url != self.file.as_uri()), *self.dialogs]

    def _console(self, message: ConsoleMessage) -> None:
        self.said.append(f"{message.type}: {message.text}")

    def _dialog(self, dialog: Any) -> None:
        self.dialogs.append(dialog.message)
        dialog.dismiss()


@pytest.fixture
def watch(browser: Browser, tmp_path: Path) -> Iterator[Callable[..., Watched]]:
    """Opens a report; options are those of a browser's context."""
    contexts = []

    def opened(html: str, width: int = 1280, height: int = 900, **options: Any) -> Watched:
        file = tmp_path / f"report-{len(contexts)}.html"
        file.write_text(html, encoding="utf-8")
        context = browser.new_context(viewport={"width": width, "height": height}, **options)
        contexts.append(context)
        watched = Watched(context.new_page(), file)
        watched.listen()
        watched.page.goto(file.as_uri())
        return watched

    yield opened
    for context in contexts:
        context.close()


@pytest.fixture
def show(watch: Callable[..., Watched]) -> Iterator[Callable[..., Page]]:
    """The same, where the report may complain of nothing, from its start to the end of the test."""
    all_watched = []

    def shown(html: str, **options: Any) -> Page:
        all_watched.append(watch(html, **options))
        return all_watched[-1].page

    yield shown
    assert [complaint for watched in all_watched for complaint in watched.complaints()] == []
