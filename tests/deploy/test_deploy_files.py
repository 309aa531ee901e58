"""The files of deploy/: held to their own tools and schemas, and to what this program really has."""

import json
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate  # pyright: ignore[reportMissingTypeStubs]
import pytest
import typer.main
import yaml

from adjourn import Adjourn
from adjourn.cli.program import app as program
from adjourn.server import Auth, create_app, mint
from deploy.deploy_kit import DEPLOY, DOCS, ROOT, Page, Unit

COMPOSE = sorted(DEPLOY.glob("compose*.yaml"))
MANIFESTS = [p for p in sorted((DEPLOY / "kubernetes").glob("*.yaml")) if p.name != "kustomization.yaml"]
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))
TIMERS = sorted((DEPLOY / "systemd").glob("*.timer"))
PAGES = [Page("deploy.md"), Page("operations.md")]
EVERY_PAGE = [Page("../README.md"), *[Page(p.name) for p in sorted((ROOT / "docs").glob("*.md"))]]
OURS = [p for p in sorted(DEPLOY.rglob("*")) if p.is_file() and not {"grafana", "prometheus", "secrets"} & set(p.parts)]
TEXTS = {
    **{str(p.relative_to(ROOT)): p.read_text(encoding="utf-8") for p in OURS if p.suffix != ".pyc"},
    **{f"docs/{page.name}": page.text for page in PAGES},
}


def documents() -> Iterator[tuple[str, Any]]:
    for path in MANIFESTS:
        for found in yaml.safe_load_all(path.read_text()):
            yield f"{path.name}:{found['kind']}/{found['metadata']['name']}", found


DOCUMENTS = list(documents())
BY_NAME = dict(DOCUMENTS)


def pod(found: Any) -> Any:
    return found["spec"]["template"]["spec"]


WORKLOADS = {name: found for name, found in DOCUMENTS if found["kind"] == "Deployment"}


# -- compose -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", COMPOSE, ids=lambda p: p.name)
def test_a_compose_file_fits_the_specifications_schema(path: Path) -> None:
    checker = Path(sys.prefix) / "bin/check-jsonschema"
    command = [str(checker), "--builtin-schema", "vendor.compose-spec", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("path", COMPOSE, ids=lambda p: p.name)
def test_a_compose_file_names_what_it_has_and_opens_nothing_to_the_world(path: Path) -> None:
    found = yaml.safe_load(path.read_text())
    services = found["services"]
    assert services["worker"]["deploy"]["replicas"] == 2
    for name, service in services.items():
        assert set(service.get("depends_on", ())) <= set(services), name
        assert set(service.get("secrets", ())) <= set(found["secrets"]), name
        assert set(service["networks"]) <= set(found["networks"]), name
        assert all(v.split(":")[0] in found["volumes"] for v in service.get("volumes", ())), name
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", ())), name
        for variable, value in service.get("environment", {}).items():
            if re.search("SECRET|PASSWORD|TOKEN", variable):
                given = value.removeprefix("/run/secrets/")
                assert variable.endswith("_FILE"), f"{name}: {variable} is in a variable"
                assert given in service["secrets"], f"{name}: {value} is not among its secrets"
    assert found["networks"]["inside"]["internal"] is True
    assert services["postgres"]["networks"] == ["inside"]
    for name in ("api", "worker"):
        assert services[name]["read_only"] is True
        assert services[name]["cap_drop"] == ["ALL"]
    made = (DEPLOY / "make_secrets.sh").read_text()
    for secret in found["secrets"].values():
        assert Path(secret["file"]).name in made


def test_the_two_compose_files_differ_by_temporal_alone() -> None:
    found = [yaml.safe_load((DEPLOY / n).read_text()) for n in ("compose.yaml", "compose.leases.yaml")]
    with_, without = json.loads(json.dumps(found))  # what an alias shares is apart then
    del with_["services"]["temporal"], with_["volumes"]["temporal"]
    del with_["x-app"], without["x-app"]
    for name in ("api", "worker"):
        service = with_["services"][name]
        del service["depends_on"]["temporal"], service["environment"]["ADJOURN_TEMPORAL_ADDRESS"]
        at = service["command"].index("--engine")
        assert service["command"][at : at + 2] == ["--engine", "temporal"]
        del service["command"][at : at + 2]
    assert with_ == without


def test_the_secrets_of_the_compose_files_are_made_once_and_kept(tmp_path: Path) -> None:
    script = tmp_path / "make_secrets.sh"
    shutil.copy(DEPLOY / "make_secrets.sh", script)
    env = {"PATH": "/usr/bin:/bin", "PYTHON": sys.executable}
    first = subprocess.run([script, "ann"], env=env, capture_output=True, text=True, check=True)
    assert "adj_" in first.stderr
    made = {p.name: p.read_text() for p in (tmp_path / "secrets").iterdir()}
    assert set(made) == {"store_password", "secret", "tokens.toml"}
    assert (tmp_path / "secrets").stat().st_mode & 0o777 == 0o700
    again = subprocess.run([script, "ann"], env=env, capture_output=True, text=True, check=True)
    assert again.stderr == ""
    assert {p.name: p.read_text() for p in (tmp_path / "secrets").iterdir()} == made
    assert 'role = "admin"' in made["tokens.toml"]
    assert "deploy/secrets" in (ROOT / ".gitignore").read_text()


def test_the_image_holds_what_it_runs_and_is_not_roots() -> None:
    text = (DEPLOY / "Dockerfile").read_text()
    extras = re.search(r"\.\[([\w,]+)\]", text)
    assert extras is not None
    declared = re.findall(r"^(\w+) = \[", (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert set(extras[1].split(",")) <= set(declared)
    assert {"server", "cli", "postgres", "temporal", "otel"} <= set(extras[1].split(","))
    assert re.findall(r"^USER (.*)$", text, re.MULTILINE) == ["10001:10001"]
    for source in re.findall(r"^COPY (?!--from)(.*) \S+$", text, re.MULTILINE):
        for pattern in source.split():
            assert list(ROOT.glob(pattern)), f"there is no {pattern}"


# -- Kubernetes ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [n for n, _ in DOCUMENTS])
def test_a_manifest_fits_the_schema_of_kubernetes(name: str) -> None:
    kubernetes_validate.validate(BY_NAME[name], kubernetes_validate.latest_version(), strict=True)


def test_the_schema_would_tell_a_manifest_that_is_wrong() -> None:
    wrong = json.loads(json.dumps(BY_NAME["api.yaml:Deployment/adjourn-api"]))
    pod(wrong)["containers"][0]["readynessProbe"] = {}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, kubernetes_validate.latest_version(), strict=True)


def test_the_kustomization_lists_every_manifest_but_the_example_of_secrets() -> None:
    listed = yaml.safe_load((DEPLOY / "kubernetes/kustomization.yaml").read_text())
    assert sorted(listed["resources"]) == sorted(p.name for p in MANIFESTS if p.name != "secrets.example.yaml")


@pytest.mark.parametrize("name", list(WORKLOADS))
def test_a_workload_is_locked_down_as_the_namespace_demands(name: str) -> None:
    spec = pod(WORKLOADS[name])
    assert spec["automountServiceAccountToken"] is False
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["runAsUser"] == 10001
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    for container in spec["containers"]:
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert {"cpu", "memory"} <= set(container["resources"]["requests"])
        assert "memory" in container["resources"]["limits"]


def test_what_the_manifests_point_at_is_there() -> None:
    kinds = {(d["kind"], d["metadata"]["name"]) for _, d in DOCUMENTS}
    config = BY_NAME["config.yaml:ConfigMap/adjourn"]["data"]
    for name, found in WORKLOADS.items():
        spec = pod(found)
        assert found["spec"]["selector"]["matchLabels"] == found["spec"]["template"]["metadata"]["labels"]
        assert ("ServiceAccount", spec["serviceAccountName"]) in kinds
        volumes = {v["name"]: v for v in spec["volumes"]}
        (container,) = spec["containers"]
        mounts = {m["mountPath"]: volumes[m["name"]] for m in container["volumeMounts"]}
        assert ("ConfigMap", container["envFrom"][0]["configMapRef"]["name"]) in kinds
        env = {e["name"]: e["value"] for e in container.get("env", ())}
        for variable, value in (config | env).items():
            if not variable.endswith("_FILE"):
                continue
            mount = mounts[str(Path(value).parent)]
            secret = BY_NAME[f"secrets.example.yaml:Secret/{mount['secret']['secretName']}"]
            assert Path(value).name in secret["stringData"], f"{name}: {variable}"
        selectors = [d["spec"]["selector"]["matchLabels"] for _, d in DOCUMENTS if d["kind"] == "PodDisruptionBudget"]
        assert found["spec"]["selector"]["matchLabels"] in selectors
    service = BY_NAME["api.yaml:Service/adjourn"]
    api = WORKLOADS["api.yaml:Deployment/adjourn-api"]["spec"]["template"]
    assert service["spec"]["selector"].items() <= api["metadata"]["labels"].items()
    (container,) = api["spec"]["containers"]
    assert service["spec"]["ports"][0]["targetPort"] == container["ports"][0]["name"]
    assert str(container["ports"][0]["containerPort"]) in container["args"]
    ingress = BY_NAME["ingress.yaml:Ingress/adjourn"]["spec"]
    backend = ingress["rules"][0]["http"]["paths"][0]["backend"]["service"]
    assert backend == {"name": "adjourn", "port": {"name": service["spec"]["ports"][0]["name"]}}
    hosts = config["ADJOURN_ALLOWED_HOSTS"].split(",")
    assert ingress["rules"][0]["host"] in hosts
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        get = container[probe]["httpGet"]
        assert get["path"] in ("/ready", "/health")
        assert get["httpHeaders"][0]["value"] in hosts
    assert container["livenessProbe"]["httpGet"]["path"] == "/health"


# -- systemd -----------------------------------------------------------------------------------------------------------


def need(tool: str, package: str) -> str:
    found = shutil.which(tool, path="/usr/sbin:/usr/bin:/sbin:/bin")
    if found is None:
        pytest.skip(f"NOT CHECKED: {tool} is not installed (Debian: apt-get install {package})")
    return found


@pytest.mark.parametrize("path", [*UNITS, *TIMERS], ids=lambda p: p.name)
def test_systemd_finds_nothing_wrong_with_a_unit(path: Path, tmp_path: Path) -> None:
    analyze = need("systemd-analyze", "systemd")
    for unit in [*UNITS, *TIMERS]:
        text = unit.read_text().replace("/opt/adjourn/venv/bin/adjourn", "/bin/true")
        (tmp_path / unit.name).write_text(text.replace("/opt/adjourn/venv/bin/python", "/bin/true"))
    name = path.name.replace("@.", "@1.")
    if name != path.name:
        (tmp_path / name).symlink_to(tmp_path / path.name)
    command = [analyze, "verify", "--man=no", str(tmp_path / name)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


@pytest.mark.parametrize("path", UNITS, ids=lambda p: p.name)
def test_systemd_rates_a_service_as_safe_or_ok(path: Path) -> None:
    analyze = need("systemd-analyze", "systemd")
    command = [analyze, "security", "--offline=true", "--threshold=20", "--no-pager", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_services_have_longer_to_end_than_they_take() -> None:
    from adjourn.server import ServerSettings
    from adjourn.server.serving import uvicorn_options

    worker, serve = Unit("adjourn-worker@1.service"), Unit("adjourn-serve.service")
    grace = float(worker.command[worker.command.index("--grace") + 1])
    assert float(worker.one("TimeoutStopSec")) > grace
    most = uvicorn_options()["timeout_graceful_shutdown"] + ServerSettings().drain_seconds
    assert float(serve.one("TimeoutStopSec")) > most
    from adjourn.cli.failures import NOT_DRAINED

    assert str(NOT_DRAINED) in worker.one("SuccessExitStatus").split()
    for path in COMPOSE:
        for name in ("api", "worker"):
            given = yaml.safe_load(path.read_text())["services"][name]["stop_grace_period"]
            assert float(given.removesuffix("s")) > max(grace, most)
    for found in WORKLOADS.values():
        assert pod(found)["terminationGracePeriodSeconds"] > max(grace, most)


# -- what is named really exists -----------------------------------------------------------------------------------------


def commands() -> Iterator[tuple[str, list[str]]]:
    """Every `adjourn …` with its arguments, as a shell would split it."""
    for path in UNITS:
        yield path.name, Unit(path.name).command
    for path in COMPOSE:
        for name, service in yaml.safe_load(path.read_text())["services"].items():
            if service.get("command", [""])[0] == "adjourn":
                yield f"{path.name}:{name}", service["command"]
    for name, found in WORKLOADS.items():
        yield name, pod(found)["containers"][0]["args"]
    image = re.search(r"^CMD (\[.*\])$", (DEPLOY / "Dockerfile").read_text(), re.MULTILINE)
    assert image is not None
    yield "Dockerfile", json.loads(image[1])
    for page in EVERY_PAGE:
        for language, block in page.blocks():
            if language not in ("bash", "sh"):
                continue
            for line in block.replace("\\\n", " ").splitlines():
                if not line.startswith(("adjourn ", "docker ")):
                    continue
                words = shlex.split(re.split(r" \|\| | #", line)[0])
                if "adjourn" in words:
                    yield f"{page.name}: {line.strip()}", words[words.index("adjourn") :]
        for code in re.findall(
            r"`(adjourn [^`]*)`", re.sub(r"^```.*?^```$", "", page.text, flags=re.MULTILINE | re.DOTALL)
        ):
            yield f"{page.name}: {code.replace('…', '...')}", shlex.split(code.replace("…", ""))


COMMANDS = [
    (where, words)
    for where, words in commands()
    if Path(words[0]).name == "adjourn" and words[1:2] != ["--install-completion"]
]
GROUP: Any = typer.main.get_command(program)


@pytest.mark.parametrize("where,words", COMMANDS, ids=[where for where, _ in COMMANDS])
def test_a_command_and_its_options_exist(where: str, words: list[str]) -> None:
    command = GROUP.commands.get(words[1])
    assert command is not None, f"there is no `adjourn {words[1]}`"
    known = {option: parameter for parameter in command.params for option in parameter.opts}
    rest = iter(words[2:])
    arguments = [p for p in command.params if p.param_type_name == "argument"]
    positional = 0
    for word in rest:
        if word == "--":
            positional += len(list(rest))
            break
        if not word.startswith("-"):
            positional += 1
            assert positional <= len(arguments), words
            if arguments[positional - 1].name == "app":
                assert re.fullmatch(r"APP|[\w.]+:\w+", word), f"{word!r} is not written module:attribute"
            continue
        option, _, value = word.partition("=")
        assert option in known, f"`adjourn {words[1]}` has no {option}"
        if not known[option].is_flag and not value:
            given = next(rest, None)
            assert given or where.endswith(" ..."), f"{option} takes a value"
            if option == "--engine":
                assert given == "temporal"
    assert positional <= len(arguments), words


def test_there_are_commands_enough_to_check() -> None:
    assert len(COMMANDS) > 40
    assert {words[1] for _, words in COMMANDS} >= {"serve", "worker", "doctor", "export", "import", "purge", "respond"}


def test_every_option_named_in_the_pages_prose_exists() -> None:
    known = {option for command in GROUP.commands.values() for p in command.params for option in p.opts}
    for page in PAGES:
        prose = re.sub(r"^```.*?^```$", "", page.text, flags=re.MULTILINE | re.DOTALL)
        for option in re.findall(r"`(--[a-z-]+)", prose):
            assert option in known, f"{page.name}: {option}"


def test_every_variable_named_is_read_by_somebody() -> None:
    source = "".join(p.read_text(encoding="utf-8") for p in (ROOT / "src/adjourn").rglob("*.py"))
    settings = (ROOT / "src/adjourn/server/settings.py").read_text()
    listed = {f"ADJOURN_{name}" for name in ("SECRET", "PUBLIC_URL", "ROOT_PATH", "ALLOWED_HOSTS", "TRUSTED_PROXIES")}
    for name in listed:
        assert name.removeprefix("ADJOURN_").lower() in settings
    program_ = (DEPLOY / "app.py").read_text()
    code = re.sub(r'^""".*?"""', "", program_, flags=re.DOTALL)
    for where, text in TEXTS.items():
        for variable in set(re.findall(r"\bADJOURN_[A-Z][A-Z_]*[A-Z]\b", text)):
            assert variable in source or variable in listed, f"{where}: nobody reads {variable}"
        for variable in set(re.findall(r"\bAPP_[A-Z][A-Z_]*[A-Z]\b", text)):
            assert f'"{variable}"' in code, f"{where}: app.py does not read {variable}"


def test_every_path_of_the_server_that_is_named_is_one_of_its_routes() -> None:
    server = create_app(Adjourn(), Auth(tokens=[mint("ann")[1]]))
    routes = [re.sub(r"\{[^}]*\}", "[^/]+", route.path) for route in server.routes]
    for where, text in TEXTS.items():
        named = set(re.findall(r"(?<![\w.}/])/(?:api|genkit)/[\w/…$-]*|(?<=PUBLIC_URL)/api/[\w/$-]*", text))
        named |= set(re.findall(r"(?<![\w.}/:])/(?:health|ready|metrics)\b", text))
        for path in named:
            bare = re.sub(r"…|\$\w+", "x", path).rstrip("/")
            known = any(
                re.fullmatch(route, bare) or re.match(route.split("[^/]+")[0].rstrip("/") + "$", bare)
                for route in routes
            )
            assert known or bare in ("/api/sessions", "/genkit", "/api"), f"{where}: {path}"


def test_every_file_that_is_named_is_there() -> None:
    for where, text in TEXTS.items():
        for name in re.findall(r"\bdeploy/[\w@./*-]*\w", text):
            if "secrets" not in name:
                assert list(ROOT.glob(name)), f"{where}: {name}"
    for unit in [*UNITS, *TIMERS]:
        assert re.sub(r"@\.", "@", unit.name.split(".")[0]) in (DOCS / "deploy.md").read_text()


def test_the_paths_of_the_units_are_those_that_the_page_makes() -> None:
    page = (DOCS / "deploy.md").read_text()
    for path in UNITS:
        unit = Unit(path.name)
        for given in [*unit.all("WorkingDirectory"), *unit.all("EnvironmentFile"), *unit.all("ReadWritePaths")]:
            assert str(Path(given).parent) in page or given in page, f"{path.name}: {given}"
        for given in unit.all("LoadCredential"):
            name, _, source = given.partition(":")
            assert Path(source).name in page
            assert any(f"%d/{name}" in e for e in unit.all("Environment")), f"{path.name}: {name} is used by nothing"
