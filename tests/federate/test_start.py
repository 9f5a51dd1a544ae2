"""Following a run: what is told of its rounds, and who is ended before another server starts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from clusterfl.errors import ClusterflError
from clusterfl.federate import start
from clusterfl.federate.folder import Federation
from clusterfl.federate.processes import Process, began, end


def test_rounds_are_told_once_and_only_whole_lines_of_this_run(tmp_path: Path) -> None:
    federation = Federation(tmp_path, ("a",))
    path = federation.run_folder / "rounds.jsonl"
    path.parent.mkdir()
    path.write_text('{"round": 9}\n')
    before, told = path.stat().st_mtime, []
    assert start._tell(federation, 0, before, told.append) == 0  # of an earlier run
    path.unlink()
    assert start._tell(federation, 0, before, told.append) == 0  # which has just been cleared away
    path.write_text('{"round": 0}\n{"round": 1')
    os.utime(path, (before + 1, before + 1))
    assert start._tell(federation, 0, before, told.append) == 1
    path.write_text('{"round": 0}\n{"round": 1}\n')
    os.utime(path, (before + 2, before + 2))
    assert start._tell(federation, 1, before, told.append) == 2
    assert told == [{"round": 0}, {"round": 1}]


def test_a_run_whose_server_died_is_to_be_resumed_whatever_its_app_says_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    federation = Federation(tmp_path, ("a",))

    def die(federation: Federation, **settings: Any) -> None:
        (tmp_path / "state.json").write_text(json.dumps({"state": "failed", "error": "no connection"}))

    monkeypatch.setattr(start.control, "submit", die)
    dead = Process("server", os.getpid(), -1, "")
    with pytest.raises(ClusterflError, match=r"the server has ended within the run.*then resume"):
        start.follow(federation, dead)
    alive = Process("server", os.getpid(), began(os.getpid()) or 0, "")
    with pytest.raises(ClusterflError, match="the run has failed: no connection"):
        start.follow(federation, alive)


def test_the_app_of_a_killed_server_is_an_orphan_until_it_has_ended(tmp_path: Path) -> None:
    federation = Federation(tmp_path, ("a",))
    assert start.orphan_of(federation) == []
    app = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])

    def say(state: str) -> None:
        mine: dict[str, Any] = {"state": state, "pid": app.pid, "began": began(app.pid)}
        (tmp_path / "state.json").write_text(json.dumps(mine))

    say("finished")
    assert start.orphan_of(federation) == []
    say("running")
    (orphan,) = start.orphan_of(federation)
    assert orphan.pid == app.pid and orphan.alive
    end([orphan])
    assert not orphan.alive
