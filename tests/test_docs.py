"""The documentation's code is code: what its pages show is written down, run and checked."""

from __future__ import annotations

import importlib
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rwalk import cli

DOCS = Path(__file__).parent.parent / "docs"
EXTENDING = "".join((DOCS / f"{page}.md").read_text() for page in ("extending", "extending-use"))


def blocks(language: str, text: str = EXTENDING) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


MODULE = [block for block in blocks("python") if block.startswith("# mine.py\n")]
SCRIPTS = [block for block in blocks("python") if not block.startswith("# mine.py\n")]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where the reader works: mine.py is in it."""
    (tmp_path / "mine.py").write_text("\n\n".join(MODULE))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RWALK_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    importlib.invalidate_caches()
    yield tmp_path
    sys.modules.pop("mine", None)


def test_everything_on_the_page_runs_and_passes_its_checks(folder: Path) -> None:
    """One block after the other, as a reader would; the checks among them train."""
    assert len(MODULE) == 8 and len(SCRIPTS) == 5
    namespace: dict[str, object] = {}
    for script in SCRIPTS:
        exec(compile(script, "docs/extending.md", "exec"), namespace)
    kept = namespace["test_my_method_keeps_its_promises"].pytestmark[0].args[1]  # type: ignore[attr-defined]
    assert len(kept) > 10


def test_the_command_on_the_page_trains_a_users_own_parts(folder: Path) -> None:
    """In a process of its own, which finds mine.py in its folder, and nobody has imported it before."""
    (command,) = blocks("bash")
    words = shlex.split(command)
    assert words[0] == "rwalk"
    done = subprocess.run([sys.executable, "-m", "rwalk", *words[1:]], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert all(name in done.stdout for name in ("rwalk", "mine:MeanGradient", "mine:DERpp"))
    assert len((folder / "study" / "runs.jsonl").read_text().splitlines()) == 4


def test_a_study_of_own_parts_goes_on_only_when_each_is_confirmed(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def rwalk(*words: str) -> int:
        monkeypatch.setattr(sys, "argv", ["rwalk", *words])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        return int(ended.value.code or 0)

    own = ["--methods=mine:MeanGradient", "--memory=1", "--sampler=mine:LEAST_SURE", "--steps=1", "--seeds=1"]
    assert rwalk("run", *own, "--reference=none", "--workers=1", "--out=study", "--quiet") == 0
    assert rwalk("resume", "study", "--quiet") == 2
    assert "add --trust mine:MeanGradient --trust mine:LEAST_SURE if you trust it" in capsys.readouterr().err
    assert rwalk("resume", "study", "--trust=mine:MeanGradient", "--quiet") == 2
    assert "add --trust mine:LEAST_SURE if you trust it" in capsys.readouterr().err
    assert rwalk("resume", "study", "--trust=mine:MeanGradient", "--trust=mine:LEAST_SURE", "--quiet") == 0


HOW_TO = sorted((DOCS / "howto").glob("*.md"))
RUN = [DOCS / "studies.md", *HOW_TO]  # of these, all that is marked python or bash


@pytest.mark.parametrize("page", RUN, ids=lambda page: page.stem)
def test_what_a_page_tells_to_do_can_be_done(folder: Path, page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Scripts and commands in the order of the page; what cannot be run here is marked py, sh or console."""
    namespace: dict[str, object] = {}
    if "import peft" in page.read_text():
        pytest.importorskip("peft")
    for language, block in re.findall(
        r"^```(python|bash)\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL
    ):
        if language == "python":
            exec(compile(block, str(page), "exec"), namespace)
        else:
            for command in block.splitlines():
                _run(command, monkeypatch)


def _run(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    words = shlex.split(command, comments=True)
    assert words[0] == "rwalk"
    if words[1] == "run" and "--join" not in words:
        words.append("--executor=here")  # without starting processes, which takes longer than the training
    monkeypatch.setattr(sys, "argv", words)
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert not ended.value.code, command


def test_the_commands_on_the_page_about_files_do_what_it_says(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On real data, in the order of the page: what is forgotten was learned before."""
    from sklearn.datasets import load_iris

    data = load_iris()
    rows = [[*x, data.target_names[y]] for x, y in zip(data.data, data.target, strict=True)]
    header = [*data.feature_names, "species"]
    for name, chosen in {
        "january": rows,
        "february": rows[:60],
        "withdrawn": rows[30:90],
        "unknown": rows,
    }.items():
        lines = [",".join(map(str, row)) for row in (header, *chosen)]
        Path(f"{name}.csv").write_text("\n".join(lines))
    (block,) = (block for block in blocks("console", (DOCS / "files.md").read_text()) if "january" in block)
    commands = [line.partition("#")[0] for line in block.splitlines() if line.startswith("$ ")]
    said = []
    for command in commands:
        monkeypatch.setattr(sys, "argv", shlex.split(command.removeprefix("$ ")))
        with pytest.raises(SystemExit) as ended:
            cli.main()
        said += capsys.readouterr().out.splitlines()
        assert not ended.value.code
    assert len(commands) == 4 and said[1] == block.splitlines()[2]
    assert said[-1] == "clf.safetensors: 60 examples forgotten; 3 classes: setosa, versicolor, virginica"


ROOT = DOCS.parent
PARTS = ("src/rwalk", "reproduction", "tests", "results", "benchmarks", "examples", "docs")
PATH = re.compile(r"`((?:\w+/)*\w+(?:\.py|/))(?:: ([\w.]+))?`")


def existing() -> set[str]:
    """Files and folders of the project, relative to its root; folders end with a slash."""
    files = [each for part in PARTS for each in (ROOT / part).rglob("*") if "__pycache__" not in each.parts]
    files = [each.relative_to(ROOT) for each in files if each.is_file()]
    return {each.as_posix() for each in files} | {f"{up.as_posix()}/" for each in files for up in each.parents}


def missing(text: str) -> list[str]:
    """The paths that a text names, but that do not exist.

    In a row of a table whose first cell names a folder of the package, a path may be relative to that folder.
    Elsewhere it may be the end of any path. A name after a colon must be defined in the file.
    """
    known, out = existing(), []
    for line in text.splitlines():
        row = re.match(r"\| `(\w+/)` \|", line)
        for path, name in PATH.findall(line):
            inside = f"src/rwalk/{row[1]}" if row and path != row[1] else ""
            found = [each for each in known if f"/{each}".endswith(f"/{path}") and each.startswith(inside)]
            files = [(ROOT / each).read_text() for each in found] if name else []
            defined = [
                all(re.search(rf"^\s*(?:def|class) {part}\b", file, re.M) for part in name.split("."))
                for file in files
            ]
            if not found or (name and not any(defined)):
                out.append(f"{path}: {name}" if name else path)
    return out


def test_every_path_in_the_design_exists() -> None:
    text = (DOCS / "design.md").read_text()
    assert len(PATH.findall(text)) > 60
    assert missing(text) == []


@pytest.mark.parametrize(
    "text",
    [
        "`engine/gone.py`",
        "`nowhere/`",
        "| `engine/` | `splits.py` holds nothing here |",
        "`guard/hooks.py: OptimizerHooks._gone`",
    ],
)
def test_a_path_that_does_not_exist_is_found(text: str) -> None:
    assert len(missing(text)) == 1
