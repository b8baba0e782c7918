"""The tokenizer of a Hugging Face folder: tokenizer.json and the settings beside it."""

import json
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as Backend

from course.engine.loading.model_file import DamagedModelFile, ModelNotFound
from course.engine.loading.tokenizer import Tokenizer


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object; ModelNotFound without the file, DamagedModelFile when it cannot be read."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ModelNotFound(
            f"{path.parent} has no {path.name}, so it is no whole Hugging Face model folder"
        ) from None
    except (ValueError, OSError) as error:
        raise DamagedModelFile(f"{path} cannot be read: {error}. Get the file again") from None
    if not isinstance(content, dict):
        raise DamagedModelFile(f"{path} holds {type(content).__name__}, not an object")
    return content


def open_tokenizer(folder: Path, model_settings: dict[str, Any]) -> Tokenizer:
    """`model_settings` is the content of config.json, the last resort for special tokens."""
    path = folder / "tokenizer.json"
    read_json(path)
    try:
        backend = Backend.from_file(str(path))
    except Exception as error:  # the library raises plain Exception
        raise DamagedModelFile(f"{path} cannot be read: {error}. Get the file again") from None

    def optional(name: str) -> dict[str, Any]:
        return read_json(folder / name) if (folder / name).exists() else {}

    settings = optional("tokenizer_config.json")
    # What the authors generate with comes first; chat models often end at another token there.
    places = [optional("generation_config.json"), model_settings, settings]

    def token_ids(which: str) -> list[int]:
        for place in places:
            found = place.get(f"{which}_token_id")
            if found is not None:
                return found if isinstance(found, list) else [found]
        spelled = settings.get(f"{which}_token")
        spelled = spelled.get("content") if isinstance(spelled, dict) else spelled
        found = backend.token_to_id(spelled) if spelled else None
        return [] if found is None else [found]

    bos = token_ids("bos")
    return Tokenizer(
        backend,
        eos_token_ids=token_ids("eos"),
        bos_token_id=bos[0] if bos else None,
        chat_template=_chat_template(folder, settings),
    )


def _chat_template(folder: Path, settings: dict[str, Any]) -> str | None:
    if (path := folder / "chat_template.jinja").exists():
        return path.read_text(encoding="utf-8")
    template = settings.get("chat_template")
    if isinstance(template, list):  # several, by name
        template = next((t["template"] for t in template if t.get("name") == "default"), None)
    return template
