"""The errors a user can meet, each one sentence that names what is wrong and what to do."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class ClusterflError(Exception):
    """Anything the command line answers with one sentence and exit code 2."""


class ConfigError(ClusterflError):
    """A key, a value or a combination in the config that cannot be."""


class DataError(ClusterflError):
    """A dataset that is missing, damaged or cannot be split as asked."""


class ClientError(RuntimeError):
    """A client procedure failed; the message names the procedure and the client."""

    def __init__(self, procedure: str, client: int, cause: BaseException | str, name: str | None = None) -> None:
        who = f"client {client}" if name is None else f"client {client} ({name})"
        super().__init__(f"{procedure} failed on {who}: {cause}")
        self.procedure, self.client, self.cause, self.name = procedure, client, str(cause), name

    def __reduce__(self) -> tuple[type[ClientError], tuple[str, int, str, str | None]]:
        return type(self), (self.procedure, self.client, self.cause, self.name)


class NoReplies(RuntimeError):
    """Nobody answered: the loop leaves the state as it was."""

    def __init__(self, procedure: str) -> None:
        super().__init__(f"no client answered {procedure}")
        self.procedure = procedure

    def __reduce__(self) -> tuple[type[NoReplies], tuple[str]]:
        return type(self), (self.procedure,)


def closest(word: str, known: Iterable[str], cutoff: float = 0.5) -> str | None:
    """The most similar of the known words, if any is similar; case and hyphens do not count."""
    plain = {k.casefold().replace("-", "_"): k for k in known}
    similar = difflib.get_close_matches(word.casefold().replace("-", "_"), list(plain), n=1, cutoff=cutoff)
    return plain[similar[0]] if similar else None


def suggestion(word: str, known: Iterable[str]) -> str:
    """'; did you mean …?' for a misspelt word, else the list of what there is."""
    names = sorted(known)
    close = closest(word, names)
    return f"; did you mean {close!r}?" if close else f"; known: {', '.join(names)}"
