"""The live page: this machine alone, each round, and the finished page before it goes."""

from __future__ import annotations

import http.client
from pathlib import Path

import clusterfl
from clusterfl.callback import Callback, Moment
from clusterfl.config import Config
from clusterfl.report.live import LivePage

SMALL = ["rounds=2", "data.clients=4", "data.samples=20", "data.test_samples=40", "engine.name=serial"]


def get(live: LivePage, path: str, host: str | None = None) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", live.port, timeout=30)
    connection.request("GET", path, headers={} if host is None else {"Host": host})
    answer = connection.getresponse()
    found = answer.status, answer.read().decode()
    connection.close()
    return found


def test_a_browser_can_follow_a_run(tmp_path: Path) -> None:
    said: list[str] = []
    live = LivePage(tmp_path / "run", announce=said.append)
    seen: dict[int, str] = {}

    class Visitor(Callback):
        def on_start(self, moment: Moment) -> None:
            self.on_round(moment)

        def on_round(self, moment: Moment) -> None:
            assert get(live, "/round") == (200, str(moment.round))
            status, seen[moment.round] = get(live, "/")
            assert status == 200
            assert get(live, "/config.toml")[0] == 404
            assert get(live, "/", host="elsewhere.example:80")[0] == 403

        def on_saved(self, folder: Path) -> None:  # is told after the live page, which is gone by then
            seen[-1] = live.at

    live._looked.wait = lambda timeout=None: bool(seen.setdefault(3, get(live, "/")[1]))  # type: ignore[method-assign]
    clusterfl.run(Config.load(None, SMALL), out=tmp_path / "run", callbacks=[live, Visitor()])
    assert said == [live.address] and live.address.startswith("http://127.0.0.1:")
    for t in range(3):
        assert f'data-live="{t}"' in seen[t] and f"{t} of 2 rounds" in seen[t] and "connect-src 'self'" in seen[t]
    assert 'data-live=""' in seen[3] and "connect-src" not in seen[3] and seen[-1] == "done"
    try:
        get(live, "/")
    except OSError:
        return
    raise AssertionError("the server should be gone")
