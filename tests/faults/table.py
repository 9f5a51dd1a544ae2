"""The table: what is done, how often, and what must happen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from . import clients, configs, data, files, kills, load, pressure, replies, surroundings, writes
from .common import Tally

Check = Callable[[Tally, int, Path], None]


@dataclass(frozen=True)
class Fault:
    """A row: ``small`` in `make test` (0: only in `make faults`), ``full`` in `make faults`."""

    id: str
    number: str  # in older pages; "": it is not in them
    what: str
    promise: str
    check: Check
    small: int
    full: int


FAULTS: dict[str, Fault] = {
    fault.id: fault
    for fault in (
        Fault(
            "kill",
            "T1",
            "SIGKILL at a random time, once or more, then resume; every method, serial, stacked and pool",
            "models, assignments, metrics, rounds.jsonl and the last checkpoint have the unbroken run's SHA-256",
            kills.kill_at_random,
            2,
            100,
        ),
        Fault(
            "kill-in-write",
            "T3",
            "SIGKILL during a checkpoint's write, at a random offset, or around its rename",
            "a whole checkpoint always loads: the new one or the one before",
            writes.kill_in_write,
            6,
            200,
        ),
        Fault(
            "cluster-vanishes",
            "T5",
            "all clients of one cluster vanish",
            "its model is unchanged and reported as stale; the others go on",
            replies.cluster_vanishes,
            5,
            10,
        ),
        Fault(
            "not-finite",
            "T6",
            "NaN, Inf or one NaN in a model, under every rule of aggregation, alone and by cluster",
            "that client is rejected and counted; the rest reach the state they reach without it",
            replies.not_finite,
            10,
            30,
        ),
        Fault(
            "wrong-shape",
            "T7",
            "wrong or broadcastable shape, float64, complex, integers, text, missing and extra key, over the wire",
            "rejected; never broadcast, never another dtype",
            replies.wrong_shape,
            8,
            8,
        ),
        Fault("wrong-weight", "T8", 'weight 0, -5, NaN, 1e12, "many"', "rejected", replies.wrong_weight, 5, 5),
        Fault(
            "damaged-message",
            "T10",
            "messages cut short or with a flipped bit",
            "each is dropped and counted; whole ones count; the server lives",
            replies.damaged_messages,
            60,
            500,
        ),
        Fault(
            "repeated-message",
            "T11-12",
            "replies that come twice, late, or from the round before (50 of each)",
            "counted once or dropped; the model has the same bits",
            replies.repeated_messages,
            12,
            50,
        ),
        Fault(
            "other-order", "T13", "replies in another order", "the model has the same bits", replies.other_order, 5, 20
        ),
        Fault(
            "disk-full",
            "T17",
            "disk full at a checkpoint, the journal, the log, the results",
            "one sentence and exit code 2; the checkpoint before is whole; a resume ends in the same bits",
            writes.disk_full,
            3,
            7,
        ),
        Fault(
            "damaged-checkpoint",
            "T18",
            "checkpoint with a flipped bit; cut, zeroed, empty, of another version, hostile",
            "noticed every time; the one before is used, with a warning",
            files.damaged_checkpoint,
            40,
            400,
        ),
        Fault(
            "hostile-file",
            "T19",
            "checkpoint, message, model or dataset with a pickle or a foreign class in it",
            "one sentence; nothing in it is run",
            files.hostile_files,
            6,
            6,
        ),
        Fault(
            "damaged-file",
            "T20",
            "damaged dataset, model or manifest: cut, flipped, emptied, zeroed",
            "an error that names the file, or the same samples",
            files.damaged_files,
            28,
            140,
        ),
        Fault(
            "misspelt-config",
            "T21",
            "every key of the config misspelt and of the wrong type; values out of range",
            "refused in one sentence, with the nearest key",
            configs.misspelt_config,
            10_000,
            10_000,
        ),
        Fault(
            "impossible-k",
            "T22",
            "K above the clients, K = 0, K = 1, K above the groups that there are",
            "refused, refused, FedAvg bit for bit, runs",
            clients.impossible_k,
            1,
            99,
        ),
        Fault(
            "silent-cluster",
            "T23",
            "a cluster that nobody answers for, every clustered method",
            "its model is kept and reported as stale; where the rest train all models (mixtures) or are cut in K anew "
            "(kmeans, clove), they go on with it; nothing is divided by zero",
            clients.silent_cluster,
            99,
            99,
        ),
        Fault(
            "few-samples",
            "T24",
            "clients with 0 samples, 1 sample, one class; batch of 1 with BatchNorm; every method, two engines",
            "0: takes no part, logged once; the others run and everything stays finite",
            clients.few_samples,
            12,
            9_999,
        ),
        Fault(
            "clients-alike",
            "T25",
            "identical clients, zero updates, both; every method",
            "a defined result, all of it finite",
            clients.clients_alike,
            4,
            99,
        ),
        Fault(
            "many-clients",
            "T28",
            "10,000 clients, all at the start, then 20 rounds with 1 % at a time, against 1,000",
            "peak of memory from the first to the results, data apart, within 1.3 times",
            load.many_clients,
            200,
            10_000,
        ),
        Fault(
            "many-rounds",
            "T29",
            "5,000 rounds in one process",
            "memory grows by the records of the rounds alone; no file stays open",
            load.many_rounds,
            50,
            5_000,
        ),
        Fault(
            "same-seed",
            "T30",
            "the same seed in one process, with 1 and with 2 workers, and again",
            "the same bits",
            kills.same_seed,
            1,
            5,
        ),
        Fault(
            "two-runs",
            "T31",
            "two runs in one folder",
            "the second is refused and writes nothing; once the first is killed it may run",
            kills.two_runs,
            1,
            5,
        ),
        Fault(
            "diverged-once",
            "T32",
            "all clients diverge in a round; methods whose clients keep something, serial, stacked and wire",
            "what they keep is as before, the round is reported as lost, the next one trains",
            pressure.diverged_once,
            3,
            9,
        ),
        Fault(
            "stopped-worker",
            "T33",
            "SIGSTOP to a worker process at a random time",
            "it is ended, its clients are asked again, the bits are serial's",
            pressure.stopped_worker,
            1,
            8,
        ),
        Fault(
            "little-to-share",
            "T34",
            "no shared memory for messages to worker processes, no open files for their answers",
            "messages are copied, the bits are serial's",
            pressure.little_to_share,
            1,
            3,
        ),
        Fault(
            "lying-checkpoint",
            "T35",
            "checkpoints with right digests and wrong types",
            "passed over with a warning; the one before is used",
            pressure.lying_checkpoint,
            4,
            9,
        ),
        Fault(
            "impossible-places",
            "T36",
            "a folder below a file, with a name of 300 letters, that vanishes; a config that is a folder or no text; "
            "a billion clients, a seed of 2^64, a step of 1e300",
            "one sentence each",
            pressure.impossible_places,
            1,
            1,
        ),
        Fault(
            "refused-force",
            "",
            "`--force` over an old run, with settings that turn out to be impossible",
            "one sentence; not a byte of the old run is lost",
            pressure.refused_force,
            3,
            3,
        ),
        Fault(
            "always-diverged",
            "",
            "steps far too long for every client in every round",
            "the results say that no round had a sound reply; exit code 1",
            surroundings.nothing_but_lost_rounds,
            1,
            3,
        ),
        Fault(
            "interrupt-stopped",
            "",
            "Ctrl-C while a worker process stands still (SIGSTOP)",
            "the run ends and says how to go on; exit code 130",
            surroundings.interrupted_while_stopped,
            1,
            3,
        ),
        Fault(
            "no-spare-core",
            "",
            "a Ray cluster loses an actor and has no core for another",
            "fewer actors go on, the bits are serial's",
            surroundings.no_spare_core,
            0,
            1,
        ),
        Fault(
            "small-dev-shm",
            "",
            "worker processes with a /dev/shm of 64 MB (less than clients hold), of 1 MB, and one that is read-only; "
            "`sweep --jobs 2` with the last",
            "said, and the bits of one process",
            surroundings.small_shared_memory,
            1,
            3,
        ),
        Fault(
            "few-open-files",
            "",
            "worker processes, up to 20,000 clients that keep something, `ulimit -n` of 128, 256 and 1,024",
            "the bits of one process",
            surroundings.few_open_files,
            1,
            3,
        ),
        Fault(
            "read-only-folder",
            "",
            "folders that may not be written, without root's rights: run, compare, resume, report",
            "one sentence, exit code 2, nothing written",
            surroundings.forbidden_folders,
            1,
            5,
        ),
        Fault(
            "two-comparisons",
            "",
            "two `compare` into one folder at a time",
            "one is refused in a sentence, the other is whole",
            surroundings.two_comparisons,
            1,
            3,
        ),
        Fault(
            "not-finite-data",
            "",
            "NaN, infinity and 1e300 in train and test samples: npz, CSV, Parquet, arrays, datasets",
            "refused by client or file, and row",
            data.not_finite_data,
            10,
            30,
        ),
        Fault(
            "impossible-data",
            "",
            "labels of 2^63 - 1, 2^64 - 1, NaN, -1; complex numbers, text, objects, dates as features; damaged tables",
            "one sentence each",
            data.impossible_data,
            10,
            10,
        ),
        Fault(
            "global-draws",
            "",
            "a user's module that draws from the global generator (F.dropout and its like), and every dropout layer",
            "refused by name; layers draw by keys, to the same bits whatever the global generator",
            pressure.global_draws,
            3,
            6,
        ),
    )
}
