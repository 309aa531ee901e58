"""The rules every way of running turns must obey, as a test suite: `check_engine(serve, store)`.

Each rule is a function of one `Stage`, named for what it says; `RULES` has them all, for a test runner that wants to report
them one by one. They say nothing about where a turn runs: the loop in this process obeys them, and so does an engine.
"""

from collections.abc import Awaitable, Callable

from adjourn.store import Store
from adjourn.testing_engine import pauses, turns
from adjourn.testing_engine.stage import Serve, Stage

__all__ = ["RULES", "Stage", "check_engine"]

RULES: tuple[Callable[[Stage], Awaitable[None]], ...] = (
    turns.a_turn_ends_with_what_the_model_says,
    turns.results_reach_the_model_in_request_order,
    turns.bad_requests_go_back_to_the_model,
    turns.attempts_of_a_tool_are_counted,
    turns.a_sequential_tool_runs_alone,
    turns.state_and_artifacts_are_kept,
    pauses.a_pause_is_stored_before_it_is_told,
    pauses.a_restart_runs_what_was_shown,
    pauses.a_replaced_input_is_what_runs,
    pauses.falsy_responses_are_answers,
    pauses.a_refusal_tells_the_model,
    pauses.a_part_of_the_pauses_can_be_answered,
    pauses.one_decision_wins,
    pauses.a_decision_from_elsewhere_is_delivered,
    pauses.what_nobody_decides_expires,
    pauses.handlers_decide_within_limits,
    pauses.a_fork_is_answered_on_its_own,
    pauses.a_pause_within_an_agent_surfaces,
    turns.a_failed_turn_can_be_retried,
    turns.a_model_failure_keeps_everything,
    turns.limits_stop_a_turn,
    turns.an_abort_ends_the_turn,
    turns.a_paused_turn_can_be_aborted,
    turns.a_background_turn_runs_without_its_caller,
    turns.a_watcher_hears_of_results_and_pauses,
    turns.the_callers_context_reaches_the_tools,
)


async def check_engine(serve: Serve, store: Callable[[], Store]) -> None:
    """Holds a way of running turns against every rule. Raises AssertionError, with a sentence that says what is wrong.

    `serve(ai)` is an async context manager within which the turns of that application run: it sets `ai.engine` and runs a
    worker, say. It gives an async function that makes sure that decisions made elsewhere are taken up. `store` gives a new,
    empty store each time; it is closed with the application.
    """
    for rule in RULES:
        await rule(Stage(serve, store))
