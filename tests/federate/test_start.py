"""Following a run: what is told of its rounds, and who is ended before another server starts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from clusterfl.federate import start
from clusterfl.federate.folder import Federation
from clusterfl.federate.processes import began, end


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
