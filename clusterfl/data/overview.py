"""What a population gives each client, in numbers."""

from __future__ import annotations

from typing import Any

from clusterfl.data.population import Population


def overview(population: Population) -> dict[str, Any]:
    """Counts, as JSON: one entry per client."""
    truth = population.truth
    clients = []
    for i in range(len(population.train)):
        _, y = population.train.of(i)
        if population.regression:
            labels: dict[str, Any] = {"target_mean": float(y.mean()), "target_std": float(y.std(correction=0))}
        else:
            labels = {"labels": y.bincount(minlength=population.classes).tolist()}
        clients.append(
            {
                "client": population.names[i],
                "train": len(y),
                "test": int(population.test.sizes[i]),
                **labels,
                "true_cluster": None if truth is None else int(truth[i]),
                "unseen": i >= population.clients,
            }
        )
    return {
        "data": population.name,
        "clients": population.clients,
        "unseen": population.unseen,
        "classes": population.classes,
        "class_names": None if population.class_names is None else list(population.class_names),
        "feature_names": None if population.feature_names is None else list(population.feature_names),
        "input_shape": list(population.input_shape),
        "true_clusters": population.true_clusters,
        "soft_truth": population.soft_truth,
        "sha256": population.digest,
        "notes": list(population.notes),
        "per_client": clients,
    }
