"""A run's page while it goes on, served to this machine alone."""

from __future__ import annotations

import threading
import tomllib
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from clusterfl.callback import Callback, Moment
from clusterfl.report.one_run import page_of
from clusterfl.report.page import render
from clusterfl.report.runs import Run, read_run, unfinished
from clusterfl.runs.details import cluster_labels, label_counts
from clusterfl.runs.results import round_row

HOST = "127.0.0.1"
LINGER = 3.0  # seconds that a browser has to fetch the finished page


class LivePage(Callback):
    """Serves the page of the run in ``folder``; a browser that has it open follows each round.

    >>> live = LivePage(folder)
    >>> clusterfl.run(config, out=folder, callbacks=[live])          # live.address from the first round on
    """

    def __init__(self, folder: str | Path, *, port: int = 0, announce: Callable[[str], None] = lambda address: None):
        self.folder, self.port, self.announce = Path(folder), port, announce
        self.at = ""  # the round that is served, or "done"
        self._run: Callable[[], Run] | None = None
        self._page: tuple[str, bytes] = ("", b"")
        self._rows: list[dict[str, Any]] = []
        self._lock = threading.Lock()
        self._looked = threading.Event()
        self._server: ThreadingHTTPServer | None = None

    @property
    def address(self) -> str:
        return f"http://{HOST}:{self.port}/"

    # -- the run --------------------------------------------------------------------------------------

    def on_start(self, moment: Moment) -> None:
        self._rows = [round_row(r, moment.population) for r in moment.records]
        self._labels = label_counts(moment.population)
        self._show(moment)
        server = ThreadingHTTPServer((HOST, self.port), _handler(self))
        server.daemon_threads = True
        self._server, self.port = server, server.server_address[1]
        threading.Thread(target=server.serve_forever, name="clusterfl live page", daemon=True).start()
        self.announce(self.address)

    def on_round(self, moment: Moment) -> None:
        self._rows = [*self._rows, round_row(moment.record, moment.population)]
        self._show(moment)

    def _show(self, moment: Moment) -> None:
        """What the next visitor will see; it is drawn only when one comes."""
        rows, records, population = self._rows, moment.records, moment.population
        truth = population.at(moment.round).truth
        names = [str(n) for n in getattr(population, "names", None) or range(population.clients)][: population.clients]

        def made() -> Run:
            text = (self.folder / "config.toml").read_text(encoding="utf-8")
            labels = self._labels
            details = {
                "train": population.train.sizes.tolist(),
                "test": population.test.sizes.tolist(),
                "cluster_labels": None
                if labels is None
                else cluster_labels(labels[: population.clients], records[-1].assign),
            }
            true = None if truth is None else truth[: population.clients].numpy()
            return unfinished(
                self.folder, tomllib.loads(text), text, rows, records, names=names, truth=true, details=details
            )

        with self._lock:
            self.at, self._run = str(moment.round), made

    def on_saved(self, folder: Path) -> None:
        with self._lock:
            self.at, self._run = "done", lambda: read_run(folder)
        if self._looked.is_set():  # somebody watches: the finished page is fetched before the server goes
            self._looked.clear()
            self._looked.wait(LINGER)
        self.close()

    def close(self) -> None:
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None

    # -- visitors -------------------------------------------------------------------------------------

    def page(self) -> bytes:
        """The page of the round that is served, drawn once."""
        with self._lock:
            at, run = self.at, self._run
            if self._page[0] != at and run is not None:
                self._page = (at, render(page_of(run(), live=at != "done")).encode())
            return self._page[1]


def _handler(live: LivePage) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            host = (self.headers.get("Host") or "").rpartition(":")[0]
            if host not in (HOST, "localhost"):  # a page from elsewhere that was led here by its name
                self.send_error(403)
            elif self.path == "/":
                self._answer(live.page(), "text/html; charset=utf-8")
                live._looked.set()
            elif self.path == "/round":
                self._answer(live.at.encode(), "text/plain")
            else:
                self.send_error(404)

        def _answer(self, body: bytes, kind: str) -> None:
            self.send_response(200)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Cache-Control", "no-store")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            """Nothing: standard error is the run's."""

    return Handler
