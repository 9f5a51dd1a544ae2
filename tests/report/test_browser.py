"""Pages in a real browser: nothing fails, nothing is asked of anybody, tables sort and filter, figures are there."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import clusterfl
from clusterfl.callback import Callback, Moment
from clusterfl.config import Config
from clusterfl.report.live import LivePage
from clusterfl.report.page import write_report
from tests.report.folders import made

pytest.importorskip("playwright", reason="playwright is not installed (extra dev)")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium on this machine")

HOSTILE = [
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(2)>',
    "</script><b>",
    "{{ 7*7 }}",
    "Łódź & Søn\u2028",
]


class Browser:
    """Opens a file and holds that it was quiet."""

    def __init__(self, browser: Any) -> None:
        self.browser = browser
        self.context: Any = None

    def open(self, path: Path, width: int = 1400, theme: str = "light") -> Any:
        address = path.absolute().as_uri()
        page = self.go(address, width, theme)
        assert self.said == []
        assert [url for url in self.asked if not url.startswith(("data:", address))] == []
        return page

    def go(self, address: str, width: int = 1400, theme: str = "light") -> Any:
        self.context = self.browser.new_context(viewport={"width": width, "height": 900}, color_scheme=theme)
        page = self.context.new_page()
        self.said: list[str] = []
        self.asked: list[str] = []
        page.on("console", lambda message: self.said.append(message.text))
        page.on("pageerror", lambda error: self.said.append(str(error)))
        page.on("dialog", lambda dialog: self.said.append(dialog.message))
        page.on("request", lambda request: self.asked.append(request.url))
        page.goto(address)
        return page

    def close(self) -> None:
        if self.context is not None:
            self.context.close()


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as p:
        browser = p.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def browser(chromium: Any) -> Iterator[Browser]:
    made = Browser(chromium)
    yield made
    made.close()


def titles(page: Any) -> list[str]:
    return [t.strip() for t in page.locator("figure h3").all_inner_texts()]


def column(page: Any, table: str, j: int) -> list[str]:
    found: list[str] = page.locator(f"[data-table={table}] tbody tr td:nth-child({j})").all_inner_texts()
    return found


def test_a_run(browser: Browser, tmp_path: Path) -> None:
    page = browser.open(write_report(made(tmp_path / "run")))
    expected = {"Accuracy over rounds", "Accuracy of each cluster", "Who is where", "Every model on every client"}
    expected |= {"What the clusters hold", "Confusion in each cluster", "Accuracy against traffic", "Time of a round"}
    assert expected <= set(titles(page))
    boxes = [svg.bounding_box() for svg in page.locator("figure .drawing > svg").all()]
    assert all(box and box["width"] > 200 and box["height"] > 50 for box in boxes)
    page.locator(".stripe").nth(3).hover()
    assert "round 3" in page.locator("#tip").inner_text() and "mean over clients" in page.locator("#tip").inner_text()


def test_the_table_sorts_and_filters(browser: Browser, tmp_path: Path) -> None:
    page = browser.open(write_report(made(tmp_path / "run", clients=12)))
    assert column(page, "clients", 1) == [f"client-{i}" for i in range(12)]  # names in the order of their numbers
    head = page.locator("[data-table=clients] th", has_text="accuracy")
    head.click()
    falling = [float(v.removesuffix(" %")) for v in column(page, "clients", 6)]
    assert falling == sorted(falling, reverse=True) and head.get_attribute("aria-sort") == "descending"
    head.click()
    assert [float(v.removesuffix(" %")) for v in column(page, "clients", 6)] == falling[::-1]
    page.locator("[data-table=clients] input").fill("client-1")
    assert sorted(column(page, "clients", 1)) == ["client-1", "client-10", "client-11"]
    assert page.locator("[data-table=clients] .count").inner_text() == "3 of 12"


def test_figures_can_be_saved(browser: Browser, tmp_path: Path) -> None:
    page = browser.open(write_report(made(tmp_path / "run")))
    for kind, begins in (("svg", b"<svg"), ("png", b"\x89PNG")):
        page.locator("figure").first.hover()
        with page.expect_download() as download:
            page.locator(f"figure [data-save={kind}]").first.click()
        file = tmp_path / f"figure.{kind}"
        download.value.save_as(file)
        assert download.value.suggested_filename == f"accuracy-over-rounds.{kind}"
        data = file.read_bytes()
        assert data.startswith(begins) and b"var(--" not in data


def test_light_and_dark(browser: Browser, tmp_path: Path) -> None:
    path = write_report(made(tmp_path / "run"))

    def ground(page: Any) -> str:
        return str(page.evaluate("getComputedStyle(document.body).backgroundColor"))

    page = browser.open(path, theme="dark")
    dark = ground(page)
    page.locator("#theme").click()
    assert ground(page) != dark
    browser.close()
    assert ground(browser.open(path, theme="light")) != dark


def test_a_comparison(browser: Browser, tmp_path: Path) -> None:
    for method, level in (("fedavg", 0.5), ("ifca", 0.9), ("local", 0.7)):
        for seed in range(3):
            made(tmp_path / "runs" / f"{method}-seed{seed}", method=method, seed=seed, level=level)
    page = browser.open(write_report(tmp_path))
    expected = ["Accuracy over rounds", "Mean ranks", "ARI against the true clusters", "Accuracy against traffic"]
    assert set(expected) <= set(titles(page))
    assert column(page, "results", 1) == ["ifca", "local", "fedavg"] and len(column(page, "runs", 1)) == 9
    assert "★" in page.evaluate(
        "getComputedStyle(document.querySelector('[data-table=results] td.best'), '::after').content"
    )
    page.locator(".chip[data-filter=method]", has_text="local").click()
    assert column(page, "results", 1) == ["ifca", "fedavg"] and len(column(page, "runs", 1)) == 6
    assert not any(g.is_visible() for g in page.locator("svg g[data-method=local]").all())
    page.locator(".chip[data-filter=seed]").first.click()
    assert len(column(page, "runs", 1)) == 4
    page.locator(".chip[data-filter=method]", has_text="local").click()
    assert len(column(page, "results", 1)) == 3 and browser.said == []


EDGES: dict[str, dict[str, Any]] = {
    "without truth": {"truth": False},
    "one client": {"clients": 1, "k": 1},
    "one round": {"rounds": 1},
    "one cluster": {"k": 1},
    "a thousand rounds": {"rounds": 1000},
    "one class": {"classes": ("only",)},
}


@pytest.mark.parametrize("case", EDGES.values(), ids=EDGES)
@pytest.mark.parametrize("width", [400])
def test_edges(case: dict[str, Any], width: int, browser: Browser, tmp_path: Path) -> None:
    page = browser.open(write_report(made(tmp_path / "run", **case)), width=width)
    assert "Accuracy over rounds" in titles(page) and len(titles(page)) >= 5
    assert len(column(page, "clients", 1)) == case.get("clients", 12)
    assert page.evaluate("document.documentElement.scrollWidth") <= width  # only figures and tables scroll sideways
    assert "NaN" not in page.content() and "undefined" not in page.locator("main").inner_text()


def test_ten_thousand_clients(browser: Browser, tmp_path: Path) -> None:
    path = write_report(made(tmp_path / "run", clients=10_000, rounds=20, k=8))
    assert path.stat().st_size < 5_000_000
    page = browser.open(path)
    assert len(column(page, "clients", 1)) == 100  # the rest on demand
    page.locator("[data-table=clients] .more").click()
    assert len(column(page, "clients", 1)) == 600
    page.locator("[data-table=clients] input").fill("client-9999")
    assert column(page, "clients", 1) == ["client-9999"]
    assert "of 10,000 clients are drawn" in page.locator("main").inner_text()


@pytest.mark.parametrize("several", [False, True], ids=["a run", "a comparison"])
def test_hostile_names_are_text(several: bool, browser: Browser, tmp_path: Path) -> None:
    names = [*HOSTILE, *(f"c{i}" for i in range(7))]

    def hostile(folder: str, **more: Any) -> Path:
        return made(tmp_path / folder, names=names, classes=(HOSTILE[0], HOSTILE[1]), data=HOSTILE[2], **more)

    folders = [hostile("a"), hostile("b", seed=1), hostile("c", method="fedavg")] if several else [hostile("a")]
    page = browser.open(write_report(*folders, out=tmp_path / "page.html"))
    assert page.locator("b").count() == 0 and page.locator("main img").count() == 0
    if several:
        assert page.locator("h1").inner_text() == HOSTILE[2]
        return
    shown = column(page, "clients", 1)
    assert {n.strip() for n in HOSTILE} <= {s.strip() for s in shown}
    page.locator(".node").first.hover()
    assert "{{ 7*7 }}" in page.locator("#tip").inner_text()
    assert browser.said == []


def test_it_prints(browser: Browser, tmp_path: Path) -> None:
    page = browser.open(write_report(made(tmp_path / "run")))
    assert page.pdf().startswith(b"%PDF")
    page.emulate_media(media="print")
    assert not page.locator(".top").is_visible() and page.locator("figure").first.is_visible()


def test_a_live_page_follows_the_run_and_stays_when_it_is_over(browser: Browser, tmp_path: Path) -> None:
    live = LivePage(tmp_path / "run")
    pages: list[Any] = []

    class Watching(Callback):
        def on_start(self, moment: Moment) -> None:
            pages.append(browser.go(live.address))

        def on_round(self, moment: Moment) -> None:
            pages[0].wait_for_selector(f'#page[data-live="{moment.round}"]')
            assert f"{moment.round} of 2 rounds" in pages[0].locator(".subtitle").inner_text()
            assert len(column(pages[0], "clients", 1)) == 4

    settings = ["rounds=2", "data.clients=4", "data.samples=20", "data.test_samples=40"]
    live._looked.wait = lambda timeout=None: bool(pages[0].wait_for_selector(".live", state="detached"))  # type: ignore[method-assign]
    clusterfl.run(
        Config.load(None, [*settings, "engine.name=serial"]), out=tmp_path / "run", callbacks=[live, Watching()]
    )
    assert "Confusion in each cluster" in titles(pages[0]) and browser.said == []
    assert all(url.startswith((live.address, "data:")) for url in browser.asked)
