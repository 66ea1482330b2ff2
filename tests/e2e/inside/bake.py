"""Run once per root: give containerd the images and hand its store out, so that no test has to import them."""

import shutil
import sys
from pathlib import Path

from .containerd import Containerd, import_images

if __name__ == "__main__":
    runtime = Containerd()
    runtime.start()
    import_images(Path(sys.argv[1]))
    runtime.stop()
    shutil.copytree("/var/lib/containerd", "/out/store", symlinks=True)
