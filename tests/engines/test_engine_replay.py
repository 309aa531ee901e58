"""The workflow of this version replays what earlier ones did: the histories of each release."""

from pathlib import Path

import pytest
from temporalio.client import WorkflowHistory
from temporalio.worker import Replayer
from temporalio.workflow import NondeterminismError

from adjourn.engines.temporal import data_converter
from adjourn.engines.temporal_worker import sandbox
from adjourn.engines.temporal_workflow import TurnWorkflow

HISTORIES = Path(__file__).parent / "histories"
FILES = sorted(HISTORIES.glob("*/*.json"))


def history_of(file: Path, text: str | None = None) -> WorkflowHistory:
    return WorkflowHistory.from_json(file.stem, text or file.read_text())


def replayer() -> Replayer:
    return Replayer(workflows=[TurnWorkflow], workflow_runner=sandbox(), data_converter=data_converter())


def test_there_are_histories_of_a_release() -> None:
    assert len(FILES) >= 9


@pytest.mark.parametrize("file", FILES, ids=lambda f: f"{f.parent.name}-{f.stem}")
async def test_a_history_of_an_earlier_release_replays(file: Path) -> None:
    await replayer().replay_workflow(history_of(file))


async def test_a_history_in_which_something_else_was_done_does_not_replay() -> None:
    file = next(f for f in FILES if f.stem == "long")
    with pytest.raises(NondeterminismError):
        await replayer().replay_workflow(_altered(file))


def _altered(file: Path) -> WorkflowHistory:
    return history_of(file, file.read_text().replace('"adjourn.finish"', '"adjourn.other"'))
