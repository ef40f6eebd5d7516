"""The Flower app that `signfade deploy` submits, as files."""

from __future__ import annotations

import json
from pathlib import Path

from signfade import __version__
from signfade.experiments.toml import to_toml
from signfade.integrations.flower.exchange import Patience
from signfade.settings import RunSettings

__all__ = ["write_app"]

_PACKAGE = "signfade_deployed"


def write_app(
    folder: Path, settings: RunSettings, run: Path, patience: Patience, *, keys: bool = True
) -> Path:
    """Write the Flower app that is submitted: two imports, and the settings.

    Args:
        folder: Of the app.
        settings: All of the run.
        run: The run folder on the server's machine.
        patience: How long a round waits for its devices.
        keys: Whether SuperNodes have keys that they keep when they are started again.
    """
    code = folder / _PACKAGE
    code.mkdir(parents=True, exist_ok=True)
    (code / "__init__.py").write_text('"""A run of signfade on Flower."""\n')
    for kind in ("client", "server"):
        text = f"from signfade.integrations.flower.deployed import {kind}_app as app\n\n__all__ = ['app']\n"
        (code / f"{kind}_app.py").write_text(text)
    own = to_toml(settings.model_copy(update={"variants": {}}))
    (folder / "pyproject.toml").write_text(
        f"""[project]
name = "signfade-deployed"
version = "{__version__}"
description = "A run of signfade"
license = "Apache-2.0"
dependencies = []

[tool.hatch.build.targets.wheel]
packages = ["."]

[tool.flwr.app]
publisher = "signfade"

[tool.flwr.app.components]
serverapp = "{_PACKAGE}.server_app:app"
clientapp = "{_PACKAGE}.client_app:app"

[tool.flwr.app.config]
folder = {_string(str(run))}
timeout = {patience.timeout!r}
quorum = {patience.quorum!r}
deadline = {-1.0 if patience.deadline is None else patience.deadline!r}
remember-keys = {str(keys).lower()}
settings = {_string(own)}
"""
    )
    return folder


def _string(text: str) -> str:
    """Return a text as TOML; JSON's strings are TOML's."""
    return json.dumps(text, ensure_ascii=False)
