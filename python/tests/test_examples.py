"""The examples of the documentation."""

from __future__ import annotations

import doctest
import importlib

import pytest

from .conftest import ROOT

OPTIONS = doctest.ELLIPSIS | doctest.IGNORE_EXCEPTION_DETAIL


@pytest.mark.parametrize("name", ["hushflow", "hushflow.strategy", "hushflow.noise", "hushflow.training", "hushflow._moments"])
def test_examples_of_a_module(name: str) -> None:
    found = doctest.testmod(importlib.import_module(name), optionflags=OPTIONS)
    assert found.attempted > 0 and found.failed == 0


def test_examples_of_the_page() -> None:
    found = doctest.testfile(str(ROOT / "docs/python.md"), module_relative=False, optionflags=OPTIONS)
    assert found.attempted > 0 and found.failed == 0
