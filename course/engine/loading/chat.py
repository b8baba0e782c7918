"""A conversation as a prompt, through the chat template that a model's file brings along."""

from collections.abc import Sequence
from datetime import datetime

# The format of SmolLM2 and many others, for models that bring no template of their own.
CHATML = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def render(template: str | None, messages: Sequence[dict], **names) -> str:
    """The text of `messages`, each {"role": ..., "content": ...}, in a model's own format.

    The template is a program from a downloaded file, so it runs in jinja2's sandbox. Raises
    ValueError for a model without a template, for bad messages and for what a template refuses.
    """
    if not template:
        raise ValueError("this model brings no chat template: pass a prompt as plain text instead")
    if not isinstance(messages, list | tuple) or not messages:
        raise ValueError(
            'messages must be a list like [{"role": "user", "content": "Hi"}], with one or more'
        )
    for i, message in enumerate(messages):
        if not isinstance(message, dict) or not all(
            isinstance(message.get(key), str) for key in ("role", "content")
        ):
            raise ValueError(
                f'message {i} is {message!r}; it must be {{"role": "user", "content": "some text"}}'
            )
    try:
        from jinja2 import TemplateError
        from jinja2.sandbox import ImmutableSandboxedEnvironment
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "chat templates need jinja2 (pip install jinja2); plain prompts work without it"
        ) from error

    def refuse(reason):
        raise TemplateError(reason)

    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    environment.globals |= {
        "raise_exception": refuse,
        "strftime_now": lambda form: datetime.now().strftime(form),
    }
    try:
        return environment.from_string(template).render(messages=list(messages), **names)
    except Exception as error:  # whatever the template's own code raises
        raise ValueError(f"the model's chat template refused the messages: {error}") from error
