"""What is laid over a root before anything runs in it.

The base (dependencies, images, guest start-up) is cached with the root; the checkout's own code is packed anew for every
run, so that no test ever sees yesterday's product.
"""

import shutil
from pathlib import Path

from .oci_image import lab_images, write_image
from .shell import run

PRODUCT = Path("opt/nri-pin")  # a virtual environment, made by hand: two links and a text file
LAB = Path("opt/e2e")
_COMMAND = """#!/opt/nri-pin/bin/python3
import sys

from nri_plugin.__main__ import main

sys.exit(main())
"""


def lay_base(root: Path, wheelhouse: Path, python: str) -> None:
    """Put into `root` what stays the same between runs: the environment of the product and the images."""
    environment = root / PRODUCT
    shutil.rmtree(environment, ignore_errors=True)
    shutil.rmtree(root / LAB, ignore_errors=True)
    (environment / "bin").mkdir(parents=True)
    for name in ("python", "python3"):
        (environment / "bin" / name).symlink_to("/usr/bin/python3")
    (environment / "pyvenv.cfg").write_text(f"home = /usr/bin\nversion = {python}\n")
    shutil.copytree(wheelhouse / "product", environment / f"lib/python{python}/site-packages")
    shutil.copytree(wheelhouse / "client", root / LAB / "client")
    images = root / LAB / "images"
    images.mkdir()
    for image in lab_images(root / "usr/bin/busybox"):
        write_image(image, images / (image.reference.split("/")[1].split(":")[0] + ".tar"))
    run(["chroot", root, "/usr/bin/python3", "-m", "compileall", "-q", f"/{PRODUCT}/lib", f"/{LAB}/client"])


def pack_checkout(checkout: Path, root: Path, python: str, stage: Path) -> Path:
    """Pack the checkout's product and scenarios, compiled by the root's own Python, into one tar file.

    Compiling here takes a second; in an emulated guest it would take half a minute.
    """
    shutil.rmtree(stage, ignore_errors=True)
    _copy_code(checkout / "nri_plugin", stage / PRODUCT / f"lib/python{python}/site-packages/nri_plugin")
    _copy_code(checkout / "tests/e2e", stage / LAB / "src/e2e")
    _copy_code(checkout / "tests/lab", stage / LAB / "src/tests/lab")
    shutil.copytree(checkout / "deploy", stage / LAB / "deploy")
    command = stage / PRODUCT / "bin/nri-pin"
    command.parent.mkdir()
    command.write_text(_COMMAND)
    command.chmod(0o755)
    _compile(root, stage)
    packed = stage.with_suffix(".tar.gz")
    run(["tar", "-C", stage, "--owner=0", "--group=0", "-czf", packed, "."])
    return packed


def _copy_code(source: Path, target: Path) -> None:
    shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__", "*.pyc"))


def _compile(root: Path, stage: Path) -> None:
    script = (
        'mount --bind "$1" "$0/out" && exec chroot "$0" /usr/bin/python3 -m compileall -q -s /out -p / /out'
    )
    run(["unshare", "-m", "bash", "-c", script, root, stage])
