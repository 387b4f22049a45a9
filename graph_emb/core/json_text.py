"""JSON text of numbers as numpy and torch have them."""

from __future__ import annotations

import json
import math
from typing import Any


def json_text(content: Any) -> str:
    """JSON with null for the numbers that JSON lacks (NaN, infinities); numpy numbers and arrays are fine."""
    return json.dumps(plain(content), indent=2, allow_nan=False) + "\n"


def plain(value: Any) -> Any:
    """A value as JSON knows it, see ``json_text``."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if hasattr(value, "tolist"):  # numpy and torch numbers and arrays
        return plain(value.tolist())
    return value
