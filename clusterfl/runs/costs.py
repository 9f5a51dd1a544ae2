"""What a round of each method costs on paper: the tables of docs/costs.md, and a line on each method's page.

A formula is written once, as arithmetic over the letters of :class:`Scale`; it is shown and computed from there.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

SPEED = 1e10  # multiply-adds a second, for one core


@dataclass(frozen=True)
class Scale:
    """The letters, and what they are in the tables of figures."""

    N: float = 1e6  # clients
    m: float = 1e3  # of them in a round
    P: float = 7850  # numbers of a model
    H: float = 650  # of them in its last layer
    K: float = 4  # clusters
    C: float = 10  # classes
    D: float = 784  # numbers in a sample


@dataclass(frozen=True)
class Cost:
    """Bytes of a participating client, multiply-adds and memory (bytes) of the server; with default settings.

    ``memory`` holds what is kept between rounds and the replies that have to lie side by side. ``once`` is what comes
    at the start, at the one clustering or at a cut, as ``when`` says, and ``once_memory`` what it needs beside that.
    """

    down: str = "4*P"
    up: str = "4*P + 4"
    work: str = "m*P"
    memory: str = "8*P"
    once: str = ""
    once_memory: str = ""
    when: str = ""


CENTRES = "8*K*P + 8*N"  # K models, their sums, and who is where
HELD = "4*m*P + 4*K*P + 8*N"  # the round's replies side by side, K models, and who is where
START = {
    "once": "256*N*P",
    "once_memory": "4*N*P",
    "when": "start `kmeans-local`: all clients train, all models sketched",
}
CUT = {"once": "m**2*P", "when": "when it cuts: all pairs of a round's updates"}

COSTS: dict[str, Cost] = {
    "local": Cost("0", "0", "0", "4*P"),
    "fedavg": Cost(),
    "fedavg-ft": Cost(),
    "fedsgd": Cost(work="m*P + P"),
    "fedprox": Cost(),
    "ditto": Cost(),
    "fedper": Cost("4*(P - H)", "4*(P - H) + 4", "m*(P - H)"),
    "per-fedavg": Cost(up="4*P"),
    "fedfomo": Cost(
        "20*P", "4*P + 20", "20*m*N", "4*N*P + 20*m*P", when="M = 5 models down; everybody's model is ranked for each"
    ),
    "feddist": Cost(up="4*P", work="m*P + P"),
    "feddws": Cost(work="m*P + P"),
    "feddane": Cost("12*P", "8*P + 8", "2*m*P", "12*P"),
    "kin": Cost(
        "4*P",
        "4*P + 8",
        "m*P + 512**2*C*64 + 8*N*K*C*64",
        "8*K*P + 260*N*C + 25*N",
        when="grouped anew in rounds in which somebody describes itself: 4·(2 + 65·C + 2080) bytes up, once",
    ),
    "ifca": Cost("4*K*P", "4*P + 8", memory=CENTRES, **START),
    "hypcluster": Cost(
        "4*K*P",
        "4*P + 12",
        memory=CENTRES,
        once="K*N",
        once_memory="4*N*P",
        when="start `loss-pp`: all clients train, then losses",
    ),
    "cfl": Cost(up="4*P", work="2*m*P", memory="4*m*P + 4*K*P + 16*N", **CUT),
    "fl-hc": Cost(
        memory="4*m*P + 4*K*P + 9*N", once="m**2*P", when="the one clustering: all pairs of a round's updates"
    ),
    "fesem": Cost(up="4*P", work="m*P + m*K*P", memory=HELD, **START),
    "kmeans": Cost(up="4*P", work="m*P + m**2*P + 200*m**2*K", memory=HELD),
    "robust-tkm": Cost(
        up="4*P",
        work="10*m*P",
        memory="4*m*P + 8*K*P + 9*N",
        once="256*N*P",
        once_memory="4*N*P",
        when="the one clustering: all clients train, all models sketched",
    ),
    "pfa": Cost(memory="8*K*P + 9*N", once="4000*m*K", when="the one grouping: k-means of 20 numbers of each client"),
    "fedds": Cost(work="m*P + (m + K)*10*C*P + m*K*10*C**2", memory=HELD, **START),
    "feddsmic": Cost(work="m*P + (m + K)*10*C*P + m*K*10*C**2", memory=HELD, **START),
    "md-icfl": Cost(
        up="4*P",
        work="m*P + 9000*K*C*P + 30*m*K*C*P",
        memory="4*m*P + 4*K*P + 8*N + 4*N*C + 120*K*C*D",
        **START,
    ),
    "fcca": Cost(
        "4*P + 8*64",
        "4*P + 8*64 + 4*55296 + 4",
        "m*P + 256*m*C*55296 + 128*C*N**2 + 200*K*N**2",
        "4*K*P + 16*N + 512*N*C + 4*N**2",
        when="every round compares all clients that ever took part",
    ),
    "awcfl": Cost(up="4*P", work="2*m*P + K**2*P", memory="4*m*P + 8*K*P + 16*N", **CUT),
    "mcfl": Cost("4*P + 4*K*P", "4*P", "2*m*P + N*D", "4*m*P + 4*K*P + 17*N + 4*N*D", **CUT),
    "pacfl": Cost(
        memory="8*K*P + 9*N + 12*N*C*D",
        once="9*C**2*D*N**2 / 2",
        once_memory="8*N**2",
        when="before training: all pairs of clients' subspaces (12·C·D bytes up, once)",
    ),
    "fedem": Cost("4*K*P", "4*K*P + 12", "m*K*P", CENTRES, **START),
    "fedrc": Cost("4*K*P + 4*K*C", "4*K*P + 4*K*C + 12", "m*K*P", CENTRES, **START),
    "flux": Cost(
        memory="8*K*P + 9*N",
        once="20*m**2*(C + 1)",
        once_memory="8*m**2",
        when="the one grouping: all pairs of a round's clients (80·(C + 1) bytes up, once)",
    ),
    "clove": Cost(
        "4*(K + 1)*P",
        "4*P + 4*K + 4",
        "m*P + 200*m*K**2",
        "8*K*P + 16*N",
        when="until clusters are stable; then as FedAvg",
    ),
    "fedgwc": Cost(
        up="4*P + 36",
        work="m*P + m**2",
        memory="8*K*P + 8*N + 8*N**2",
        once="N**3",
        when="when it cuts: a spectrum of N clients",
    ),
}


def value(formula: str, scale: Scale) -> float:
    return float(eval(formula or "0", {"__builtins__": {}}, asdict(scale)))


def shown(formula: str) -> str:
    """As it is written in the tables."""
    return formula.replace("**2", "²").replace("**3", "³").replace("*", "·")


def sentence(name: str) -> str:
    """The line on a method's page."""
    cost = COSTS[name]
    if cost.down == "0":
        return "Down 0, up 0 bytes; the server does nothing. Beside the others: [costs](../costs.md)."
    once = f"; once `{shown(cost.once)}`" if cost.once else ""
    held = f" and `{shown(cost.once_memory)}` bytes" if cost.once_memory else ""
    when = f" ({cost.when})" if cost.when else ""
    return (
        f"Down `{shown(cost.down)}`, up `{shown(cost.up)}` bytes per participating client; the server does "
        f"`{shown(cost.work)}` multiply-adds a round in `{shown(cost.memory)}` bytes of memory{once}{held}{when}. "
        "Letters, and figures at a million clients: [costs](../costs.md)."
    )


def formulae() -> str:
    lines = [
        "| method | down, bytes | up, bytes | server, multiply-adds a round | memory, bytes | once, multiply-adds |"
    ]
    lines += ["|---|---|---|---|---|---|"]
    for name, c in COSTS.items():
        once = f"`{shown(c.once)}`" if c.once else "–"
        cells = " | ".join(f"`{shown(f)}`" for f in (c.down, c.up, c.work, c.memory))
        lines.append(f"| [{name}](methods/{name}.md) | {cells} | {once} |")
    return "\n".join(lines)


def figures(scale: Scale | None = None) -> str:
    """Every method in numbers."""
    at = scale or Scale()
    lines = [
        "| method | down | up | all of a round | server | memory | once | memory for that |",
        "|---|" + "---:|" * 7,
    ]
    for name, c in COSTS.items():
        down, up, work, memory, once, beside = (
            value(f, at) for f in (c.down, c.up, c.work, c.memory, c.once, c.once_memory)
        )
        cells = [size(down), size(up), size(at.m * (down + up)), time(work), size(memory)]
        cells += [time(once) if c.once else "–", size(beside) if c.once_memory else "–"]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def size(n: float) -> str:
    return _in_steps(n, 1000.0, ("B", "kB", "MB", "GB", "TB", "PB"))


def time(operations: float) -> str:
    seconds = operations / SPEED
    for unit, length in (("years", 3.156e7), ("days", 86400.0), ("h", 3600.0), ("min", 60.0), ("s", 1.0), ("ms", 1e-3)):
        if seconds >= length or unit == "ms":
            return f"{_three(seconds / length)} {unit}"
    raise AssertionError


def _in_steps(n: float, step: float, units: tuple[str, ...]) -> str:
    j = 0
    while n >= step and j + 1 < len(units):
        n, j = n / step, j + 1
    return f"{_three(n)} {units[j]}"


def _three(n: float) -> str:
    """Two or three digits that count."""
    return f"{n:,.0f}" if n >= 100 else f"{n:.3g}" if n >= 0.1 or n == 0 else "< 0.1"
