"""The methods, one file each."""

from __future__ import annotations

from typing import Any

from clusterfl.method import Method
from clusterfl.methods.awcfl import AWCFL
from clusterfl.methods.cfl import CFL
from clusterfl.methods.clove import CLoVE
from clusterfl.methods.ditto import Ditto
from clusterfl.methods.fcca import FCCA
from clusterfl.methods.fedavg import FedAvg
from clusterfl.methods.fedavg_ft import FedAvgFT
from clusterfl.methods.feddane import FedDANE
from clusterfl.methods.feddist import FedDist, FedDWS
from clusterfl.methods.feddsmic import FedDS, FedDSMIC
from clusterfl.methods.fedem import FedEM
from clusterfl.methods.fedfomo import FedFomo
from clusterfl.methods.fedgwc import FedGWC
from clusterfl.methods.fedper import FedPer
from clusterfl.methods.fedprox import FedProx
from clusterfl.methods.fedrc import FedRC
from clusterfl.methods.fedsgd import FedSGD
from clusterfl.methods.fesem import FeSEM
from clusterfl.methods.fl_hc import FLHC
from clusterfl.methods.flux import FLUX
from clusterfl.methods.hypcluster import HypCluster
from clusterfl.methods.ifca import IFCA
from clusterfl.methods.kin import Kin
from clusterfl.methods.kmeans import KMeans
from clusterfl.methods.local import Local
from clusterfl.methods.mcfl import MCFL
from clusterfl.methods.md_icfl import MDICFL
from clusterfl.methods.pacfl import PACFL
from clusterfl.methods.per_fedavg import PerFedAvg
from clusterfl.methods.pfa import PFA
from clusterfl.methods.robust_tkm import RobustTKM

METHODS: dict[str, type[Method[Any]]] = {
    m.name: m
    for m in (
        Local,
        FedAvg,
        IFCA,
        Kin,
        FCCA,
        MDICFL,
        FeSEM,
        FedDS,
        FedDSMIC,
        FedAvgFT,
        FedDANE,
        FedDist,
        FedDWS,
        FedFomo,
        FedPer,
        FedProx,
        FedSGD,
        HypCluster,
        PerFedAvg,
        PFA,
        RobustTKM,
        CFL,
        FLHC,
        KMeans,
        AWCFL,
        MCFL,
        PACFL,
        Ditto,
        FedEM,
        FedRC,
        FLUX,
        CLoVE,
        FedGWC,
    )
}
