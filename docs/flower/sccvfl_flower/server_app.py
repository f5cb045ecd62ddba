"""Starts all members at once and waits for all; a run that did not end well raises, with the responsible member."""

import time

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.serverapp import Grid, ServerApp

from secure_sccvfl.runs.member.orchestrated import Outcome, verdict

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    config = context.run_config
    while len(nodes := list(grid.get_node_ids())) < int(config["members"]):
        time.sleep(1)
    asked = RecordDict({"session": ConfigRecord({name: str(config[name]) for name in ("session", "action")})})
    messages = [Message(asked, dst_node_id=node, message_type="query") for node in nodes]
    replies = list(grid.send_and_receive(messages, timeout=float(config["timeout"])))
    sent = [dict(reply.content["outcome"]) for reply in replies if not reply.has_error()]
    outcomes = {str(content["member"]): Outcome.received(content) for content in sent}
    print("outcomes:", outcomes, flush=True)
    if len(outcomes) < len(nodes) or (problem := verdict({member: member for member in outcomes}, outcomes)):
        raise RuntimeError(problem if len(outcomes) == len(nodes) else "a member did not answer")
