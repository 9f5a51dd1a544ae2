"""How many clusters? Asked before training, and checked by training with too few, enough and too many.

python examples/choosing_k.py
"""

import clusterfl
from clusterfl import keys
from clusterfl.runs.choose_k import choose_k
from clusterfl.runs.setup import prepare

if __name__ == "__main__":
    config = clusterfl.Config.load(None, ["rounds=5", "data.clients=16", "engine.name=serial"])
    population = config.population()
    with prepare(config, population).engine() as engine:
        advice = choose_k(engine, config.local, range(1, 7), keys.key(0))
    print(f"k = {advice.k}: {advice.reason}")
    for k in (2, advice.k, 6):
        outcome = clusterfl.run(population, "mclr", clusterfl.METHODS["ifca"](k=k, local=config.local), rounds=5)
        print(f"k = {k}: accuracy {outcome.accuracy.mean:.3f}, clusters in use {outcome.clusters_found}")
