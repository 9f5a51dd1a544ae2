"""Simulation on several machines: a Ray cluster of two nodes, one of which is killed in the middle of a round."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from clusterfl.engines import Pool, Ray
from clusterfl.errors import ClusterflError
from clusterfl.methods.fedper import FedPer
from clusterfl.parts.local import SGD
from clusterfl.testing import assert_equal, play, small_population, small_task
from tests.conftest import nothing_to_share

ray = pytest.importorskip("ray", reason="the ray engine needs the extra: pip install 'clusterfl[ray]'")
pytestmark = pytest.mark.skipif(nothing_to_share(), reason="Ray's nodes share memory, and /dev/shm has no room")

METHOD = FedPer(local=SGD(lr=0.1, batch=10, epochs=1))


@pytest.fixture
def cluster() -> Iterator[Any]:
    """Two raylets on loopback with a core each."""
    from ray.cluster_utils import Cluster

    from clusterfl.engines.ray import _at_home

    home = {"node_ip_address": "127.0.0.1", "num_cpus": 1}
    with _at_home():
        made = Cluster(initialize_head=True, head_node_args={**home, "include_dashboard": False})
        made.add_node(**home)
        made.wait_for_nodes()
    yield made
    ray.shutdown()
    made.shutdown()


def test_a_node_that_is_killed_in_a_round_changes_no_bit(
    cluster: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Then the other one too: the run ends with a sentence that says what to do."""
    monkeypatch.setattr("clusterfl.engines.ray.START", 2.0)
    with Pool(small_task(), small_population(), workers=1) as pool:
        expected, kept = play(METHOD, pool), pool.states()
    with Ray(small_task(), small_population(), workers=2, address=cluster.address) as actors:
        assert len({node_of(member) for member in actors._members}) == 2, "an actor on each node"
        finished, looks = actors.finished, [0]

        def killing(busy: list[Any], timeout: float) -> list[Any]:
            looks[0] += 1
            if looks[0] == 2:
                (victim,) = cluster.worker_nodes
                cluster.remove_node(victim, allow_graceful=False)
            return finished(busy, timeout)

        monkeypatch.setattr(actors, "finished", killing)
        assert_equal(expected, play(METHOD, actors), "after a node's death")
        assert_equal(kept, actors.states(), "what clients keep")
        assert looks[0] > 2 and len(actors._members) == 1 and "1 go on" in caplog.text

        holder = ray.remote(num_cpus=1)(Holder).remote()  # takes the last core as soon as it is free
        ray.kill(actors._members[0].actor)
        ray.get(holder.ready.remote())
        with pytest.raises(ClusterflError, match=r"no Ray actor is left.*resume the run once the cluster has one"):
            play(METHOD, actors)


class Holder:
    def ready(self) -> None: ...


def node_of(member: Any) -> str:
    """The node that an actor lives on."""
    from ray._private.state import actors

    ray.get(member.actor.ready.remote())
    return str(actors(member.actor._actor_id.hex())["Address"]["NodeID"])
