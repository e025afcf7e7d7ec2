"""The public face is what it says, and looking at it costs nothing."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module

import pytest

import rwalk
from rwalk import part_names, parts


@pytest.mark.parametrize("name", rwalk.__all__)
def test_everything_promised_is_there(name: str) -> None:
    assert getattr(rwalk, name) is not None
    assert name in dir(rwalk)


def test_the_table_of_homes_is_the_public_face() -> None:
    assert sorted([*rwalk._HOME_OF, "metrics"]) == sorted(rwalk.__all__)
    for name, home in rwalk._HOME_OF.items():
        assert getattr(import_module(home), name) is getattr(rwalk, name)


def test_what_is_not_there_is_said() -> None:
    with pytest.raises(AttributeError, match="no attribute 'RWlk'"):
        rwalk.RWlk  # noqa: B018


def imported_by(script: str) -> set[str]:
    """The modules that a fresh process has imported when the script ends."""
    script += "\nimport sys; print('\\n' + ' '.join(sys.modules))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.splitlines()[-1].split())


def command(name: str) -> str:
    return f"""
import sys
from rwalk.cli import main
sys.argv = ["rwalk", "{name}"]
try:
    main()
except SystemExit as ended:
    assert not ended.code
"""


def test_help_does_not_wait_for_torch() -> None:
    assert not {"torch", "numpy", "sklearn", "rich"} & imported_by(command("--help"))


def test_the_list_of_methods_does_not_wait_for_torch() -> None:
    assert not {"torch", "numpy", "sklearn", "scipy"} & imported_by(command("methods"))


def test_the_list_of_methods_is_that_of_the_parts_there_are() -> None:
    described = {name: kind.summary for name, kind in parts.parts().items()}
    assert list(part_names.summaries().items()) == list(described.items())


def test_a_guard_does_not_wait_for_scikit_learn() -> None:
    assert not {"sklearn", "scipy", "pandas", "rich", "typer"} & imported_by("import rwalk; rwalk.Guard")


def test_no_public_name_waits_for_an_extra() -> None:
    """Nor for more of scikit-learn than its base, which itself imports whatever else it finds."""
    everything = imported_by("import rwalk; [getattr(rwalk, name) for name in rwalk.__all__]")
    beyond = everything - imported_by("import torch, sklearn.base")
    extras = {"sklearn.model_selection", "typer", "matplotlib", "plotly", "PIL", "pyarrow", "lightning"}
    assert not extras & beyond


@pytest.mark.parametrize("collecting", [True, False])
def test_importing_leaves_the_garbage_collector_as_it_was(collecting: bool) -> None:
    switch = "enable" if collecting else "disable"
    imported_by(f"import gc, rwalk; gc.{switch}(); rwalk.Guard; assert gc.isenabled() is {collecting}")
