"""What MkDocs calls while it builds the site: pages made from code, formulas as MathML, links that work.

Settings come from the schema, commands from typer, notebooks from their files with the outputs they have.
Nothing is fetched, and the pages need no script for their formulas.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

import click
from latex2mathml.converter import convert
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]
PAGES = {"CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
# What a reader of the repository is shown in place of a page that is made here.
SHOWN = PAGES | {"src/signfade/settings.py": "settings.md", "src/signfade/cli/commands.py": "cli.md"}
EXAMPLES = sorted(path for kind in ("*.py", "*.toml") for path in (ROOT / "examples").glob(kind))
LINK = re.compile(r"\]\((?!https?:|#|mailto:)([^)#\s]+)(#[^)\s]*)?\)")
FORMULA = re.compile(r'<(span|div) class="arithmatex">\\([(\[])(.*?)\\[)\]]</\1>', re.DOTALL)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are made here."""
    made = {"settings.md": settings_page(), "cli.md": cli_page(), "examples.md": examples_page()}
    made |= {target: (ROOT / source).read_text() for source, target in PAGES.items()}
    for notebook in sorted((ROOT / "docs" / "notebooks").glob("*.ipynb")):
        made |= notebook_pages(notebook)
    for path, content in made.items():
        files.append(File.generated(config, path, content=content))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turn links to files outside of docs/ into links to their pages; what has no page loses its link."""
    known = {file.src_uri for file in files}
    place = posixpath.dirname(page.file.src_uri)
    made = page.file.src_uri in PAGES.values()

    def target(match: re.Match[str]) -> str:
        path, anchor = match[1], match[2] or ""
        inside = posixpath.normpath(posixpath.join("" if made else f"docs/{place}", path))
        name = inside.removeprefix("docs/") if inside.startswith("docs/") else SHOWN.get(inside, "")
        name = re.sub(r"^(notebooks/.*)\.ipynb$", r"\1.md", name)
        if inside.startswith("examples/") and ROOT / inside in EXAMPLES:
            name, anchor = "examples.md", f"#{slug(Path(inside).name)}"
        if name in known:
            return f"]({posixpath.relpath(name, place or '.')}{anchor})"
        if not (ROOT / inside).exists() or inside.startswith("docs/"):
            return match[0]  # MkDocs reports it
        return "]{}"

    return re.sub(r"\[([^\]]*)\]\{\}", r"\1", LINK.sub(target, markdown))


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Write formulas as MathML, which browsers show without a script."""

    def formula(match: re.Match[str]) -> str:
        import html as entities

        display = "block" if match[2] == "[" else "inline"
        return convert(entities.unescape(match[3]).strip(), display=display)

    return FORMULA.sub(formula, html)


def slug(title: str) -> str:
    """Return the anchor of a heading, as the site makes it."""
    return re.sub(r"[^\w-]", "", title.lower().replace(" ", "-"))


def settings_page() -> str:
    """Return one table per section of the settings, from their schema."""
    from signfade.experiments.config import known_keys
    from signfade.experiments.toml import _choices, _registered, toml_value
    from signfade.settings import RunSettings

    choices = _registered()
    lines = [
        "# Settings",
        "",
        "The same names in a TOML file, after `--set`, and as keywords in Python (`signfade config` prints "
        "them, too). A key without a value here has none by default.",
    ]
    section = None
    for key, field in known_keys().items():
        head = key.partition(".")[0] if "." in key else ""
        if head != section:
            section = head
            about = RunSettings.model_fields[head].annotation.__doc__ if head else "The run itself."
            lines += [
                "",
                f"## {head or 'Top level'}",
                "",
                about.strip(),
                "",
                "| key | default | meaning |",
                "|---|---|---|",
            ]
        default = "" if field.default is None else f"`{toml_value(field.default)}`"
        text = f"{field.description or ''}{_choices(field)}"
        text += "".join(f"<br>**{name}**: {help}" for name, help in choices.get(key, []))
        lines.append(f"| `{key}` | {default} | {text.replace('|', '&#124;')} |")
    return "\n".join(lines) + "\n"


def cli_page() -> str:
    """Return every command with its help, as typer knows it."""
    import typer

    from signfade.cli.entry import app

    root = typer.main.get_command(app)
    lines = ["# Command line", "", root.help or ""]
    for name, command in root.commands.items():  # type: ignore[attr-defined]
        lines += command_lines(f"signfade {name}", command, 2)
    return "\n".join(lines) + "\n"


def command_lines(name: str, command: Any, level: int) -> list[str]:
    """Return one command, or a group of them, as Markdown."""
    context = click.Context(command, info_name=name)
    usage = " ".join(command.collect_usage_pieces(context))
    lines = ["", f"{'#' * level} {name}", "", f"```\n{name} {usage}\n```", "", plain(command.help or "")]
    rows = []
    for parameter in command.params:
        record = parameter.get_help_record(context) if isinstance(parameter, click.Option) else None
        if record is None and getattr(parameter, "help", None):
            record = (parameter.make_metavar(context), parameter.help)
        if record is not None and record[0] != "--help":
            rows.append(f"| `{record[0]}` | {plain(record[1])} |".replace("[default: ]", ""))
    if rows:
        lines += ["", "| option | meaning |", "|---|---|", *rows]
    for inner, one in getattr(command, "commands", {}).items():
        lines += command_lines(f"{name} {inner}", one, level + 1)
    return lines


def plain(text: str) -> str:
    """Return help as Markdown reads it literally."""
    return re.sub(r"([|*_<>])", r"\\\1", text)


def examples_page() -> str:
    """Return the files of examples/ as they are."""
    lines = ["# Examples", "", "The files in `examples/` of the repository."]
    for path in EXAMPLES:
        language = {"py": "python"}.get(path.suffix[1:], path.suffix[1:])
        lines += ["", f"## {path.name}", "", f"```{language}", path.read_text().rstrip(), "```"]
    return "\n".join(lines) + "\n"


def notebook_pages(notebook: Path) -> dict[str, str | bytes]:
    """Return a notebook as Markdown with the outputs it has, and its figures beside it."""
    from nbconvert import MarkdownExporter

    text, resources = MarkdownExporter().from_filename(str(notebook))
    name = notebook.stem
    pages: dict[str, str | bytes] = {}
    for file, data in resources["outputs"].items():
        pages[f"notebooks/{name}-{file}"] = data
        text = text.replace(f"]({file})", f"]({name}-{file})")
    text = re.sub(r"<style scoped>.*?</style>\n?", "", text, flags=re.DOTALL)
    note = f"*Made from `docs/notebooks/{notebook.name}`, which runs as it is.*"
    head, _, rest = text.lstrip().partition("\n")
    return pages | {f"notebooks/{name}.md": f"{head}\n\n{note}\n{rest}"}
