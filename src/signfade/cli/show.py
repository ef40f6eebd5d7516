"""Numbers as a person wants to read them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from rich import box
from rich.table import Table

if TYPE_CHECKING:
    from signfade.experiments.theory_table import Dial

__all__ = ["distance_tables", "error_tables", "read_dial", "read_snrs"]

_MOST = 1000  # SNRs in one table


def read_snrs(text: str) -> NDArray[np.float64]:
    """Return the SNRs that a text names: `A,B,C` or `FIRST:LAST:STEP`, the last included.

    Example:
        >>> read_snrs("-5, 0,5.5").tolist(), read_snrs("0:10:5").tolist()
        ([-5.0, 0.0, 5.5], [0.0, 5.0, 10.0])
    """
    wrong = ValueError(f"--snr-db must be numbers such as -10,0,10 or a range such as -10:20:5; got {text!r}")
    try:
        if ":" not in text:
            values = np.array([float(part) for part in text.split(",")])
        else:
            first, last, step = (float(part) for part in text.split(":"))
            count = np.floor((last - first) / step + 1e-9) + 1 if step else 0
            if not 1 <= count <= _MOST:
                raise wrong
            values = first + step * np.arange(count)
    except ValueError:
        raise wrong from None
    with np.errstate(over="ignore"):
        if not np.isfinite(values).all() or not np.isfinite(10 ** (values / 10)).all():
            raise wrong
    return values


def read_dial(
    rates: str | None,
    correlation: float | None,
    devices: int | None,
    private: bool | None,
    papr_db: str | None,
    fading: str,
    family: str,
) -> Dial | None:
    """Return what the options of `signfade theory` say about the rate dial; None where they do not.

    Example:
        >>> read_dial("0.1,analog", None, None, True, "none", "none", "gaussian")
        Dial(bits_per_weight=(0.1, 'analog'), devices=20, correlation=0.0, private=True, papr_db=None)
    """
    if rates is None and correlation is None and devices is None and private is None and papr_db is None:
        return None
    from signfade.experiments.theory_table import Dial

    if fading != "none":
        raise ValueError(
            f"--fading must be none with the rate dial; got {fading!r}: signfade link averages over fading"
        )
    if family != "gaussian":
        raise ValueError(f"--family must be gaussian with the rate dial, which rotates; got {family!r}")
    found: list[float | str] = []
    for word in (rates or "1,2,4,analog").split(","):
        try:
            found.append("analog" if word.strip() == "analog" else float(word))
        except ValueError:
            raise ValueError(f"--bits-per-weight must be such as 0.1,1,2,analog; got {rates!r}") from None
    try:
        peak = None if papr_db == "none" else 8.0 if papr_db is None else float(papr_db)
    except ValueError:
        raise ValueError(f"--papr-db must be a number of dB or none; got {papr_db!r}") from None
    return Dial(tuple(found), devices or 20, correlation or 0.0, private, peak)


def distance_tables(
    snr_db: NDArray[np.float64], distances: Mapping[str, NDArray[np.float64]], width: int
) -> list[Table]:
    """Return the tables of `error_tables` with numbers of dB."""
    return error_tables(snr_db, distances, width, lambda db: f"{db:.1f}".replace("-0.0", "0.0"))


def error_tables(
    snr_db: NDArray[np.float64],
    errors: Mapping[str, NDArray[np.float64]],
    width: int,
    write: Callable[[float], str] | None = None,
) -> list[Table]:
    """Return tables with one row per rule and one column per SNR, as many as `width` characters need.

    Example:
        >>> ten = np.arange(10.0)
        >>> [len(table.columns) for table in error_tables(ten, {"sbfl": ten}, width=80)]
        [8, 4]
    """
    head = "rule, SNR in dB:"
    names = max(map(len, [head, *errors])) + 2
    columns = max(1, (width - names) // 8)  # 0.1234 and two blanks
    tables = []
    for first in range(0, len(snr_db), columns):
        part = slice(first, first + columns)
        table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
        table.add_column(head, no_wrap=True)
        for snr in snr_db[part]:
            table.add_column(f"{snr:g}", justify="right", no_wrap=True, min_width=6)
        for label, row in errors.items():
            table.add_row(label, *map(write or _error, row[part]))
        tables.append(table)
    return tables


def _error(value: float) -> str:
    if 0 < value < 5e-4:  # limits can be that small
        return f"{value:.0e}"
    return "inf" if np.isinf(value) else f"{value:.4f}" if value < 10 else f"{value:.4g}"
