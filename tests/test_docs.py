"""The documentation's code is code: what its pages show is written down, run and checked."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
import operator
import os
import re
import shlex
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer

import rwalk
from rwalk import cli

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
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


PAGES = [page for page in sorted(DOCS.rglob("*.md")) if not {"generated", "gallery"} & set(page.parts)]
RUNNABLE = re.compile(r"^```(python|bash)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
RUN = [page for page in PAGES if not page.stem.startswith("extending") and RUNNABLE.search(page.read_text())]
LONG = {"adapters", "classifier", "closed-form", "cluster", "compare-methods", "delete-data", "first-study"}
LONG |= {"images-with-a-backbone", "merge-sites", "new-classes", "new-entity", "no-data", "segmenter-new-class"}
LONG |= {"fine-tune-a-language-model", "unknown-classes", "which-method"}
# Names that a page's code uses, as its reader has them.
ARRIVED = """
from sklearn.datasets import load_digits
import rwalk
x, y = load_digits(return_X_y=True)
x, y = x[:600] / 16, y[:600]
x_monday, y_monday, x_tuesday, y_tuesday = x[y < 5], y[y < 5], x[y >= 5], y[y >= 5]
x_customer, y_customer = x_withdrawn, y_withdrawn = x_monday[:9], y_monday[:9]
calls = [(x_monday[:60], y_monday[:60]), (x_tuesday[:60], y_tuesday[:60])]
"""
# A tiny model in the place of the one that the page names, and some lines to learn.
LANGUAGE_MODEL = """
from pathlib import Path
from tokenizers import Regex, Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
words = Tokenizer(models.WordLevel({chr(n): n for n in range(128)}, unk_token=chr(0)))
words.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, bos_token=chr(1), eos_token=chr(2))
config = LlamaConfig(
    vocab_size=128, hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2,
    max_position_embeddings=512, bos_token_id=1, eos_token_id=2,
)
for part in (tokenizer, LlamaForCausalLM(config)):
    part.save_pretrained("HuggingFaceTB/SmolLM2-135M")
Path("new.txt").write_text("9876543210 9876543210\\n\\n" * 40)
"""
SETUPS = {
    "classifier": ARRIVED,
    "closed-form": ARRIVED,
    "howto/fine-tune-a-language-model": LANGUAGE_MODEL,
}


def name(page: Path) -> str:
    return page.relative_to(DOCS).as_posix().removesuffix(".md")


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(
    "page", [pytest.param(page, id=name(page), marks=[pytest.mark.slow] * (page.stem in LONG)) for page in RUN]
)
def test_what_a_page_tells_to_do_can_be_done(folder: Path, page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Scripts and commands in the order of the page; what cannot be run here is marked py, sh or console."""
    namespace: dict[str, object] = {}
    for package, used in (
        ("transformers", "from transformers"),
        ("peft", "import peft"),
        ("huggingface_hub", "integrations.hub"),
        ("pandas", "to_frame"),
    ):
        if used in page.read_text():
            pytest.importorskip(package)
    exec(SETUPS.get(name(page), ""), namespace)
    for language, block in RUNNABLE.findall(page.read_text()):
        if language == "python":
            exec(compile(block, str(page), "exec"), namespace)
        else:
            for command in block.splitlines():
                _run(command, monkeypatch)


def _run(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    words = shlex.split(command, comments=True)
    assert words[0] == "rwalk"
    if words[1] == "run" and "--join" not in words:
        words.append("--workers=1")  # without starting processes, which takes longer than the training
    monkeypatch.setattr(sys, "argv", words)
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert not ended.value.code, command


@pytest.mark.slow
@pytest.mark.parametrize("example", ["guard_plain", "guard_one_head"])
def test_figures_of_a_page_are_those_that_the_example_prints(example: str) -> None:
    script = ROOT / "examples" / f"{example}.py"
    environ = {**os.environ, "MPLBACKEND": "agg", "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, env=environ)
    printed = re.findall(r"(\d+\.\d)%", done.stdout)
    assert len(printed) >= 4 and "UserWarning" not in done.stderr, done.stderr
    page = (DOCS / "guard-parameters.md").read_text()
    assert [each for each in printed if f" {each} %" not in page] == []


# Where a page needs more (a cluster, a GPU, a language model, files of its reader): names and options.
NOT_RUN = re.compile(r"^```(?:py|sh|console|bash)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SHOWN = [
    *PAGES,
    ROOT / "README.md",
    ROOT / "RESULTS.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "benchmarks" / "README.md",
]


def commands_of(text: str) -> list[str]:
    """Commands in blocks, and those in the text that are more than a name."""
    lines = [line.removeprefix("$ ") for block in NOT_RUN.findall(text) for line in block.splitlines()]
    inline = re.findall(r"`((?:rwalk|python -m|make) [^`…\n]+)`", text)
    joined = "\n".join([*lines, *inline]).replace("\\\n", " ")
    return [line.removeprefix("srun ") for line in joined.splitlines() if "…" not in line]


@pytest.mark.parametrize("page", SHOWN, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_commands_of_a_page_have_options_that_exist(page: Path) -> None:
    known = typer.main.get_command(cli.app).commands  # type: ignore[attr-defined]
    targets = re.findall(r"^(\S+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    for command in commands_of(page.read_text()):
        words = shlex.split(command, comments=True)
        if words[:1] == ["rwalk"] and len(words) > 1 and words[1].islower() and words[1][0] != "-":
            try:
                known[words[1]].make_context(words[1], words[2:], resilient_parsing="--help" in words)
            except Exception as error:
                if not isinstance(error.__cause__ or error, typer.BadParameter) or "Missing" not in str(error):
                    raise AssertionError(f"{command}: {error}") from error
        elif words[:1] == ["make"]:
            assert {word for word in words[1:] if "=" not in word} <= set(targets), command
        elif words[:2] == ["python", "-m"]:
            assert words[2] in ("pytest", "sphinx") or importlib.util.find_spec(words[2]), command


@pytest.mark.parametrize("page", SHOWN, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_calls_of_rwalk_in_a_page_fit_its_signatures(page: Path) -> None:
    """Also in fragments that cannot be run as they are."""
    names: dict[str, object] = {"rwalk": rwalk, "guard": rwalk.Guard}
    names |= {each: getattr(rwalk, each) for each in ("Guard", "IncrementalClassifier", "IncrementalRegressor")}
    for block in re.findall(r"^```(?:py|python)\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL):
        tree = ast.parse(block)
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("rwalk"):
                for alias in node.names:
                    names[alias.name] = getattr(importlib.import_module(node.module or ""), alias.name)
        for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
            first, _, rest = ast.unparse(call.func).partition(".")
            if first in names:
                called = operator.attrgetter(rest)(names[first]) if rest else names[first]
                known = inspect.signature(called).parameters  # type: ignore[arg-type]
                passed_on = called is not rwalk.Guard and any(
                    each.kind is each.VAR_KEYWORD for each in known.values()
                )
                unknown = [each.arg for each in call.keywords if each.arg and each.arg not in known]
                assert not unknown or passed_on, f"{ast.unparse(call.func)} takes no {unknown}"


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


PARTS = ("src/rwalk", "reproduction", "tests", "results", "benchmarks", "examples", "docs")
PATH = re.compile(r"`((?:\w+/)*\w+(?:\.py|/))(?:: ([\w.]+))?`")


def existing() -> set[str]:
    """Files and folders of the project, relative to its root; folders end with a slash."""
    files = [each for part in PARTS for each in (ROOT / part).rglob("*") if "__pycache__" not in each.parts]
    files = [each.relative_to(ROOT) for each in files if each.is_file()]
    return {each.as_posix() for each in files} | {f"{up.as_posix()}/" for each in files for up in each.parents}


def missing(text: str) -> list[str]:
    """The paths that a text names, but that do not exist.

    In a list below an item that names a folder of the package, a path is relative to that folder. Elsewhere it may
    be the end of any path. A name after a colon must be defined in the file.
    """
    known, out, folder = existing(), [], ""
    for line in text.splitlines():
        if not line.startswith("  - "):
            item = re.match(r"- `((?:\w+/)+)`", line)
            folder = f"src/rwalk/{item[1]}" if item else ""
        for path, name in PATH.findall(line):
            inside = "" if folder.endswith(f"/{path}") else folder
            found = [each for each in known if f"/{each}".endswith(f"/{path}") and each.startswith(inside)]
            files = [(ROOT / each).read_text() for each in found] if name else []
            defined = [
                all(re.search(rf"^\s*(?:def|class) {part}\b", file, re.M) for part in name.split("."))
                for file in files
            ]
            if not found or (name and not any(defined)):
                out.append(f"{path}: {name}" if name else path)
    return out


@pytest.mark.parametrize("page", ["design", "map"])
def test_every_path_in_the_design_exists(page: str) -> None:
    text = (DOCS / f"{page}.md").read_text()
    assert len(PATH.findall(text)) > 30
    assert missing(text) == []


def test_every_file_of_the_package_has_a_name_of_its_own_and_stands_on_the_map() -> None:
    text = (DOCS / "map.md").read_text()
    files = [each for each in (ROOT / "src/rwalk").rglob("*") if each.suffix in (".py", ".js", ".css", ".j2")]
    names = [each.name for each in files if not each.name.startswith("__")]
    assert [name for name, count in Counter(names).items() if count > 1] == []
    assert [name for name in names if f"`{name}`" not in text] == []


@pytest.mark.parametrize(
    "text",
    [
        "`engine/gone.py`",
        "`nowhere/`",
        "- `engine/`: the loop\n  - `splits.py`: holds nothing here",
        "- `engine/`: the loop. `splits.py`: holds nothing here",
        "`guard/hooks.py: OptimizerHooks._gone`",
    ],
)
def test_a_path_that_does_not_exist_is_found(text: str) -> None:
    assert len(missing(text)) == 1
