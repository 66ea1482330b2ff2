"""The recorded exchanges with a real API server, and what in them differs from one run to the next."""

import gzip
import json
import re
from pathlib import Path
from typing import Any

import yaml

HERE = Path(__file__).parent
VECTORS = HERE / "vectors" / "nrt" / "apiserver_exchanges.json.gz"
CRD = HERE.parent / "deploy" / "crd.yaml"
UID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
VOLATILE = ("time", "creationTimestamp")
PRIVATE = "storageVersionHash"
"""Clients ignore it."""


def exchanges() -> list[dict[str, Any]]:
    return json.loads(gzip.decompress(VECTORS.read_bytes()))["exchanges"]


def crd() -> dict[str, Any]:
    return yaml.safe_load(CRD.read_text())


def settled(value: Any) -> Any:
    """The value with every time and uid made the same."""
    if isinstance(value, dict):
        return {
            key: "*" if key in VOLATILE else settled(part) for key, part in value.items() if key != PRIVATE
        }
    if isinstance(value, list):
        return [settled(part) for part in value]
    return UID.sub("UID", value) if isinstance(value, str) else value
