"""FCCA (Zhou et al., 2023): a global encoder, one classifier head per cluster, and a conditional flow per client.

Each client's flow learns what the encoder makes of its data, label by label. The server generates features
from all flows with the same noise and clusters clients by how alike these are. Nothing depends on earlier
clusterings, so an early mistake does not last.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from clusterfl import keys
from clusterfl.client import Client
from clusterfl.cohort import Cohort
from clusterfl.fields import above, at_least, one_of, option
from clusterfl.keys import Key
from clusterfl.message import Kept, Model, Payload, Statistic, Weight, on_client, on_server
from clusterfl.method import Clusters, Method, Served, log_clusters, log_margin, serve_clusters
from clusterfl.models.flow import Flow
from clusterfl.parts.aggregate import MeanBy, mean_all, mean_by
from clusterfl.parts.flows import Fit, first_weights, fit, label_means, projection, raw_moments, start_of
from clusterfl.parts.kmeans import kmeans
from clusterfl.parts.local import SGD, sgd
from clusterfl.parts.maml import first_order
from clusterfl.parts.prox import proximal
from clusterfl.parts.similarity import Similarity, keep_names, mean_by_cluster, pairwise, signature, similarity
from clusterfl.parts.start import first_net
from clusterfl.task import Task
from clusterfl.tree import Tree, put, repeat, row, select, take, unvector

log = logging.getLogger(__name__)

Recipe = Literal["robust", "literal"]
Optimizer = Literal["adam", "sgd"]
Order = Literal["flow-first", "encoder-first"]


@dataclass(frozen=True)
class FCCAState(Clusters):
    """K centres that share their encoder, and all that clustering needs of every client's last flow."""

    signatures: Tensor  # [N, 2, C, d]: mean directions of the features each client's flow generates
    fits: Tensor  # [N] int64: rounds in which the client trained its flow; 0: unknown
    moments: Tensor  # [2, d]: mean and standard deviation of the encoder's features
    key: Key  # eps1 and eps2 come from it: the same for all clients and rounds


@dataclass(frozen=True)
class FCCA(Method[FCCAState]):
    """FCCA, with its +Prox (``prox`` above 0) and +Per (``per``) variants."""

    name: ClassVar[str] = "fcca"
    summary: ClassVar[str] = "global encoder, K heads; clients clustered by conditional flows of their features"
    paper: ClassVar[str] = "Zhou, Shi, Tian, Li, Ye, Lv, 2023"
    needs = ("hidden layer",)
    waits = "warmup"
    needs_classes: ClassVar[str] = "learns a flow of the features of each class"

    k: int = option(4, "clusters")
    local: SGD = SGD()
    prox: float = option(0.0, "+Prox: strength of the pull towards the received encoder and head")
    per: bool = option(False, "+Per: every client goes on with a head of its own")
    meta: float = option(0.0, "+PerFedAvg: the inner step of first-order MAML, and the client's own step; 0: none")
    alpha: float = option(1.0, "weight of the UNKNOWN samples (eq. 3); 0: none")
    warmup: int = option(10, "rounds that flows train before they are compared; one head for all until then")
    centred: bool = option(False, "clients send the means of their labels; flows learn only what lies around these")
    order: Order = option("flow-first", "flows see the encoder as received (Fig. 1) or as trained (Algorithm 1)")
    recipe: Recipe = option("robust", "how flows are trained; 'literal' (the paper's) makes deep ones diverge")
    optimizer: Optimizer | None = option(None, "of the flows; unset: 'adam' (clipped) with 'robust', else 'sgd'")
    standardised: bool | None = option(None, "flows see features of mean 0 and deviation 1; unset: with 'robust'")
    per_dim: bool | None = option(None, "the flows' loss is divided by their dimension; unset: with 'robust'")
    flow_steps: int = option(20, "steps of a client's flow in a round")
    flow_batch: int = option(64, "features in a step, and as many UNKNOWN samples")
    flow_lr: float | None = option(None, "unset: 0.005 with 'adam', 0.01 with 'sgd'")
    dim: int = option(64, "features of a flow; more of them are projected to so many")
    blocks: int = option(4, "couplings of a flow")
    hidden: int = option(64, "width of a coupling's nets")
    clamp: float = option(2.0, "a coupling's log-scale stays within (-clamp, clamp)")
    draws: int = option(128, "samples of each of eps1 and eps2, for every label")
    restarts: int = option(20, "of k-means")

    def __post_init__(self) -> None:
        at_least(1, self, "k", "flow_steps", "flow_batch", "blocks", "hidden", "draws", "restarts")
        at_least(2, self, "dim")
        at_least(0, self, "warmup", "prox", "alpha", "meta")
        above(0, self, "flow_lr", "clamp")
        one_of(Recipe, self, "recipe")
        one_of(Order, self, "order")
        if self.optimizer is not None:
            one_of(Optimizer, self, "optimizer")
        if self.meta and self.prox:
            raise ValueError(f"meta={self.meta} should be 0 with prox={self.prox}: they are two local objectives")

    # -- the server ------------------------------------------------------------------------------------

    def init(self, task: Task, cohort: Cohort, key: Key) -> FCCAState:
        n, d = len(cohort), self.flow(task).dim
        if not 1 <= self.k <= n:
            raise ValueError(f"k={self.k} should be between 1 and the number of clients, {n}")
        if set(task.head) >= set(task.params):
            raise ValueError("model should have a layer before its classifier for fcca: its encoder is what all share")
        return FCCAState(
            repeat(first_net(task, key), self.k),
            torch.zeros(n, dtype=torch.int64),
            torch.zeros(n, 2, task.classes, d),
            torch.zeros(n, dtype=torch.int64),
            torch.stack([torch.zeros(d), torch.ones(d)]),
            keys.fold_in(key, "eps"),
        )

    def round(self, state: FCCAState, cohort: Cohort) -> FCCAState:
        task, centers = cohort.task, state.centers
        mean = MeanBy({n: t[:1] for n, t in centers.items() if n not in task.head}, field="body", weights="n")
        received = take(centers, state.assign[cohort.ids])
        got = cohort.run(self.train, {"moments": state.moments}, theta=received, into=mean)  # clients, lines 1-8
        state = self._remember(state, cohort, got.ids, got["flow"])  # server, lines 1-4
        assign, ready = self._cluster(state, cohort)  # line 5
        body = row(mean.result(), 0)  # line 6
        heads = mean_by(got["head"], assign[got.ids], old=select(centers, task.head), weights=got["n"])  # lines 7-9
        if not ready:
            heads = take(heads, torch.zeros(self.k, dtype=torch.int64))
        moments = self._moments(mean_all({"moments": got["moments"]}, weights=got["n"])["moments"])
        whole = {**repeat(body, self.k), **heads}
        return replace(state, centers=select(whole, centers), assign=assign, moments=moments)

    def serve(self, state: FCCAState, ids: Tensor) -> Served:
        return serve_clusters(state, ids, personal=self.personal)

    def admit(self, state: FCCAState, cohort: Cohort) -> Served:
        """A new client trains its flow as long as the others did before the first clustering."""
        got = cohort.run(self.introduce, {"theta": row(state.centers, 0), "moments": state.moments})
        new = self._signatures(state, cohort, got["flow"]).nan_to_num()
        known = state.fits > 0
        alike = pairwise(torch.cat([new, state.signatures[known]]))[: len(new), len(new) :]
        scores = mean_by_cluster(alike, state.assign[known], self.k)
        log_margin(cohort, -scores)
        index = put(torch.zeros(len(cohort), dtype=torch.int64), _places(got.ids, cohort.ids), scores.argmax(dim=1))
        if self.per:
            cohort.run(self.tune_head, theta=take(state.centers, index))
        return Served(state.centers, index, personal=self.personal)

    def reads_again(self) -> bool:
        return self.meta > 0.0

    def cost(self, task: Task) -> tuple[int, int]:
        flow = self.flow(task)
        moments = 2 * flow.dim * 4
        means = flow.classes * flow.dim * 4 if self.centred else 0
        return task.size + moments, task.size + moments + 4 * start_of(flow).numel() + means + 4

    @property
    def personal(self) -> bool:
        return self.per or self.meta > 0

    def literal(self, part: bool | None) -> bool:
        """Whether a part of the flows' training is the paper's, where it is not set by itself."""
        return self.recipe == "literal" if part is None else not part

    def similarity(self, state: FCCAState) -> tuple[Similarity, Tensor]:
        """B, P and S of the clients that have trained a flow, and the ids of these clients."""
        known = (state.fits > 0).nonzero().flatten()
        return similarity(state.signatures[known]), known

    def flow(self, task: Task) -> Flow:
        return Flow(min(task.width, self.dim), task.classes, self.blocks, self.hidden, self.clamp)

    def _signatures(self, state: FCCAState, cohort: Cohort, flows: Tensor) -> Tensor:
        eps = keys.normal(state.key, 2, self.draws, state.signatures.shape[-1])
        signatures = cohort.map(self.generate, {"eps": eps}, flow=flows)["signature"]
        assert isinstance(signatures, Tensor)
        return signatures

    def _remember(self, state: FCCAState, cohort: Cohort, ids: Tensor, flows: Tensor) -> FCCAState:
        """What the new flows generate; a client whose flow diverged is known by its last good one."""
        new = self._signatures(state, cohort, flows)
        good = flows.any(dim=1) & new.flatten(1).isfinite().all(dim=1)
        if not bool(good.all()):
            log.warning("the flows of clients %s diverged and begin anew", ids[~good].tolist())
        cohort.log(flows_lost=(~good).sum().item())
        ids = ids[good]
        signatures = put(state.signatures, ids, new[good])
        return replace(state, signatures=signatures, fits=put(state.fits, ids, state.fits[ids] + 1))

    def _cluster(self, state: FCCAState, cohort: Cohort) -> tuple[Tensor, bool]:
        """Every known client's cluster, and whether flows are mature enough for there to be clusters at all."""
        known = (state.fits > 0).nonzero().flatten()
        ready = len(known) >= self.k and int(state.fits.sum()) > self.warmup * len(state.fits)
        assign = state.assign
        if ready:
            alike = pairwise(state.signatures[known])
            groups = kmeans(alike, self.k, keys.fold_in(cohort.key, "kmeans"), self.restarts)
            assign = put(assign, known, keep_names(groups, assign[known], self.k))
            log_margin(cohort, -mean_by_cluster(alike, assign[known], self.k))
        log_clusters(cohort, state.assign, assign, self.k)
        return assign, ready

    def _moments(self, raw: Tensor) -> Tensor:
        """Mean and deviation from the means of the features and of their squares."""
        if self.literal(self.standardised):
            return torch.stack([torch.zeros_like(raw[0]), torch.ones_like(raw[1])])
        std = (raw[1] - raw[0].square()).clamp(min=0.0).sqrt()
        # a unit that is dead now may come to life before the next moments arrive
        return torch.stack([raw[0], std.clamp(min=0.1 * std.mean() + 1e-6)])

    @on_server
    def generate(self, me: Client, eps: Tensor, flow: Tensor) -> dict[str, Payload]:
        shape = self.flow(me.task)
        size = start_of(shape).numel()
        means = flow[size:].reshape(shape.classes, shape.dim) if self.centred else None
        return {"signature": signature(shape, unvector(flow[:size], first_weights(shape)), eps, means)}

    # -- the client ------------------------------------------------------------------------------------

    @on_client(
        body=Model(of="theta"),
        head=Model(of="theta"),
        flow=Statistic("a generative model of its features"),
        moments=Statistic("the means of its features and of their squares"),
        n=Weight(),
        own_flow=Kept("its flow"),
        own_head=Kept("its head"),
    )
    def train(self, me: Client, theta: Tree, moments: Tensor) -> dict[str, Payload]:
        # Fig. 1 shows the flow the encoder as received, which is the same for every client; Algorithm 1 trains the
        # encoder first, and then no two clients' features live in quite the same space.
        received = theta
        if self.per:
            theta = {**theta, **(me.tree("own_head") or {})}
        pull = proximal(theta, self.prox)
        theta = sgd(me, theta, self.local, first_order(me, self.local, self.meta) if self.meta else pull)
        head = select(theta, me.task.head)
        if self.per:
            me.keep_tree("own_head", head)
        z = self._features(me, received if self.order == "flow-first" else theta)
        flow, sent = self._describe(me, z, moments, self.flow_steps)
        me.keep(own_flow=flow)
        body = {n: t for n, t in theta.items() if n not in head}
        return {"n": me.size, "body": body, "head": head, "flow": sent, "moments": raw_moments(me, z)}

    @on_client(flow=Statistic("a generative model of its features"))
    def introduce(self, me: Client, theta: Tree, moments: Tensor) -> dict[str, Payload]:
        """A newcomer's flow, after as many steps as the others had before the first clustering."""
        _, sent = self._describe(me, self._features(me, theta), moments, self.flow_steps * max(self.warmup, 1))
        return {"flow": sent}

    @on_client(own_head=Kept("its head"))
    def tune_head(self, me: Client, theta: Tree) -> dict[str, Payload]:
        me.keep_tree("own_head", select(sgd(me, theta, self.local, only=me.task.head), me.task.head))
        return {}

    @on_client(theta=Kept())
    def personalise(self, me: Client, theta: Tree, **shared: Payload) -> dict[str, Payload]:
        theta = {**theta, **(me.tree("own_head") or {})} if self.per else theta
        return {"theta": sgd(me, theta, replace(self.local, lr=self.meta, steps=1)) if self.meta else theta}

    def _features(self, me: Client, theta: Tree) -> Tensor:
        """``[n, d]``: the encoder's output on all train data, projected if it is too wide for a flow."""
        z = torch.cat([me.task.features(theta, x) for x, _, _ in me.train.pieces()])
        return z if me.task.width <= self.dim else z @ projection(me.task.width, self.dim).to(z.device)

    def _describe(self, me: Client, z: Tensor, moments: Tensor, steps: int) -> tuple[Tensor, Tensor]:
        """The client's flow after some more steps, and what it sends: the flow and, if ``centred``, its labels' means
        in standard units. A flow that diverged is sent as zeros and begins anew."""
        means = label_means(me, z - moments[0]) if self.centred else None
        flow, whole = self._fit(me, z if means is None else z - means[me.train.y], moments, steps)
        sent = flow if means is None else torch.cat([flow, (means / moments[1]).flatten() * whole])
        return torch.where(whole, flow, start_of(self.flow(me.task)).to(flow.device)), sent

    def _fit(self, me: Client, z: Tensor, moments: Tensor, steps: int) -> tuple[Tensor, Tensor]:
        flow = self.flow(me.task)
        adam = not self.literal(None if self.optimizer is None else self.optimizer == "adam")
        lr = self.flow_lr or (5e-3 if adam else 0.01)
        how = Fit(steps, self.flow_batch, lr, self.alpha, adam, per_dim=not self.literal(self.per_dim))
        start = me.state.get("own_flow", start_of(flow).to(z.device))
        return fit(me, flow, start, (z - moments[0]) / moments[1], how)


def _places(ids: Tensor, among: Tensor) -> Tensor:
    """The position of every id in ``among``."""
    where = {int(i): j for j, i in enumerate(among)}
    return torch.tensor([where[int(i)] for i in ids], dtype=torch.int64)
