"""Steps of a search."""

import pytest

from nri_plugin.policy.search import STEP_BUDGET, BudgetSpentError, StepBudget


def test_a_search_has_the_usual_number_of_steps_unless_told():
    assert StepBudget().left == STEP_BUDGET
    assert StepBudget(0).left == 0


def test_a_budget_is_spent_once_more_was_wanted_than_there_was():
    budget = StepBudget(3)
    budget.step()
    budget.step(2)
    assert (budget.left, budget.is_spent) == (0, False)
    with pytest.raises(BudgetSpentError):
        budget.step()
    assert budget.is_spent


def test_the_reserve_counts_once_it_is_released():
    budget = StepBudget(3)
    assert budget.reserve == 0
    budget.reserve = 2
    budget.step(2)
    assert budget.left == 1
    for _ in range(2):
        budget.release()
        assert (budget.left, budget.reserve) == (3, 0)
