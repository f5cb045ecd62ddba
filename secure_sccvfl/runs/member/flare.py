"""A session as a job of NVIDIA FLARE: the executor at each site, the controller at FLARE's server.

FLARE authenticates, schedules and watches (`runs.member.orchestrated`). Its server is no member of the session: it
sends the digest of the session file and the action, and receives one `Outcome` from each site. Both classes are
installed by the sites; a job carries configuration only. FLARE's list of allowed classes refuses others when a job
builds them, in the site's log alone; `JobValidator` refuses them before, with an answer. Needs the extra `flare`.
"""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from nvflare.apis.app_validation import AppValidator
from nvflare.apis.client import Client
from nvflare.apis.controller_spec import ClientTask, Task
from nvflare.apis.executor import Executor
from nvflare.apis.fl_constant import JobConstants, ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.impl.controller import Controller
from nvflare.apis.shareable import Shareable, make_reply
from nvflare.apis.signal import Signal
from nvflare.fuel.utils.config_factory import ConfigFactory

from secure_sccvfl.protocols.config import DEALER
from secure_sccvfl.runs.console import OK, WRONG_USE
from secure_sccvfl.runs.member.orchestrated import Outcome, Site, run_member, verdict

TASK = "sccvfl"
SETTINGS = "sccvfl.json"
"""A site's settings, in the folder `local` of its kit; FLARE sends them nowhere."""
_LAST_REPLIES = 10.0
"""Seconds between the first failure and the end of the job: whoever is responsible may reply last."""


class SessionExecutor(Executor):
    """Runs this site's member of the session. It has no arguments, so a job cannot configure it."""

    def __init__(self) -> None:
        super().__init__()
        self._outcome: Outcome | None = None

    def execute(self, task_name: str, shareable: Shareable, fl_ctx: FLContext, abort_signal: Signal) -> Shareable:
        if task_name != TASK:
            return make_reply(ReturnCode.TASK_UNKNOWN)
        if self._outcome is None:  # FLARE sends a task again if the reply was lost
            self._outcome = self._run(shareable, fl_ctx, abort_signal)
        reply = make_reply(ReturnCode.OK)
        reply.update(asdict(self._outcome))
        return reply

    def _run(self, task: Shareable, fl_ctx: FLContext, abort_signal: Signal) -> Outcome:
        workspace = fl_ctx.get_engine().get_workspace()
        resources = json.loads(Path(workspace.get_resources_file_path()).read_text(encoding="utf-8"))
        # `nvflare deploy prepare` restores FLARE's own list
        if set(resources.get("class_allow_list", "*")) != allowed():
            return Outcome(WRONG_USE, "this site allows jobs other classes, `sccvfl flare site` was not run")
        settings = Path(workspace.get_site_config_dir()) / SETTINGS
        site = Site(**json.loads(settings.read_text(encoding="utf-8")))
        asked = str(task.get("action")), str(task.get("session"))
        return run_member(site, str(fl_ctx.get_job_id()), *asked, lambda: bool(abort_signal.triggered))


class SessionController(Controller):
    """Starts the members at all sites at once, and ends all when one fails. `sites`: by rank, the dealer's last."""

    def __init__(self, session: str, action: str, sites: list[str]) -> None:
        super().__init__()
        members = [*(f"party-{rank}" for rank in range(len(sites) - 1)), DEALER]
        self._asked, self._sites = {"session": session, "action": action}, dict(zip(sites, members, strict=True))
        self._outcomes: dict[str, Outcome] = {}

    def start_controller(self, fl_ctx: FLContext) -> None: ...

    def stop_controller(self, fl_ctx: FLContext) -> None: ...

    def process_result_of_unknown_task(
        self, client: Client, task_name: str, client_task_id: str, result: Shareable, fl_ctx: FLContext
    ) -> None: ...

    def control_flow(self, abort_signal: Signal, fl_ctx: FLContext) -> None:
        data = Shareable()
        data.update(self._asked)
        task = Task(name=TASK, data=data, result_received_cb=self._received)
        self.broadcast(task, fl_ctx, targets=list(self._sites), min_responses=len(self._sites))
        end = float("inf")
        while task.completion_status is None and not abort_signal.triggered and time.monotonic() < end:
            if end == float("inf") and any(outcome.exit != OK for outcome in self._outcomes.values()):
                end = time.monotonic() + _LAST_REPLIES
            time.sleep(0.2)
        problem = verdict(self._sites, self._outcomes)
        record: dict[str, Any] = {site: asdict(outcome) for site, outcome in self._outcomes.items()}
        run = Path(fl_ctx.get_engine().get_workspace().get_run_dir(fl_ctx.get_job_id()))
        (run / "outcomes.json").write_text(json.dumps({"problem": problem, "sites": record}, indent=1) + "\n")
        if problem:
            self.cancel_all_tasks(fl_ctx=fl_ctx)
            self.system_panic(problem, fl_ctx)

    def _received(self, client_task: ClientTask, fl_ctx: FLContext) -> None:
        site = str(client_task.client.name)
        self._outcomes[site] = Outcome.received(client_task.result or {})
        self.log_info(fl_ctx, f"{site}: {self._outcomes[site]}")


class JobValidator(AppValidator):
    """Refuses a job with other classes when it arrives: `nvflare job meta` then shows which class, and the site."""

    def validate(self, app_folder: str) -> tuple[str, dict[str, Any]]:
        names: list[Any] = []  # whatever FLARE could take for a class, at any depth

        def look(pairs: list[tuple[str, Any]]) -> None:
            names.extend(value for key, value in pairs if key in ("path", "class_path", "name"))

        for file in (JobConstants.SERVER_JOB_CONFIG, JobConstants.CLIENT_JOB_CONFIG):
            if config := ConfigFactory.load_config(file, [str(Path(app_folder, "config"))]):
                json.loads(json.dumps(config.to_dict()), object_pairs_hook=look)
        others = [str(name)[:100] for name in names if str(name) not in allowed()]
        why = f"class {others[0]!r} is not allowed here: make the job with `sccvfl flare job`" if others else ""
        return why, {}


def allowed() -> set[str]:
    """The only classes that a job may name."""
    return {f"{__name__}.{part.__name__}" for part in (SessionController, SessionExecutor)}
