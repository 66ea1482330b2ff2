"""Run (d) with hundreds of interrupts: more than the vector table of one CPU takes, and what they cost a creation."""

from .run_quiet import play_story
from .scenarios_crowd_of_interrupts import a_full_vector_table_is_survived, creations_wait_for_no_interrupt

if __name__ == "__main__":
    play_story((a_full_vector_table_is_survived, creations_wait_for_no_interrupt))
