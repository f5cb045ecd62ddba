"""Runs the member of a SuperNode: `--node-config 'home="/srv/sccvfl" member="party-0"'` says which it is."""

from dataclasses import asdict

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from secure_sccvfl.runs.member.orchestrated import Site, run_member

app = ClientApp()


@app.query()
def session(message: Message, context: Context) -> Message:
    site = Site(str(context.node_config["home"]), str(context.node_config["member"]))
    asked = message.content["session"]
    outcome = run_member(site, str(context.run_id), str(asked["action"]), str(asked["session"]), lambda: False)
    reply = ConfigRecord({"member": site.member, **asdict(outcome)})
    return Message(RecordDict({"outcome": reply}), reply_to=message)
