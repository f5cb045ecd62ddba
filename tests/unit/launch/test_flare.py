"""`sccvfl flare`: a job has no code, a site allows two classes and no code; the executor hands FLARE an outcome."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from secure_sccvfl.launch.cli import main
from secure_sccvfl.runs.member.orchestrated import Outcome, Site

SESSION = 'parties = ["a:1", "b:1", "c:1"]\nnames = ["bank", "employer", "bureau"]\njobs = ["train"]\n'
POLICY = {
    "format_version": "1.0",
    "permissions": {
        "project_admin": "any",
        "lead": {"submit_job": "any", "view": "any", "byoc": "any", "shell_commands": "o:site"},
        "member": {"view": "any"},
        "nobody": "none",
    },
}
OTHERS = ("subprocess.Popen", "secure_sccvfl.runs.member.flare", "secure_sccvfl.runs.member.flare.Path")
FLARE = "needs the extra flare: pip install secure-sccvfl[flare]"


@pytest.fixture
def kit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["sccvfl"])
    Path("session.toml").write_text(SESSION)
    local = tmp_path / "kit" / "local"
    local.mkdir(parents=True)
    (local / "resources.json.default").write_text('{"class_allow_list": ["*"], "client": {"retry_timeout": 30}}')
    (local / "authorization.json.default").write_text(json.dumps(POLICY))
    return tmp_path / "kit"


def read(path: Path) -> Any:
    return json.loads(path.read_text())


def test_a_job_has_a_digest_and_no_code(kit: Path) -> None:
    assert main(["flare", "job", "session.toml", "--out", "job", "--action", "resume"]) == 0
    files = {path.relative_to("job").as_posix(): read(path) for path in Path("job").rglob("*") if path.is_file()}
    config = "app/config/config_fed_{}.json".format
    assert set(files) == {"meta.json", config("server"), config("client")}
    sites = ["bank", "employer", "bureau", "dealer"]
    assert files["meta.json"]["mandatory_clients"] == sites
    assert files["meta.json"]["deploy_map"] == {"app": ["server", *sites]}
    [workflow], [executor] = files[config("server")]["workflows"], files[config("client")]["executors"]
    digest = hashlib.sha256(SESSION.encode()).hexdigest()
    assert workflow["args"] == {"session": digest, "action": "resume", "sites": sites}
    assert executor["executor"]["args"] == {}, "a job does not configure a site"
    for wrong in ("--out job", "--out other --sites a b c", "--out other --sites a b c a"):
        assert main(f"flare job session.toml {wrong}".split()) == 2


def test_a_site_allows_two_classes_and_says_which_member_it_is(kit: Path) -> None:
    assert main(["flare", "site", "kit", "--home", ".", "--member", "party-1"]) == 0
    resources = read(kit / "local" / "resources.json")
    assert len(resources["class_allow_list"]) == 2 and resources["class_list_enforcement_mode"] == "enforce"
    assert resources["allow_log_streaming"] is False and resources["client"] == {"retry_timeout": 30}
    roles = read(kit / "local" / "authorization.json")["permissions"]
    assert set(roles) == set(POLICY["permissions"])
    assert all(rights["byoc"] == rights["shell_commands"] == "none" for rights in roles.values())
    assert Site(**read(kit / "local" / "sccvfl.json")) == Site(str(Path.cwd()), "party-1")
    assert main(["flare", "site", "kit", "--home", ".", "--member", "party-x"]) == 2
    assert main(["flare", "site", "kit"]) == 2, "this is no server's kit"
    (kit / "startup").mkdir()
    (kit / "startup" / "fed_server.json").touch()
    assert main(["flare", "site", "kit"]) == 0


@pytest.mark.engines
def test_flare_itself_refuses_code_and_other_classes(kit: Path) -> None:
    pytest.importorskip("nvflare", reason=FLARE)
    from nvflare.apis.fl_exception import UnsafeComponentError
    from nvflare.app_common.widgets.component_path_authorizer import ComponentPathAuthorizer
    from nvflare.fuel.sec.authz import AuthzContext, Person
    from nvflare.security.security import FLAuthorizer

    def may(policy: Any, role: str, right: str) -> bool:
        user = Person("x", "bank", role)
        return bool(FLAuthorizer("bank", policy).authorize(AuthzContext(right, user, user))[0])

    assert may(POLICY, "project_admin", "byoc") and may(POLICY, "lead", "byoc"), "FLARE's defaults allow it"
    assert main(["flare", "site", "kit", "--home", ".", "--member", "party-1"]) == 0
    policy = read(kit / "local" / "authorization.json")
    for role in POLICY["permissions"]:
        assert not may(policy, role, "byoc") and not may(policy, role, "cat")
        assert may(policy, role, "submit_job") == (role in ("project_admin", "lead"))
    workspace = SimpleNamespace(get_resources_file_path=lambda: str(kit / "local" / "resources.json"))
    check = ComponentPathAuthorizer().authorize_component_config
    check({"path": "secure_sccvfl.runs.member.flare.SessionExecutor"}, workspace=workspace)
    for other in OTHERS:
        with pytest.raises(UnsafeComponentError, match="not in allow_list"):
            check({"path": other}, workspace=workspace)


@pytest.mark.engines
def test_a_job_with_another_class_is_refused_with_the_class_when_it_arrives(kit: Path) -> None:
    pytest.importorskip("nvflare", reason=FLARE)
    from nvflare.fuel.utils.class_loader import load_class

    assert main(["flare", "site", "kit", "--home", ".", "--member", "party-1"]) == 0
    setting = read(kit / "local" / "resources.json")["app_validator"]
    check = load_class(setting["path"])(**setting["args"]).validate
    assert main(["flare", "job", "session.toml", "--out", "job"]) == 0
    assert check("job/app") == ("", {})
    for side, known in (("server", "SessionController"), ("client", "SessionExecutor")):
        config = Path(f"job/app/config/config_fed_{side}.json")
        plain = config.read_text()
        for other in OTHERS:
            nested = json.dumps([{"args": {"x": [{"name": other}]}}])
            for text in (
                plain.replace(f"secure_sccvfl.runs.member.flare.{known}", other),
                plain.replace("{", f'{{"components": {nested},', 1),
                plain.replace('"path"', '"class_path": "' + other + '", "path"'),
            ):
                config.write_text(text)
                assert check("job/app")[0].startswith(f"class {other!r} is not allowed here")
        config.write_text(plain)


@pytest.mark.engines
def test_the_executor_hands_flare_an_outcome_and_nothing_else(kit: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("nvflare", reason=FLARE)
    from nvflare.apis.shareable import Shareable
    from nvflare.apis.signal import Signal

    from secure_sccvfl.runs.member import flare

    asked: list[Any] = []

    def run(*given: Any) -> Outcome:
        asked.append(given[:-1])
        return Outcome(1, "a peer stopped", "party-1", "0" * 64)

    monkeypatch.setattr(flare, "run_member", run)
    assert main(["flare", "site", "kit", "--home", ".", "--member", "party-1"]) == 0
    resources = kit / "local" / "resources.json"
    workspace = SimpleNamespace(
        get_site_config_dir=lambda: str(kit / "local"), get_resources_file_path=lambda: str(resources)
    )
    engine = SimpleNamespace(get_workspace=lambda: workspace)
    context = SimpleNamespace(get_engine=lambda: engine, get_job_id=lambda: "job-1")
    task, executor = Shareable(), flare.SessionExecutor()
    task.update({"session": "d", "action": "run", "records": "/etc/passwd"})
    replies = [executor.execute(flare.TASK, task, context, Signal()) for _ in range(2)]
    assert asked == [(Site(str(Path.cwd()), "party-1"), "job-1", "run", "d")], (
        "once, and with nothing else of the job"
    )
    for reply in replies:
        headers = reply.pop("__headers__")
        assert set(headers) == {"__rc__"}, headers
        assert reply == {"exit": 1, "cause": "a peer stopped", "peers": "party-1", "digest": "0" * 64}
    assert set(executor.execute("other", task, context, Signal())) == {"__headers__"}
    resources.write_text((kit / "local" / "resources.json.default").read_text())
    refused = flare.SessionExecutor().execute(flare.TASK, task, context, Signal())
    assert refused["exit"] == 2 and "allows jobs other classes" in refused["cause"] and len(asked) == 1
