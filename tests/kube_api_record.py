"""`hack/record-api KUBECONFIG`: asks a real API server everything in `kube_api_requests` and keeps its answers."""

import gzip
import json
import sys

import yaml

from nri_plugin.kube.credentials import connect
from tests.kube_api_exchanges import CRD
from tests.kube_api_player import RECORDER, RULES, played
from tests.kube_api_requests import requests


def main(kubeconfig: str) -> None:
    """Record; the server must be an empty one, for objects are made and deleted."""
    http = connect(kubeconfig)

    def ask(method: str, path: str, body: bytes | None, content_type: str | None) -> tuple[int, object]:
        headers = {"User-Agent": RECORDER} | ({"Content-Type": content_type} if content_type else {})
        response = http.request(method, path, content=body, headers=headers)
        try:
            return response.status_code, response.json()
        except ValueError:
            return response.status_code, response.text

    crd = yaml.safe_load(CRD.read_text())
    ask(
        "POST",
        "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
        json.dumps(crd).encode(),
        "application/json",
    )
    about = http.get("/version").json()["gitVersion"]
    exchanges = [{"request": request, "answer": answer} for request, answer in played(ask, requests())]
    text = json.dumps(
        {"about": f"kube-apiserver {about}", "exchanges": exchanges}, ensure_ascii=False, indent=0
    )
    RULES.write_bytes(gzip.compress(text.encode(), mtime=0))
    size = RULES.stat().st_size
    sys.stderr.write(f"{len(exchanges)} exchanges with kube-apiserver {about}: {size} bytes\n")
