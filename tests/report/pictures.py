"""``python -m tests.report.pictures``: the pictures of the docs, from reports that `make picture` has made.

``runs/demo`` is `make demo`, ``runs/ifca`` and ``runs/own`` are the runs that docs/report.md names. A picture is the
page as a browser shows it, from its top to the end of one section; ``--to DIR`` writes them elsewhere.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parent.parent.parent / "docs"
LARGEST = 300_000  # bytes: they are kept with the sources


@dataclass(frozen=True)
class Picture:
    """Of a run's report, down to the end of what the selector finds."""

    file: str
    run: str
    until: str
    width: int
    theme: str = "light"
    page: int = 1400  # how wide the browser is; the picture is scaled down to ``width``


PICTURES = (
    Picture("demo.png", "demo", "#learning", 1000),
    Picture("report-compare.png", "demo", "#learning", 1000, "dark"),
    Picture("report-run.png", "ifca", "#who-is-where figure", 1000),
    Picture("report-own.png", "own", "#learning", 1000, "dark"),
    Picture("report-phone.png", "own", "#learning figure", 400, page=400),
    Picture("report-phone-dark.png", "demo", "#learning", 400, "dark", page=400),
)


def draw(pictures: Sequence[Picture], runs: Path, to: Path) -> list[Path]:
    from playwright.sync_api import sync_playwright

    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    drawn = []
    with sync_playwright() as p:
        browser = p.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for picture in pictures:
            path = to / picture.file
            path.write_bytes(shot(browser, picture, runs / picture.run / "report.html"))
            drawn.append(path)
        browser.close()
    return drawn


def shot(browser: Any, picture: Picture, report: Path) -> bytes:
    context = browser.new_context(
        viewport={"width": picture.page, "height": 900},
        color_scheme=picture.theme,
        device_scale_factor=picture.width / picture.page,
    )
    page = context.new_page()
    page.goto(report.absolute().as_uri())
    box = page.locator(picture.until).first.bounding_box()
    clip = {"x": 0, "y": 0, "width": picture.page, "height": box["y"] + box["height"] + 16}
    image: bytes = page.screenshot(full_page=True, clip=clip)
    context.close()
    return image


def main() -> None:
    parser = argparse.ArgumentParser(description="The pictures of the docs.")
    parser.add_argument("--runs", type=Path, default=Path("runs"))
    parser.add_argument("--to", type=Path, default=DOCS)
    asked = parser.parse_args()
    for path in draw(PICTURES, asked.runs, asked.to):
        size = path.stat().st_size
        sys.stdout.write(f"{path}  {size:,} bytes\n")
        if size > LARGEST:
            raise SystemExit(f"{path} should have at most {LARGEST:,} bytes")


if __name__ == "__main__":
    main()
