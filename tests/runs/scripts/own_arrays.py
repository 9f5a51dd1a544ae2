"""Trains on own arrays in a folder; started again it goes on: DATA.npz OUT METHOD."""

import sys

import numpy as np

import clusterfl

data, (out, name) = np.load(sys.argv[1]), sys.argv[2:]
train, test = ([(data[f"x_{s}_{i}"], data[f"y_{s}_{i}"]) for i in range(8)] for s in ("train", "test"))
called = [f"hospital-{i}" for i in range(8)]
population = clusterfl.Population.from_arrays(train, test, names=called, unseen=2, name=str(data["name"]))
method = clusterfl.METHODS[name](local=clusterfl.SGD(lr=0.1, batch=10))
clusterfl.run(population, "mlp", method, rounds=40, engine="serial", out=out, resume=True)
