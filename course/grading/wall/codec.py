"""Values on their way through the wall.

Numbers, words and tuples go by value. Lists, dicts and arrays are had by both sides: they keep
their identity, and what one side changed in them goes along with its next message. Records of the
course go by name and fields, anything else as a reference, whose calls come back.
"""

from __future__ import annotations

import base64
import dataclasses
import enum
import math
import sys
import types
from array import array
from collections import deque
from typing import Any

from . import arrays
from .remote import Remote
from .shared import Shared, Sharing
from .wire import Gone, Uncrossable

MAX_DEPTH = 60


def is_course(kind: type) -> bool:
    """Whether something is the course's own; what a probe puts together for itself counts, too."""
    named = str(getattr(kind, "__module__", "")).startswith("course.")
    return named or kind is types.SimpleNamespace


def name_of(kind: type) -> str:
    return f"{kind.__module__}:{kind.__qualname__}"


class Codec(Sharing):
    """Encodes and decodes for one end of a connection.

    guarded: the other end is not to be trusted. find_class: (module, name) -> a class of the
    course, or None.
    """

    def __init__(self, guarded: bool, find_class: Any = None):
        self.guarded = guarded
        self.find_class = find_class or (lambda module, name: None)
        self.reset()

    def reset(self) -> None:
        """Forget what crossed: a new case begins."""
        self.mine: dict[int, Any] = {}
        self.theirs: dict[int, Remote] = {}
        self.shared: dict[int, Shared] = {}
        self.numbers: dict[int, int] = {}  # id(value) -> its number in `mine` or `shared`
        self.next = 1 if self.guarded else 2

    def _number(self) -> int:
        self.next += 2
        return self.next

    def ask(self, verb: str, **what: Any) -> Any:
        raise NotImplementedError

    def known_class(self, told: str) -> Any:
        module, _, name = told.partition(":")
        if module == "builtins":
            return getattr(sys.modules["builtins"], name, None)
        return self.find_class(module, name) if module.startswith("course.") else None

    # ---- Values ---------------------------------------------------------------------------------

    def encode(self, value: Any, depth: int = 0) -> Any:
        kind = type(value)
        if value is None or kind in (bool, int, str):
            return value
        if kind is float:
            return value if math.isfinite(value) else {"f": str(value)}
        if depth > MAX_DEPTH:
            raise Uncrossable(f"a value nested more than {MAX_DEPTH} deep")
        if isinstance(value, Remote):
            return {"yours": object.__getattribute__(value, "_number")}
        if kind is tuple:
            return {"t": [self.encode(item, depth + 1) for item in value]}
        if kind in (set, frozenset):
            return {kind.__name__: [self.encode(item, depth + 1) for item in value]}
        if kind is bytes:
            return {"b": base64.b64encode(value).decode()}
        if kind is array:
            data = base64.b64encode(value.tobytes()).decode()
            return {"array": value.typecode, "data": data}
        if kind is range:
            return {"r": [value.start, value.stop, value.step]}
        if kind is slice:
            return {"s": [self.encode(v, depth + 1) for v in (value.start, value.stop, value.step)]}
        if kind in (list, dict, deque) or arrays.is_array(value):
            number = self.numbers.get(id(value))
            if number is not None:
                return {"same": number}
            number = self._number()
            self._share(number, value)
            return {"n": number, kind.__name__: self._content(value, depth)}
        if (named := self._by_name(value)) is not None:
            return named
        return self._reference(value)

    def _by_name(self, value: Any) -> Any:
        """Types, settings and records that both sides have under one name."""
        kind = type(value)
        numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
        if numpy is not None:
            if isinstance(value, numpy.generic) and kind.__module__ == "numpy":
                data = base64.b64encode(value.tobytes()).decode()
                return {"scalar": str(value.dtype), "data": data}
            if isinstance(value, numpy.dtype):
                return {"dtype": str(value)}
        if torch is not None:
            if kind is torch.dtype:
                return {"torch": str(value).removeprefix("torch.")}
            if kind is torch.device:
                return {"device": str(value)}
        if isinstance(value, type) and is_course(value):
            return {"class": name_of(value)}
        if isinstance(value, enum.Enum) and is_course(kind):
            return {"member": value.name, "of": name_of(kind)}
        record = is_course(kind) and dataclasses.is_dataclass(value)
        if record and kind.__dataclass_params__.frozen:  # type: ignore[attr-defined]
            names = [f.name for f in dataclasses.fields(value)]  # type: ignore[arg-type]
            fields = {name: getattr(value, name) for name in names}
            told = {name: self.encode(inside, 1) for name, inside in fields.items()}
            return {"record": told, "of": name_of(kind)}
        return None

    def _reference(self, value: Any) -> dict:
        function = isinstance(
            value, types.FunctionType | types.MethodType | types.BuiltinFunctionType
        )
        kind = type(value)
        iterator = hasattr(kind, "__next__") and kind.__module__ in ("builtins", "itertools")
        if self.guarded and not (function or is_course(kind) or iterator):
            raise Uncrossable(f"{type(value).__name__} cannot be handed to a worker")
        number = self.numbers.get(id(value))
        if number is None:
            number = self._number()
            self.mine[number], self.numbers[id(value)] = value, number
        try:
            text = repr(value)[:200]
        except Exception as error:
            text = f"its repr raises {type(error).__name__}"
        return {"ref": number, "kind": name_of(type(value)), "text": text}

    def decode(self, node: Any, depth: int = 0) -> Any:
        """A value of the other side. Gone: it is none."""
        try:
            return self._decode(node, depth)
        except Exception as error:  # of whatever kind: NumPy and PyTorch raise many
            raise Gone(
                "broken", f"it sent a value that is none ({type(error).__name__})"
            ) from error

    def _decode(self, node: Any, depth: int = 0) -> Any:
        if type(node) is not dict:
            if node is None or type(node) in (bool, int, float, str):
                return node
            raise ValueError("no value")
        if depth > MAX_DEPTH + 2:
            raise ValueError("too deep")
        match node:
            case {"f": text}:
                return {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}[text]
            case {"t": items}:
                return tuple(self._decode(item, depth + 1) for item in items)
            case {"set": items}:
                return {self._decode(item, depth + 1) for item in items}
            case {"frozenset": items}:
                return frozenset(self._decode(item, depth + 1) for item in items)
            case {"b": text}:
                return base64.b64decode(text)
            case {"array": str(code), "data": str(data)}:
                return array(code, base64.b64decode(data))
            case {"r": [int(start), int(stop), int(step)]}:
                return range(start, stop, step)
            case {"s": [start, stop, step]}:
                parts = (self._decode(part, depth + 1) for part in (start, stop, step))
                return slice(*parts)
            case {"same": int(number)}:
                return self.shared[number].value
            case {"yours": int(number)}:
                return self.mine[number]
            case {"n": int(number), **content}:
                return self._received(number, content, depth)
            case {"ref": int(number), "kind": str(kind), "text": str(text)}:
                return self._remote(number, kind[:100], text[:200])
        return self._named(node)

    def _named(self, node: dict) -> Any:
        match node:
            case {"scalar": str(name), "data": str(data)}:
                import numpy

                return numpy.frombuffer(base64.b64decode(data), arrays.dtype(name))[0]
            case {"dtype": str(name)}:
                return arrays.dtype(name)
            case {"torch": str(name)}:
                return arrays.torch_dtype(name)
            case {"device": str(_)}:
                import torch

                return torch.device("cpu")
            case {"class": str(told)}:
                return self._known(told)
            case {"member": str(name), "of": str(told)}:
                found = self._known(told)
                if not issubclass(found, enum.Enum):
                    raise ValueError("no member")
                return found[name]
            case {"record": dict(fields), "of": str(told)}:
                found = self._known(told)
                if not (dataclasses.is_dataclass(found) and isinstance(found, type)):
                    raise ValueError("no record")
                return found(**{name: self._decode(value, 1) for name, value in fields.items()})
        raise ValueError("no value")

    def _known(self, told: str) -> Any:
        found = self.known_class(told)
        if not (isinstance(found, type) and is_course(found)):
            raise ValueError(f"there is no {told}")
        return found

    def _remote(self, number: int, kind: str, text: str) -> Remote:
        """The one stand-in for an object of the other side; its type is called like its own."""
        if number not in self.theirs:
            module, _, name = kind.partition(":")
            made = type(name or "object", (Remote,), {"__module__": module})
            self.theirs[number] = made(self, number, text)
        return self.theirs[number]
