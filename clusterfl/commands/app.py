"""The command line. Commands are the modules of :mod:`clusterfl.commands`; this file only wires them."""

from __future__ import annotations

import importlib
import logging
import pkgutil
import warnings
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from clusterfl import commands
from clusterfl.engines.memory import keep_memory
from clusterfl.errors import ClientError, ClusterflError

log = logging.getLogger(__name__)


class Answering(TyperGroup):
    """What a user can mend is answered with one sentence and exit code 2, an interrupt with 130."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except (ClusterflError, ClientError) as e:
            log.debug("where it happened", exc_info=True)
            typer.echo(f"error: {' '.join(str(e).split())}", err=True)
            raise typer.Exit(2 if isinstance(e, ClusterflError) else 1) from e
        except OSError as e:
            if e.filename is None:
                raise
            log.debug("where it happened", exc_info=True)
            typer.echo(f"error: {shortened(str(e.filename))} could not be used: {e.strerror}", err=True)
            raise typer.Exit(2) from e
        except KeyboardInterrupt:
            typer.echo("interrupted", err=True)
            raise typer.Exit(130) from None


def shortened(text: str, most: int = 120) -> str:
    return text if len(text) <= most else f"{text[: most // 2]}…{text[-most // 2 :]}"


app = typer.Typer(
    cls=Answering,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # help names tables in [brackets], which markup would eat
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(asked: bool) -> None:
    if asked:
        from clusterfl import __version__

        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def about(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Say which one.")
    ] = False,
) -> None:
    """Clustered federated learning: one model per group of clients that belong together.

    Start with `clusterfl run`, then see `clusterfl methods` and `clusterfl compare`.
    """


for entry in pkgutil.iter_modules(commands.__path__):
    if entry.name != "app":
        module = importlib.import_module(f"{commands.__name__}.{entry.name}")
        if hasattr(module, "register"):
            module.register(app)


def main() -> None:
    """The entry point of the ``clusterfl`` script."""
    keep_memory()
    # where /dev/shm is full or closed, of processes of its own that are never asked for
    warnings.filterwarnings("ignore", message=".*joblib will operate in serial mode")
    app(prog_name="clusterfl")
