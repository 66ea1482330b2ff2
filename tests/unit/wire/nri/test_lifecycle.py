"""The table of stages: every stage is reachable, and ends are ends."""

from nri_plugin.wire.nri.session import NEXT_STAGE, SessionStage, SessionStep


def test_every_stage_but_closed_is_reached_from_the_first():
    reached = {SessionStage.CONNECTED}
    while more := {after for (before, _), after in NEXT_STAGE.items() if before in reached} - reached:
        reached |= more
    assert reached == set(SessionStage) - {SessionStage.CLOSED}


def test_nothing_leaves_an_end():
    assert not [key for key in NEXT_STAGE if key[0] in (SessionStage.FAILED, SessionStage.CLOSED)]


def test_every_step_moves_something():
    assert {step for _, step in NEXT_STAGE} == set(SessionStep)


def test_events_move_nothing():
    assert all(before is after for (before, step), after in NEXT_STAGE.items() if step is SessionStep.EVENT)
