"""Flower's two entry points. Flower's processes import this module; nothing else does."""

from __future__ import annotations

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from clusterfl.engines.flower.records import WHO, from_record, to_record
from clusterfl.federate.resident import ask

server_app = ServerApp()
client_app = ClientApp()


@server_app.main()
def main(grid: Grid, context: Context) -> None:
    from clusterfl.federate.server import serve

    serve(grid, context.run_id, dict(context.run_config))


def answer(message: Message, context: Context) -> Message:
    """Any procedure of the configured method, an evaluation, or a hello."""
    asked = from_record(message.content)
    said = ask(str(context.node_config.get("socket", "")), asked)
    if said is None:  # nobody is at home: it is computed here, which takes longer
        from clusterfl.federate.node import node_of

        said = node_of(dict(context.node_config)).answer(asked)
    return Message(to_record(said), reply_to=message)


@client_app.train()
def train(message: Message, context: Context) -> Message:
    return answer(message, context)


@client_app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    return answer(message, context)


@client_app.query()
def query(message: Message, context: Context) -> Message:
    if WHO in message.content:  # without keys a node says itself who it is
        name = str(context.node_config["name"])
        return Message(RecordDict({WHO: ConfigRecord({"name": name})}), reply_to=message)
    return answer(message, context)
