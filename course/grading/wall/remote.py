"""Stand-ins for objects of the other side."""

from __future__ import annotations

from typing import Any


class Remote:
    """An object of the other side. What is asked of it is asked there."""

    def __init__(self, peer: Any, number: int, text: str):
        object.__setattr__(self, "_peer", peer)
        object.__setattr__(self, "_number", number)
        object.__setattr__(self, "_text", text)
        object.__setattr__(self, "_methods", {})

    def _ask(self, verb: str, *arguments: Any, **names: Any) -> Any:
        peer: Any = object.__getattribute__(self, "_peer")
        return peer.ask(
            verb,
            on=object.__getattribute__(self, "_number"),
            **{"with": [peer.encode(a) for a in arguments]},
            names={name: peer.encode(value) for name, value in names.items()},
        )

    def __call__(self, *arguments: Any, **names: Any) -> Any:
        return self._ask("call", *arguments, **names)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        methods = object.__getattribute__(self, "_methods")
        if name not in methods:
            found = self._ask("get", name)
            if type(found).__qualname__ != "method":
                return found
            methods[name] = found
        return methods[name]

    def __setattr__(self, name: str, value: Any) -> None:
        self._ask("set", name, value)

    def __getitem__(self, key: Any) -> Any:
        return self._ask("item", key)

    def __setitem__(self, key: Any, value: Any) -> None:
        self._ask("put", key, value)

    def __len__(self) -> int:
        return self._ask("len")

    def __iter__(self) -> Any:
        return self._ask("iter")

    def __reversed__(self) -> Any:
        return self._ask("reversed")

    def __next__(self) -> Any:
        return self._ask("next")

    def __contains__(self, item: Any) -> bool:
        return self._ask("in", item)

    def __bool__(self) -> bool:
        return self._ask("bool")

    def __repr__(self) -> str:
        return object.__getattribute__(self, "_text")
