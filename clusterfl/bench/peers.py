"""Other simulators on the same clients, model and local steps: one adapter per peer, imported when it is asked for.

Each runs its own client loop, as its documentation shows it, over all clients of the workload: one local
epoch, aggregation, and none of its evaluation where that can be switched off.
"""

from __future__ import annotations

import contextlib
import io
import logging
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from functools import lru_cache
from importlib import metadata
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch import multiprocessing as mp

from clusterfl.bench.workloads import Workload, plain_loop, plain_module
from clusterfl.data.population import Population
from clusterfl.data.shards import Shards
from clusterfl.engines.auto import usable_cores
from clusterfl.tree import Tree

log = logging.getLogger(__name__)

Turn = Callable[[int], float]  # seconds of one round
Adapter = Callable[[Workload, Population, Tree], AbstractContextManager[Turn]]


@dataclass(frozen=True)
class Peer:
    package: str  # what pip installs
    methods: tuple[str, ...]  # what it can be compared on
    needs: tuple[str, ...]  # distributions that have to be there
    adapter: Adapter


class Peers:
    """Those of the installed peers that can do a workload, each ready for its turn."""

    def __init__(self, work: Workload, pop: Population, start: Tree, stack: ExitStack) -> None:
        fitting = {name: peer for name, peer in PEERS.items() if work.method in peer.methods}
        self.missing = {name: peer.package for name, peer in fitting.items() if not all(map(_installed, peer.needs))}
        self.taken: dict[str, list[float]] = {}
        self._turns: dict[str, Turn] = {}
        for name in fitting.keys() - self.missing.keys():
            with self._surviving(name):
                self._turns[name] = stack.enter_context(fitting[name].adapter(work, pop, start))

    def turns(self) -> list[Turn]:
        return [lambda r, name=name: self._turn(name, r) for name in self._turns]  # type: ignore[misc]

    def seconds(self) -> dict[str, float]:
        """Medians; the first turn warms up. A peer that failed is not in it."""
        return {name: statistics.median(t[1:] or t) for name, t in sorted(self.taken.items()) if name in self._turns}

    def _turn(self, name: str, r: int) -> float:
        if name not in self._turns:
            return 0.0
        with self._surviving(name):
            took = self._turns[name](r)
            self.taken.setdefault(name, []).append(took)
            return took
        return 0.0

    @contextmanager
    def _surviving(self, name: str) -> Iterator[None]:
        """A peer of another version may have another interface; the others are timed all the same."""
        try:
            yield
        except Exception as e:
            self._turns.pop(name, None)
            log.warning("%s is left out, it fails: %s: %s", name, type(e).__name__, e)


def _installed(distribution: str) -> bool:
    try:
        metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return False
    return True


def _module(work: Workload, start: Tree) -> nn.Module:
    module = plain_module(work)
    module.load_state_dict(start)
    return module


def _timed(act: Callable[[], object]) -> Turn:
    """In this process, with all threads, and its progress bars out of sight."""

    def turn(_: int) -> float:
        torch.set_num_threads(usable_cores())
        with contextlib.redirect_stdout(io.StringIO()):
            began = time.perf_counter()
            act()
            return time.perf_counter() - began

    return turn


# -- pfl-research ----------------------------------------------------------------------------------------


@contextmanager
def pfl(work: Workload, pop: Population, start: Tree) -> Iterator[Turn]:
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.data.dataset import Dataset
    from pfl.data.federated_dataset import FederatedDataset
    from pfl.data.sampling import get_user_sampler
    from pfl.hyperparam import NNTrainHyperParams
    from pfl.model.pytorch import PyTorchModel

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = _module(work, start)

        def loss(self, x: Tensor, y: Tensor) -> Tensor:
            return nn.functional.cross_entropy(self.net(x), y)

        def metrics(self, x: Tensor, y: Tensor) -> dict[str, Any]:
            return {}

    class Unmeasured(FederatedAveraging):  # type: ignore[misc]
        """pfl evaluates every user in iteration 0: this one starts at 1."""

        def get_next_central_contexts(self, model: Any, iteration: int, *rest: Any, **named: Any) -> Any:
            return super().get_next_central_contexts(model, iteration + 1, *rest, **named)

    parts = [pop.train.of(i) for i in range(work.clients)]
    users = get_user_sampler("minimize_reuse", list(range(work.clients)))
    data = FederatedDataset(lambda i: Dataset(raw_data=list(parts[i])), users)
    net = Net()
    model = PyTorchModel(net, torch.optim.SGD, torch.optim.SGD(net.parameters(), lr=1.0))
    backend = SimulatedBackend(training_data=data, val_data=data)
    local = NNTrainHyperParams(local_learning_rate=work.rule.lr, local_num_epochs=1, local_batch_size=work.batch)
    central = NNAlgorithmParams(
        central_num_iterations=2, evaluation_frequency=1000, train_cohort_size=work.clients, val_cohort_size=None
    )
    yield _timed(lambda: Unmeasured().run(central, backend, model, local, callbacks=[], send_metrics_to_platform=False))


# -- fluke -----------------------------------------------------------------------------------------------


@contextmanager
def fluke(work: Workload, pop: Population, start: Tree) -> Iterator[Turn]:
    from fluke import DDict, FlukeENV
    from fluke.algorithms.fedavg import FedAVG
    from fluke.data import FastDataLoader

    class Split:
        def assign(self, clients: int, batch: int) -> tuple[tuple[list[Any], list[None]], None]:
            parts = [pop.train.of(i) for i in range(clients)]
            loaders = [FastDataLoader(*part, num_labels=10, batch_size=batch, shuffle=True) for part in parts]
            return (loaders, [None] * clients), None

    env = FlukeENV()
    env.set_device("cpu")
    env.set_inmemory(True)
    env.set_eval_cfg(pre_fit=False, post_fit=False, locals=False, server=False)
    client = DDict(
        batch_size=work.batch,
        local_epochs=1,
        loss="CrossEntropyLoss",
        optimizer=DDict(name="SGD", lr=work.rule.lr),
        scheduler=DDict(name="StepLR", step_size=1, gamma=1),
    )
    settings = DDict(model=_module(work, start), client=client, server=DDict(weighted=True))
    algorithm = FedAVG(work.clients, Split(), settings)
    yield _timed(lambda: algorithm.run(n_rounds=1, eligible_perc=1.0, finalize=False))


# -- CFLA ------------------------------------------------------------------------------------------------


@contextmanager
def cfla(work: Workload, pop: Population, start: Tree) -> Iterator[Turn]:
    from framework.client.client_ifca import ClientIFCA
    from framework.server.server_ifca import ServerIFCA
    from torch.utils.data import TensorDataset

    class Net(nn.Module):
        """CFLA makes models as ``type(model)()``."""

        def __init__(self) -> None:
            super().__init__()
            self.net = _module(work, start)

        def forward(self, x: Tensor) -> Any:
            return self.net(x)

    with tempfile.TemporaryDirectory() as folder:
        args = {
            "device": "cpu",
            "local_epochs": 1,
            "learning_rate": work.rule.lr,
            "batch_size": work.batch,
            "train_fraction": 1.0,  # nothing is left for its evaluation, which cannot be switched off
            "fraction": 1.0,
            "rounds": 1,
            "num_clusters": 4,
            "output_dir": folder,
        }
        server = ServerIFCA(Net(), None, args)
        server.set_clients([ClientIFCA(i, TensorDataset(*pop.train.of(i)), args, folder) for i in range(work.clients)])
        yield _timed(lambda: server.train(verbose=False))


# -- Flower ----------------------------------------------------------------------------------------------

SHARDS = ("x", "y", "rows", "offsets")
QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # Ray then listens to this machine alone
    "OMP_NUM_THREADS": "1",
}


@contextmanager
def flower(work: Workload, pop: Population, start: Tree) -> Iterator[Turn]:
    """In a process of its own: it starts Ray, and its server waits there for its turn."""
    context = mp.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "train.safetensors"
        save_file({n: getattr(pop.train, n) for n in SHARDS}, path)
        here, there = context.Pipe()
        process = context.Process(target=_flower, args=(there, work, str(path), start))
        process.start()
        there.close()

        def turn(r: int) -> float:
            here.send(r)
            took: float = here.recv()
            return took

        try:
            yield turn
        finally:
            here.close()
            process.join(60)
            if process.is_alive():
                process.terminate()
                process.join()


def _flower(pipe: Connection, work: Workload, path: str, start: Tree) -> None:
    os.environ.update(QUIET)
    import ray
    from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
    from flwr.clientapp import ClientApp
    from flwr.serverapp import Grid, ServerApp
    from flwr.serverapp.strategy import FedAvg
    from flwr.simulation import run_simulation

    logging.getLogger("flwr").setLevel(logging.ERROR)
    client_app, server_app = ClientApp(), ServerApp()

    @client_app.train()  # type: ignore[untyped-decorator, unused-ignore]
    def train(message: Message, context: Context) -> Message:
        i = int(context.node_config["partition-id"])
        arrays: Any = message.content["arrays"]
        theta: Any = arrays.to_torch_state_dict()
        new = plain_loop(work, _stored(path), range(i, i + 1), theta, 1, i)
        content: Any = {"arrays": ArrayRecord(new), "metrics": MetricRecord({"num-examples": work.samples})}
        return Message(content=RecordDict(content), reply_to=message)

    class Waiting(FedAvg):  # type: ignore[misc, unused-ignore]
        def configure_train(self, *args: Any, **named: Any) -> Any:
            pipe.recv()
            self.began = time.perf_counter()
            return super().configure_train(*args, **named)

        def aggregate_train(self, *args: Any, **named: Any) -> Any:
            got = super().aggregate_train(*args, **named)
            pipe.send(time.perf_counter() - self.began)
            return got

    @server_app.main()  # type: ignore[untyped-decorator, unused-ignore]
    def main(grid: Grid, context: Context) -> None:
        strategy = Waiting(fraction_evaluate=0.0, min_available_nodes=work.clients)
        with contextlib.suppress(EOFError):  # the other side has closed: no more turns
            strategy.start(grid=grid, initial_arrays=ArrayRecord(start), num_rounds=1_000_000)

    cores = usable_cores()
    config: Any = {
        "init_args": {"num_cpus": cores, "log_to_driver": False},
        "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
    }
    try:
        run_simulation(server_app, client_app, num_supernodes=work.clients, backend_config=config)
    finally:
        ray.shutdown()


@lru_cache(maxsize=1)
def _stored(path: str) -> Population:
    stored = load_file(path)
    shards = Shards(*(stored[n] for n in SHARDS))
    return Population(shards, shards, len(shards), 10)


PEERS = {
    "pfl": Peer("pfl", ("fedavg",), ("pfl",), pfl),
    "fluke": Peer("fluke-fl", ("fedavg",), ("fluke-fl",), fluke),
    "flower": Peer("'flwr[simulation]'", ("fedavg",), ("flwr", "ray"), flower),
    "cfla": Peer("CFLA", ("ifca",), ("CFLA",), cfla),
}
