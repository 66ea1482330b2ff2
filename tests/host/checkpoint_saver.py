"""Saves one state after the other until it is killed; prints the generation after every save.

Arguments: the directory; `durable` or `fast`; `append`, which compacts now and then, or `replace`.
"""

import os
import sys

from nri_plugin.checkpoint import file as checkpoint
from nri_plugin.checkpoint.file import CheckpointFile
from nri_plugin.model.records import Allocation, CgroupRef, ContainerRecord, Phase
from nri_plugin.model.sets import CPUSet
from nri_plugin.model.state import State

PADDING = {
    f"id-{number}": ContainerRecord(
        f"id-{number}", "p", f"c{number}", Phase.RUNNING, CgroupRef("/kubepods/podp")
    )
    for number in range(200)
}
"""Makes the file long enough to be killed in the middle of a write."""


def main(directory: str, durable: str, way: str) -> None:
    file = CheckpointFile(directory, durable=durable == "durable")
    state = file.load().state or State(containers=PADDING)
    while True:
        cpus = CPUSet.of((file.generation + 1) % 512)
        state = state.with_allocation("p/c", Allocation(cpus))
        if way == "append":
            file.append(state)
        else:
            file.save(state)
        os.write(1, b"%d\n" % file.generation)
        if file.generation % 40 == 0:
            checkpoint.LEAST_JOURNAL = 0
            file.compact()


main(*sys.argv[1:])
