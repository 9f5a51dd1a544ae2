"""A federation's folder: keys that only their owners can read, scripts, and what it refuses."""

from __future__ import annotations

import ssl
from dataclasses import replace
from pathlib import Path

import pytest

from clusterfl.commands.app import app
from clusterfl.config import Config
from clusterfl.errors import ConfigError
from clusterfl.federate.certificates import public_pem, write_secret
from clusterfl.federate.folder import Federation
from clusterfl.federate.init import for_nodes, init
from clusterfl.federate.roster import with_node, without_node
from tests.commands.calls import call


def made(folder: Path, **more: object) -> Federation:
    folder.mkdir(parents=True, exist_ok=True)
    return init(Federation(folder, ("rome", "oslo"), **more), Config.load(None))  # type: ignore[arg-type]


def test_a_folder_holds_what_each_party_needs(tmp_path: Path) -> None:
    federation = made(tmp_path / "f", host="fl.example.org", port=1234)
    assert Federation.read(tmp_path / "f") == federation
    secret = [federation.authority[1], federation.certificate[1], *(tmp_path / "f" / "nodes").glob("*/*key")]
    assert len(secret) == 6
    for path in secret:
        assert path.stat().st_mode & 0o777 == 0o600, path
    assert {p.name for p in federation.node("rome").iterdir()} == {"key", "own.crt", "own.key", "ca.crt", "start.sh"}
    start = federation.node("rome") / "start.sh"
    assert "--name rome --server fl.example.org:1234" in start.read_text() and start.stat().st_mode & 0o100
    assert federation.public_keys()["rome"] != federation.public_keys()["oslo"]
    assert public_pem(federation.public_key("rome")).startswith(b"-----BEGIN PUBLIC KEY")
    readme = (tmp_path / "f" / "README.md").read_text()
    assert "rome, oslo" in readme and "TLS" in readme
    config = Config.load(federation.config)
    assert config.engine.name == "flower" and config.data.source == "given" and config.data.clients == 2


def test_the_servers_certificate_is_trusted_by_its_own_authority_alone(tmp_path: Path) -> None:
    one, two = made(tmp_path / "one"), made(tmp_path / "two")

    def shakes_hands(server: Federation, trusting: Federation) -> bool:
        here, there, back, forth = ssl.MemoryBIO(), ssl.MemoryBIO(), ssl.MemoryBIO(), ssl.MemoryBIO()
        del here, there
        offering = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        offering.load_cert_chain(*server.certificate)
        asking = ssl.create_default_context(cafile=str(trusting.authority[0]))
        a = asking.wrap_bio(back, forth, server_hostname="127.0.0.1")
        b = offering.wrap_bio(forth, back, server_side=True)
        done = 0
        for side in (a, b, a, b, a):
            try:
                side.do_handshake()
                done += 1
            except ssl.SSLWantReadError:
                pass
            except ssl.SSLError:
                return False
        return done >= 2

    assert shakes_hands(one, one)
    assert not shakes_hands(one, two)


def test_an_existing_federation_and_an_existing_key_are_not_written_over(tmp_path: Path) -> None:
    made(tmp_path / "f")
    with pytest.raises(ConfigError, match="holds a federation already"):
        made(tmp_path / "f")
    with pytest.raises(FileExistsError):
        write_secret(tmp_path / "f" / "nodes" / "rome" / "key", b"another")


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"insecure": True, "host": "10.0.0.5"}, "loopback only"),
        ({"nodes": ("a", "a")}, "different names"),
        ({"nodes": ("../up",)}, "letters, digits"),
    ],
)
def test_what_cannot_be_is_refused(wrong: dict[str, object], words: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=words):
        replace(Federation(tmp_path, ("rome", "oslo")), **wrong).check()  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("change", "words"),
    [("attack.kind=sign-flip", "should be 'none' on real nodes"), ("data.drift_round=2", "nodes hold what they hold")],
)
def test_what_only_a_simulation_can_do_is_refused(change: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=words):
        for_nodes(Config.load(None, [change]), Federation(tmp_path, ("rome",)))


def test_a_new_node_gets_the_next_number(tmp_path: Path) -> None:
    grown = with_node(made(tmp_path / "f"), "bern")
    assert Federation.read(tmp_path / "f").nodes == ("rome", "oslo", "bern") == grown.nodes
    assert (grown.node("bern") / "key").exists() and grown.trained(Config.load(grown.config)) == ("rome", "oslo")


def test_a_revoked_node_is_not_welcome_and_comes_back_with_another_key(tmp_path: Path) -> None:
    federation = made(tmp_path / "f")
    before = federation.public_keys()
    with pytest.raises(ConfigError, match="revoke it first"):
        with_node(federation, "rome")
    with pytest.raises(ConfigError, match="did you mean 'rome'"):
        without_node(federation, "rom")
    smaller = without_node(federation, "rome")
    assert smaller.welcome == ("oslo",) and smaller.nodes == ("rome", "oslo") and set(smaller.public_keys()) == {"oslo"}
    again = with_node(smaller, "rome")
    assert again.welcome == ("rome", "oslo") and again.public_keys()["rome"] != before["rome"]


def test_commands(tmp_path: Path) -> None:
    done = call("federate", "init", "f", "--node", "rome", "--node", "oslo", folder=tmp_path)
    assert done.exit_code == 0 and "2 nodes of 127.0.0.1:9092" in done.stdout, done.stderr
    done = call("federate", "status", "f", folder=tmp_path)
    assert done.exit_code == 0 and "rome" in done.stdout and "never" in done.stdout
    done = call("federate", "stop", "f", folder=tmp_path)
    assert done.stdout == "nothing was running\n"
    for many in ("0", "-1", "1000000"):
        done = call("federate", "init", "g", "--nodes", many, folder=tmp_path)
        assert done.exit_code == 2 and f"--nodes {many} should be at least 1 and at most 10,000" in done.stderr
    done = call("federate", "init", "g", folder=tmp_path)
    assert done.exit_code == 2 and "--node NAME" in done.stderr
    done = call("federate", "init", "g", "--nodes", "2", "--insecure", "--host", "10.0.0.1", folder=tmp_path)
    assert done.exit_code == 2 and "loopback only" in done.stderr
    done = call("federate", "run", "nowhere", folder=tmp_path)
    assert done.exit_code == 2 and "should be a federation's folder" in done.stderr
    done = call("run", "--set", "engine.name=flower", "--out", "r", folder=tmp_path)
    assert done.exit_code == 2 and "clusterfl federate" in done.stderr and not (tmp_path / "r").exists()
    assert app is not None
