"""The site: Sphinx, MyST, furo and sphinx-gallery. `make docs` builds it into build/docs."""

from __future__ import annotations

import re
import sys
import warnings
from importlib.util import find_spec
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parent
sys.path[:0] = [str(ROOT / "src"), str(HERE / "_extensions")]

import rwalk  # noqa: E402 - from this checkout, not from an installed version

project = "rwalk"
author = "the rwalk authors"
copyright = "the rwalk authors, MIT licence"
version = release = rwalk.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",  # before plain_docstrings, which then reads its fields
    "sphinx_copybutton",
    "sphinx_gallery.gen_gallery",
    "native_math",
    "plain_docstrings",
    "repository_links",
    "command_help",
    "llms_txt",
    "accessible",
]
exclude_patterns = [
    "_tools",
    "_extensions",
    "gallery/*.py.md5",
    "gallery/sg_execution_times.rst",
    "sg_execution_times.rst",
]
nitpicky = True
# Python names in prose become links where they can; most are words, or names of other libraries.
nitpick_ignore_regex = [("py:.*", ".*")]

# ── Markdown ──
myst_enable_extensions = ["colon_fence", "deflist", "dollarmath", "attrs_block"]
myst_heading_anchors = 4
# Some blocks show the output of a program, or a Slurm script: no lexer can read them.
suppress_warnings = ["misc.highlighting_failure", "config.cache"]

# ── Python's docstrings ──
default_role = "py:obj"
autosummary_generate = True
autodoc_default_options = {"members": True}
autodoc_inherit_docstrings = False
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_preserve_defaults = True
napoleon_numpy_docstring = False
python_use_unqualified_type_names = True
maximum_signature_line_length = 90
add_module_names = False

# ── the gallery: every example is run, and shown with its output and pictures ──
EXTRAS = {
    "guard_lightning": "lightning",
    "guard_huggingface": "transformers",
    "guard_accelerate": "accelerate",
    "guard_trl": "trl",
}
MISSING = [example for example, package in EXTRAS.items() if find_spec(package) is None]
for example in MISSING:
    print(f"examples/{example}.py is shown but not run: {EXTRAS[example]} is not installed")
not_run = "".join(rf"(?!{re.escape(example)}\.py)" for example in MISSING)
sphinx_gallery_conf = {
    "examples_dirs": "../examples",
    "gallery_dirs": "gallery",
    "filename_pattern": rf"/{not_run}\w+\.py$",
    "within_subsection_order": "gallery_order.InOrder",
    "download_all_examples": False,
    "show_signature": False,
    "min_reported_time": 1,
    "image_srcset": ["2x"],
    "matplotlib_animations": False,
    "reset_modules": ("matplotlib",),
    # Every example can be downloaded as a notebook too; rwalk is installed from a clone.
    "first_notebook_cell": "# Install rwalk from a clone of its repository; give the clone's path.\n"
    '%pip install --quiet "rwalk[all] @ file:///path/to/the/clone"',
}
not_executed = {f"gallery/{example}": EXTRAS[example] for example in MISSING}
warnings.filterwarnings("ignore", "The given NumPy array is not writable", UserWarning)

# ── how it looks ──
templates_path = ["_templates"]
html_theme = "furo"
html_title = "rwalk"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_theme_options = {"sidebar_hide_name": False, "navigation_with_keys": True}
html_copy_source = True
html_show_sphinx = False
html_last_updated_fmt = None
pygments_style = "a11y-high-contrast-light"
pygments_dark_style = "a11y-high-contrast-dark"
html_math_renderer = "mathml"
