"""Certificates for tests, made by openssl."""

import shutil
import ssl
import subprocess
from pathlib import Path

import pytest

needs_openssl = pytest.mark.skipif(not shutil.which("openssl"), reason="needs openssl: apt install openssl")


def made_certificate(folder: Path, name: str) -> tuple[Path, Path]:
    """A certificate of 127.0.0.1 that is its own authority, and its key."""
    certificate, key = folder / f"{name}.crt", folder / f"{name}.key"
    kind = ["-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"]
    names = ["-subj", f"/CN={name}", "-addext", "subjectAltName=IP:127.0.0.1"]
    files = ["-keyout", str(key), "-out", str(certificate)]
    subprocess.run(["openssl", "req", *kind, *names, *files], check=True, capture_output=True)
    return certificate, key


def client_context(server: Path, *own: Path) -> ssl.SSLContext:
    """Of a client that trusts `server` and shows its own certificate, where it has one."""
    context = ssl.create_default_context(cafile=str(server))
    if own:
        context.load_cert_chain(*own)
    return context
