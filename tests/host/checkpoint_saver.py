"""Saves one state after the other until it is killed; prints the generation after every save."""

import os
import sys

from nri_plugin.checkpoint.file import CheckpointFile
from nri_plugin.model.sets import CPUSet
from nri_plugin.model.state import Allocation, CgroupRef, ContainerRecord, Phase, State

PADDING = {
    f"id-{number}": ContainerRecord(
        f"id-{number}", "p", f"c{number}", Phase.RUNNING, CgroupRef("/kubepods/podp")
    )
    for number in range(200)
}
"""Makes the file long enough to be killed in the middle of a write."""


def main(directory: str, mode: str) -> None:
    file = CheckpointFile(directory, durable=mode == "durable")
    file.load()
    while True:
        cpus = CPUSet.of((file.generation + 1) % 512)
        file.save(State(containers=PADDING, allocations={"p/c": Allocation(cpus)}))
        os.write(1, b"%d\n" % file.generation)


main(sys.argv[1], sys.argv[2])
