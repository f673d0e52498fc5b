"""The Kubernetes manifests of this repository as documents, and what kustomize builds of them."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "conf/kubernetes"
BASE = FOLDER / "base"
# Read by kustomize, by Spark, and by the Spark operator.
NO_MANIFESTS = ("kustomization.yaml", "references.yaml", "executor.yaml", "application.yaml")
APPLICATION = FOLDER / "spark-operator/application.yaml"


@cache
def _parsed(file: Path) -> list[dict[str, Any]]:
    return list(YAML(typ="safe").load_all(file.read_text()))


def documents(file: Path) -> list[dict[str, Any]]:
    """Return copies of a file's documents, which a test may change."""
    return deepcopy(_parsed(file))


def manifests() -> Iterator[tuple[Path, dict[str, Any]]]:
    """Yield the documents that Kubernetes knows, with their files."""
    for file in sorted(FOLDER.rglob("*.yaml")):
        if file.name not in NO_MANIFESTS:
            yield from ((file, document) for document in documents(file))


def manifest(kind: str, name: str) -> dict[str, Any]:
    """Return the document of this kind and name."""
    (found,) = (each for _, each in manifests() if (each["kind"], each["metadata"].get("name")) == (kind, name))
    return found


def pods() -> dict[str, dict[str, Any]]:
    """Return the pods' specs by component."""
    templates = [each["spec"]["template"] for _, each in manifests() if "template" in each.get("spec", {})]
    return {template["metadata"]["labels"]["app.kubernetes.io/component"]: template["spec"] for template in templates}


@cache
def built(folder: str) -> dict[tuple[str, str], dict[str, Any]]:
    """Return what kustomize builds of `folder`, by kind and name."""
    programs = [program for program in ("kustomize", "kubectl") if shutil.which(program)]
    if not programs:
        pytest.skip("kustomize is not installed")
    build = [programs[0], {"kustomize": "build", "kubectl": "kustomize"}[programs[0]], str(FOLDER / folder)]
    text = subprocess.run(build, check=True, capture_output=True, text=True).stdout
    return {(each["kind"], each["metadata"]["name"]): each for each in YAML(typ="safe").load_all(text)}


def container(component: str) -> dict[str, Any]:
    """Return the spec of the one container that a component's pods have."""
    (only,) = pods()[component]["containers"]
    assert isinstance(only, dict)
    return only
