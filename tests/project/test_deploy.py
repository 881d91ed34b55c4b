"""The files of deploy/ refer to existing files and agree with the project. The container itself is built by hand."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
CONTAINERFILE = (DEPLOY / "Containerfile").read_text("utf-8")


def test_the_base_image_is_named_by_its_digest() -> None:
    (base,) = re.findall(r"^ARG BASE=(\S+)$", CONTAINERFILE, re.MULTILINE)
    assert re.fullmatch(r"\S+:3\.12\S*@sha256:[0-9a-f]{64}", base)
    assert set(re.findall(r"^FROM (\S+)", CONTAINERFILE, re.MULTILINE)) == {"${BASE}"}


def test_copied_files_exist_and_are_not_ignored() -> None:
    ignored = (ROOT / ".containerignore").read_text("utf-8").split()
    lines = re.findall(r"^COPY (?!--from)(.+)$", CONTAINERFILE, re.MULTILINE)
    for source in (source for line in lines for source in line.split()[:-1]):
        assert (ROOT / source).exists(), source
        assert f"!{source}" in ignored, source


def test_packages_have_hashes_and_the_versions_of_the_constraints() -> None:
    lines = [line.partition(";")[0].strip() for line in (ROOT / "constraints.txt").read_text("utf-8").splitlines()]
    known = {re.sub(r"[-_.]+", "-", name).lower(): pin for name, _, pin in (line.partition("==") for line in lines)}
    rows = (DEPLOY / "requirements.txt").read_text("utf-8").replace("\\\n", " ").splitlines()[1:]
    assert all(re.fullmatch(r"\S+==\S+( +--hash=sha256:[0-9a-f]{64})+", row) for row in rows)
    pins = dict(row.split()[0].split("==") for row in rows)
    assert {name: known.get(name, pin) for name, pin in pins.items()} == pins
    assert {"fastapi", "transformers", "uvicorn"} <= set(pins)


def test_probes_use_public_routes() -> None:
    yaml = pytest.importorskip("yaml")
    manifest = yaml.safe_load((DEPLOY / "kubernetes.yaml").read_text("utf-8"))
    (container,) = manifest["spec"]["template"]["spec"]["containers"]
    assert container["livenessProbe"]["httpGet"]["path"] == "/live"
    assert container["readinessProbe"]["httpGet"]["path"] == "/ready"
    assert "8600/live" in CONTAINERFILE
    assert manifest["spec"]["template"]["spec"]["securityContext"]["runAsUser"] == 10001
    assert "--uid 10001" in CONTAINERFILE


def test_systemd_accepts_the_unit_and_finds_it_confined(tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed")
    unit = tmp_path / "polyrank.service"
    text = (DEPLOY / "polyrank.service").read_text("utf-8")
    unit.write_text(text.replace("/opt/polyrank/bin/polyrank", sys.executable))  # a program that exists
    for command in (["verify"], ["security", "--offline=true", "--threshold=20"]):  # tenths: 100 is not confined
        done = subprocess.run(["systemd-analyze", *command, unit], capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, ""), command
