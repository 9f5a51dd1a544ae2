"""A method of your own in one class: clients are put to the nearest of K models, once, after a common round.

python examples/own_method.py
"""

from dataclasses import dataclass

import torch
from torch import Tensor

import clusterfl
from clusterfl import SGD, Client, Cohort, Method, Task, on_client
from clusterfl.keys import Key
from clusterfl.message import Model, Weight
from clusterfl.method import Clusters, Served, serve_clusters
from clusterfl.parts.aggregate import mean_by
from clusterfl.parts.kmeans import kmeans
from clusterfl.parts.local import sgd
from clusterfl.tree import Tree, flat, put, repeat, take


@dataclass(frozen=True)
class OneShot(Method[Clusters]):
    """k-means over the clients' first models, then FedAvg in each cluster."""

    name = "one-shot"
    summary = "k-means over first models, then FedAvg per cluster"
    k: int = 4
    local: SGD = SGD()  # noqa: RUF009 (frozen, as all rules are)

    def init(self, task: Task, cohort: Cohort, key: Key) -> Clusters:
        start = task.init(key)
        got = cohort.run(self.train, {"theta": start})
        labels = kmeans(flat(got["theta"], task.params), self.k, key)
        assign = put(torch.zeros(len(cohort), dtype=torch.int64), got.ids, labels)
        return Clusters(mean_by(got["theta"], labels, old=repeat(start, self.k), weights=got["n"]), assign)

    def round(self, state: Clusters, cohort: Cohort) -> Clusters:
        got = cohort.run(self.train, theta=take(state.centers, state.assign[cohort.ids]))
        s = state.assign[got.ids]
        return Clusters(mean_by(got["theta"], s, old=state.centers, weights=got["n"]), state.assign)

    def serve(self, state: Clusters, ids: Tensor) -> Served:
        return serve_clusters(state, ids)

    @on_client(theta=Model(of="theta"), n=Weight())
    def train(self, me: Client, theta: Tree) -> dict[str, object]:
        return {"theta": sgd(me, theta, self.local), "n": me.size}


if __name__ == "__main__":
    population = clusterfl.Config.load(None, ["data.clients=12", "data.unseen=0"]).population()
    outcome = clusterfl.run(population, "mclr", OneShot(), rounds=5, engine="serial")
    print(f"accuracy {outcome.accuracy.mean:.3f}, ARI {outcome.clusters.ari:.2f}")
