"""What a docstring says about a function, in the styles that people write."""

from collections.abc import Callable
from typing import Any

import pytest

from adjourn.docstring import read_docstring


def documented(doc: str | None) -> Callable[..., Any]:
    def fn() -> None: ...

    fn.__doc__ = doc
    return fn


GOOGLE = """Send an email.

    It goes out at once.

    Args:
        to: Who gets it.
        subject (str): What it is about,
            in a few words.

            Not more.
        *rest: More of them.
        body: The text: all of it.

    Returns:
        The id.

    Raises:
        ValueError: if it does not.
    """

NUMPY = """Send an email.

    It goes out at once.

    Parameters
    ----------
    to : str
        Who gets it.
    subject : str, optional
        What it is about,
        in a few words.

        Not more.
    *rest
        More of them.
    body: str
        The text: all of it.

    Returns
    -------
    str
        The id.
    """

SPHINX = """Send an email.

    It goes out at once.

    :param to: Who gets it.
    :type to: str
    :param str subject: What it is about,
        in a few words.
        Not more.
    :param rest: More of them.
    :param body: The text: all of it.
    :returns: The id.
    :raises ValueError: if it does not.
    """


@pytest.mark.parametrize("doc", [GOOGLE, NUMPY, SPHINX], ids=["google", "numpy", "sphinx"])
def test_each_style_gives_the_same_description_and_parameters(doc: str) -> None:
    about, parameters = read_docstring(documented(doc))
    assert about == "Send an email.\n\nIt goes out at once."
    assert parameters == {
        "to": "Who gets it.",
        "subject": "What it is about, in a few words. Not more.",
        "rest": "More of them.",
        "body": "The text: all of it.",
    }


@pytest.mark.parametrize("doc", [None, "", "  \n  "], ids=repr)
def test_no_docstring_is_no_description(doc: str | None) -> None:
    assert read_docstring(documented(doc)) == ("", {})


def test_a_plain_docstring_is_the_description_as_it_stands() -> None:
    doc = "Adds.\n\n    Mind: a sum: of two.\n\n    - one\n    - two\n    "
    assert read_docstring(documented(doc)) == ("Adds.\n\nMind: a sum: of two.\n\n- one\n- two", {})


def test_parts_about_results_and_errors_are_left_out_of_the_description() -> None:
    doc = "Adds.\n\n    Returns:\n        The sum.\n\n    Examples:\n        add(1, 2)\n    "
    assert read_docstring(documented(doc)) == ("Adds.", {})


@pytest.mark.parametrize("heading", ["Args:", "Arguments:", "Parameters:", "Params:", "args :", "ARGS:"])
def test_the_google_heading_may_be_written_in_its_usual_ways(heading: str) -> None:
    assert read_docstring(documented(f"X.\n\n{heading}\n    a: An a.")) == ("X.", {"a": "An a."})


def test_what_follows_the_arguments_unindented_is_no_argument() -> None:
    assert read_docstring(documented("X.\n\nArgs:\n    a: An a.\nb: no argument\n"))[1] == {"a": "An a."}


def test_a_line_under_args_that_is_no_entry_is_passed_over() -> None:
    assert read_docstring(documented("X.\n\nArgs:\n    the usual ones\n    a: An a.\n    and so on\n"))[1] == {
        "a": "An a. and so on"
    }


def test_a_less_indented_line_ends_the_section() -> None:
    assert read_docstring(documented("X.\n\n  Args:\n      a: An a.\n  b: not one\n"))[1] == {"a": "An a."}
    assert read_docstring(documented("X.\n\nArgs:\n        a: An a.\n    b: not one\n"))[1] == {"a": "An a."}


def test_an_argument_may_be_described_on_the_next_line() -> None:
    assert read_docstring(documented("X.\n\nArgs:\n    a:\n        An a.\n    b:\n"))[1] == {"a": "An a.", "b": ""}


def test_numpy_sections_after_the_parameters_are_no_parameters() -> None:
    doc = "X.\n\nParameters\n----------\na : int\n    An a.\n\nOther Things\n------------\nb : int\n    Not one.\n"
    assert read_docstring(documented(doc)) == ("X.", {"a": "An a."})


def test_numpy_parameters_that_are_described_together_each_get_the_text() -> None:
    assert read_docstring(documented("X.\n\nParameters\n----------\nx, y : int\n    A place.\n"))[1] == {
        "x": "A place.",
        "y": "A place.",
    }


def test_numpy_parameters_at_the_very_end_may_be_without_text() -> None:
    assert read_docstring(documented("X.\n\nParameters\n----------\na : int"))[1] == {"a": ""}


def test_sphinx_fields_end_at_a_blank_line_or_the_next_field() -> None:
    doc = "X.\n\n:param a: An a\n   more.\n:type a: int\n:param int b: A b.\n\n   not of b\n"
    assert read_docstring(documented(doc)) == ("X.", {"a": "An a more.", "b": "A b."})


def test_a_sphinx_field_may_end_the_docstring() -> None:
    assert read_docstring(documented("X.\n\n:param a: An a\n    at last"))[1] == {"a": "An a at last"}
