"""A node's resident: the process that has PyTorch and the node's data loaded and answers one message after another.

Flower starts a new Python process for every message; that process only carries the message here and the answer back.
Its socket lies in a folder that only its owner can enter.
"""

from __future__ import annotations

import contextlib
import logging
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

log = logging.getLogger(__name__)

LARGEST = 1 << 36  # bytes of a message
AGAIN, REFUSED = 8.0, 90.0  # seconds until a SuperNode is started again, and after which it is not
Answerer = Callable[[bytes], bytes]


def ask(path: str, message: bytes, wait: float = 30.0) -> bytes | None:
    """The resident's answer; None where there is no resident. One that is just starting is waited for."""
    end = time.monotonic() + wait
    while path and Path(path).parent.exists():
        with socket.socket(socket.AF_UNIX) as to:
            try:
                to.connect(path)
            except OSError:
                if time.monotonic() > end:
                    return None
                time.sleep(0.1)
                continue
            try:
                _send(to, message)
                return _receive(to)
            except OSError:  # it has died meanwhile
                return None
    return None


def listen(path: Path, answer: Answerer) -> socket.socket:
    """Answers whoever connects, one after another, on a thread of its own."""
    server = socket.socket(socket.AF_UNIX)
    server.bind(str(path))
    server.listen()

    def serve() -> None:
        while True:
            try:
                caller, _ = server.accept()
            except OSError:  # closed
                return
            with caller:
                try:
                    asked = _receive(caller)
                    if asked is not None:
                        _send(caller, answer(asked))
                except Exception:  # the caller sees the connection end; the next one is answered
                    log.exception("a message could not be answered")

    threading.Thread(target=serve, daemon=True).start()
    return server


def _send(to: socket.socket, message: bytes) -> None:
    to.sendall(struct.pack("<Q", len(message)))
    if message:  # after its head alone an empty one is answered, and the other side may be gone
        to.sendall(message)


def _receive(of: socket.socket) -> bytes | None:
    """A whole message; None where the other side has hung up before its end."""
    head = _exactly(of, 8)
    if head is None:
        return None
    (length,) = struct.unpack("<Q", head)
    if length > LARGEST:
        raise ValueError(f"a message should have at most {LARGEST:,} bytes, not {length:,}")
    return _exactly(of, length)


def _exactly(of: socket.socket, length: int) -> bytes | None:
    parts = bytearray()
    while len(parts) < length:
        part = of.recv(min(length - len(parts), 1 << 20))
        if not part:
            return None
        parts += part
    return bytes(parts)


def live(home: Path, start: Callable[[str], subprocess.Popen[bytes]], answer: Callable[[], Answerer]) -> int:
    """A node's life: Flower's SuperNode as a child, messages answered here; returns the child's last word.

    A SuperNode that ends is started again: after a crash the server takes a node for connected for a minute more, and
    refuses it until then. One that fails for longer is refused for good.
    """
    folder = Path(tempfile.mkdtemp(prefix="clusterfl-"))  # short: a socket's path has its limits
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    child = start(str(folder / "node"))
    try:
        listen(folder / "node", answer())
        began = failing_since = time.monotonic()
        while True:
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(1.0)
                if child.returncode == 0:
                    return 0
                now = time.monotonic()
                failing_since = now if now - began > REFUSED else failing_since
                if now - failing_since > REFUSED:
                    log.error("%s: the server refuses this node, or cannot be reached", home.name)
                    return child.returncode
                time.sleep(AGAIN)
                began = time.monotonic()
                child = start(str(folder / "node"))
    finally:
        child.terminate()
        try:
            child.wait(10.0)
        except subprocess.TimeoutExpired:
            child.kill()
        shutil.rmtree(folder, ignore_errors=True)
