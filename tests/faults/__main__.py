"""``python -m tests.faults``: the whole table in full, printed and written to docs/faults.md.

Rows run in processes of their own, two at a time. ``--only kill-in-write,disk-full`` runs some of them and writes
nothing.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import logging
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

from .common import TESTS, Tally
from .table import FAULTS

PAGE = TESTS.parent / "docs" / "faults.md"
# first, so that no core waits for them at the end
LONGEST = ("kill", "few-samples", "clients-alike", "kill-in-write", "many-rounds")


def one(row: str) -> None:
    """One row in this process; its tally is the last line of the output."""
    logging.getLogger("clusterfl").addHandler(logging.NullHandler())
    logging.getLogger("clusterfl").propagate = False
    warnings.simplefilter("ignore")
    fault, tally, began = FAULTS[row], Tally(), time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        try:
            fault.check(tally, fault.full, Path(folder))
        except Exception as e:
            tally.tried += 1
            tally.failures.append(f"the row itself failed: {type(e).__name__}: {e}")
    say(json.dumps({**dataclasses.asdict(tally), "seconds": time.monotonic() - began}))


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def start(row: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "tests.faults", "--row", row]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=TESTS.parent, env=environment, stdout=subprocess.PIPE, text=True)
    lines = done.stdout.strip().splitlines()
    found: dict[str, Any] = (
        json.loads(lines[-1])
        if done.returncode == 0 and lines
        else {"tried": 1, "held": 0, "failures": [f"exit {done.returncode}"], "figures": "", "seconds": 0.0}
    )
    say(f"{row}: {found['held']} of {found['tried']} held, {found['seconds']:.0f} s. {found['figures']}")
    for failure in found["failures"]:
        say(f"    not held: {failure}")
    return found


def table(found: dict[str, dict[str, Any]], seconds: float) -> str:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    worked = used.ru_utime + used.ru_stime
    lines = [
        "# Faults",
        "",
        "`make faults` does all of this on purpose and writes this page. The same rows run in small amounts in "
        "`make test`.",
        "",
        f"{sum(f['held'] for f in found.values()):,} of {sum(f['tried'] for f in found.values()):,} tries held, "
        f"in {seconds / 60:.0f} minutes ({worked / 60:.0f} minutes of processor time) on {os.cpu_count()} cores "
        f"({platform.machine()}, Python "
        f"{platform.python_version()}, PyTorch {torch.__version__}).",
        "",
        "| row | what is done | what must happen | tried | held | figures |",
        "|---|---|---|---:|---:|---|",
    ]
    for row, f in found.items():
        fault = FAULTS[row]
        what = f"{fault.what} ({fault.number})" if fault.number else fault.what
        lines.append(f"| {row} | {what} | {fault.promise} | {f['tried']:,} | {f['held']:,} | {f['figures']} |")
    failures = [f"- {row}: {failure}" for row, f in found.items() for failure in f["failures"]]
    if failures:
        lines += ["", "## Not held", *failures]
    lines += ["", "What is promised, and why it holds: [reliability](reliability.md)."]
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("--only", help="rows, as kill-in-write,disk-full; nothing is written")
    parser.add_argument("--row", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.row:
        one(given.row)
        return 0
    rows = given.only.split(",") if given.only else list(FAULTS)
    unknown = [row for row in rows if row not in FAULTS]
    if unknown:
        parser.error(f"--only {','.join(unknown)} should be rows of the table: {', '.join(FAULTS)}")
    order = sorted(rows, key=lambda r: LONGEST.index(r) if r in LONGEST else len(LONGEST))
    began = time.monotonic()
    with ThreadPoolExecutor(2) as pool:
        done = dict(zip(order, pool.map(start, order), strict=True))
    page = table({row: done[row] for row in rows}, time.monotonic() - began)
    say("\n" + page)
    if not given.only:
        PAGE.write_text(page, encoding="utf-8")
    return int(any(f["held"] < f["tried"] for f in done.values()))


if __name__ == "__main__":
    sys.exit(main())
