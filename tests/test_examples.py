"""Every small example runs by itself, without a network and without a warning, and prints what it says it does."""

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"

OUTPUT = {
    "approve_email": """\
Paused: send_email {'to': 'ann@example.com', 'subject': 'Lunch', 'question': 'Send it?'}
In the outbox: []
Approved: I sent the email to Ann.
In the outbox: ['ann@example.com: Lunch: Noon?']
""",
    "respond_instead": """\
Paused: {'currency': 'CHF', 'problem': 'the rate service is down'}
Refused: the response to tool 'exchange_rate' does not fit its declared type: $.per_euro: is required. \
The pause is kept: correct the response and send it again
Answered: One euro is 0.95 francs.
The model was told: {'currency': 'CHF', 'per_euro': 0.95}
""",
    "back_off": """\
Pause 1: {'status': 503, 'will_retry': True, 'tried': 0}
Pause 2: {'status': 503, 'will_retry': True, 'tried': 1}
Pause 3: {'status': 503, 'will_retry': True, 'tried': 2}
Gave up: the supplier answered 503 four times
With the handler: The price is 12.50.
""",
    "validate_and_correct": """\
The supplier sent: {'sku': 'a-1', 'price': '1,250.00'}
Told the model: {'error': "the arguments of tool 'supplier_record' are not valid: $.sku: Input should be a valid \
string, not 7. Correct them and call again"}
Told the model: {'sku': 'A-1', 'price': 1250.0}
Parsed: Product(sku='A-1', price=1250.0)
""",
    "parallel_calls": """\
  reading the balance
Waiting: [{'invoice': 1, 'euros': 20}, {'invoice': 2, 'euros': 900}]
One answered: interrupted - model calls so far: 1
  paying invoice 1
Both answered: stop - model calls so far: 2
  result: paid
  result: {'declined': True, 'reason': 'too much'}
  result: 0
""",
    "agent_session": """\
text: Let me\x20
text: do that.\x20
paused: delete_file {'path': 'old.txt'}
[deleting old.txt]
result: deleted
text: The file\x20
text: is gone.
stop - The file is gone.
stop - You asked me to delete old.txt.
6 messages
""",
    "nested_agents": """\
interrupted in billing through ('billing',) because of approval
asked for: refund {'order': 17, 'euros': 40}
[paying 40 euros back for order 17]
stop - Your money is on its way.
""",
    "survive_a_crash": """\
The child was killed: True
Found: interrupted - book {'train': 'IC 5'} - outcome_unknown
Bookings made: ['IC 5']
stop - You have a seat on IC 5.
Bookings in the end: 1
""",
}


@pytest.mark.parametrize("name", OUTPUT)
def test_an_example_runs_and_prints_what_happens(name: str, tmp_path: Path) -> None:
    if name == "survive_a_crash" and sys.platform == "win32":
        pytest.skip("SIGKILL does not exist on Windows")
    command = [sys.executable, "-W", "error", str(EXAMPLES / f"{name}.py")]
    done = subprocess.run(command, cwd=tmp_path, check=False, capture_output=True, encoding="utf-8", timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (done.stdout, done.stderr) == (OUTPUT[name], "")
    assert list(tmp_path.iterdir()) == []


def test_every_small_example_is_tested_explains_itself_and_is_short() -> None:
    small = [p for p in EXAMPLES.glob("*.py") if p.name != "__init__.py" and not p.name.startswith("catalogue")]
    assert {p.stem for p in small} == set(OUTPUT)
    for path in small:
        source = path.read_text(encoding="utf-8")
        assert source.startswith('"""'), path
        assert len(source.splitlines()) < 80, path
