"""Text from files and command lines that is to be printed: a terminal obeys some characters."""

from __future__ import annotations

import unicodedata

__all__ = ["has_controls", "printable"]

_DIRECTION = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")  # turn the text around them


def _is_control(character: str) -> bool:
    return unicodedata.category(character) in ("Cc", "Cs", "Zl", "Zp") or character in _DIRECTION


def has_controls(text: str) -> bool:
    """Return whether a text holds line breaks, escape codes or anything else that is no character to be read.

    Example:
        >>> has_controls("SBFL, 8 dB"), has_controls("\\x1b[31mred")
        (False, True)
    """
    return not text.isprintable() and any(map(_is_control, text))


def printable(text: str) -> str:
    """Return a text with every control character written as its escape.

    Example:
        >>> printable("a\\x1b[2Jb\\n")
        'a\\\\x1b[2Jb\\\\n'
    """
    if text.isprintable():
        return text
    return "".join(c.encode("unicode_escape").decode() if _is_control(c) else c for c in text)
