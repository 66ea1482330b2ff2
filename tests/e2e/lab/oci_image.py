"""Container images without a registry: an OCI layout with one uncompressed layer, written by hand."""

import hashlib
import io
import json
import tarfile
from dataclasses import dataclass, field
from pathlib import Path

from .tiny_elf import hoard_program, pause_program, witness_program

_MEDIA = "application/vnd.oci.image"


@dataclass(frozen=True, slots=True)
class Image:
    """What an image holds: files by path, symbolic links by path, and the program it starts."""

    reference: str
    entrypoint: list[str]
    files: dict[str, bytes]
    links: dict[str, str] = field(default_factory=dict)


def lab_images(busybox: Path) -> list[Image]:
    """The sandbox's image and the one that all test containers use."""
    programs = {
        "bin/busybox": busybox.read_bytes(),
        "bin/witness": witness_program("/out/affinity"),
        "bin/hoard": hoard_program(),
    }
    links = {f"bin/{name}": "busybox" for name in ("sh", "sleep", "cat", "grep")}
    return [
        Image("localhost/pause:1", ["/pause"], {"pause": pause_program()}),
        Image("localhost/test:1", ["/bin/sh"], programs, links),
    ]


def write_image(image: Image, path: Path) -> None:
    """Write `image` as a tar file that a container runtime can import."""
    layer = _layer(image)
    config = _json(
        architecture="amd64",
        os="linux",
        config={"Entrypoint": image.entrypoint, "Env": ["PATH=/bin"]},
        rootfs={"type": "layers", "diff_ids": [_digest(layer)]},
        history=[{"created_by": "lab"}],
    )
    manifest = _json(
        schemaVersion=2,
        mediaType=f"{_MEDIA}.manifest.v1+json",
        config=_descriptor(config, "config.v1+json"),
        layers=[_descriptor(layer, "layer.v1.tar")],
    )
    names = {
        "io.containerd.image.name": image.reference,
        "org.opencontainers.image.ref.name": image.reference,
    }
    platform = {"architecture": "amd64", "os": "linux"}
    entry = {**_descriptor(manifest, "manifest.v1+json"), "platform": platform, "annotations": names}
    files = {"oci-layout": _json(imageLayoutVersion="1.0.0")}
    files["index.json"] = _json(schemaVersion=2, mediaType=f"{_MEDIA}.index.v1+json", manifests=[entry])
    files |= {f"blobs/sha256/{_digest(blob)[7:]}": blob for blob in (layer, config, manifest)}
    with tarfile.open(path, "w") as archive:
        for name, data in files.items():
            _add(archive, name, data, 0o644)


def _layer(image: Image) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for name in ("bin", "etc", "tmp", "proc", "sys", "dev", "root", "out"):
            directory = tarfile.TarInfo(name)
            directory.type, directory.mode = tarfile.DIRTYPE, 0o755
            archive.addfile(directory)
        _add(archive, "etc/passwd", b"root:x:0:0::/root:/bin/sh\n", 0o644)
        for name, data in image.files.items():
            _add(archive, name, data, 0o755)
        for name, target in image.links.items():
            link = tarfile.TarInfo(name)
            link.type, link.linkname = tarfile.SYMTYPE, target
            archive.addfile(link)
    return buffer.getvalue()


def _add(archive: tarfile.TarFile, name: str, data: bytes, mode: int) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(data), mode
    archive.addfile(entry, io.BytesIO(data))


def _descriptor(blob: bytes, kind: str) -> dict[str, object]:
    return {"mediaType": f"{_MEDIA}.{kind}", "digest": _digest(blob), "size": len(blob)}


def _digest(blob: bytes) -> str:
    return "sha256:" + hashlib.sha256(blob).hexdigest()


def _json(**value: object) -> bytes:
    return json.dumps(value).encode()
