"""Text to ids and back: byte-level round trips, special tokens, streams, chat templates."""

import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from model_checkpoints import SMALL, random_weights, write_folder, write_gguf

from course.engine.loading.loader import load_model
from course.engine.loading.model_file import model_file
from course.engine.loading.tokenizer import Tokenizer, byte_alphabet, byte_tokenizer

HI = [{"role": "user", "content": "Hi"}]
BYTES = byte_tokenizer()


@pytest.fixture(scope="module")
def smollm2():
    if model_file() is None:
        pytest.skip("not run: the SmolLM2 file is not installed (make setup)")
    from course.engine.loading.weights_gguf import open_gguf

    return open_gguf(model_file())[2]


@given(st.text())
def test_tiny_ids_are_bytes(text):
    raw = [*text.replace("<|im_start|>", "").replace("<|im_end|>", "").encode()]
    text = bytes(raw).decode()
    assert BYTES.encode(text) == raw
    assert BYTES.decode(raw) == text


@given(st.lists(st.integers(0, 255)))
def test_tiny_decodes_any_bytes(ids):
    assert BYTES.decode(ids) == bytes(ids).decode("utf-8", errors="replace")


def test_special_tokens_are_one_id_and_hidden_by_default():
    assert BYTES.encode("a<|im_end|>b") == [97, 257, 98]
    assert BYTES.decode([97, 257, 98]) == "ab"
    assert BYTES.decode([97, 257, 98], skip_special_tokens=False) == "a<|im_end|>b"
    assert (BYTES.eos_token_id, BYTES.vocab_size) == (257, 258)
    assert BYTES.encode("") == []
    assert BYTES.decode([]) == ""


@pytest.mark.parametrize("bad", [-1, 258, 2**32, 2**70])
def test_ids_outside_the_vocabulary_are_refused(bad):
    with pytest.raises(ValueError, match=r"is not in 0 \.\. 257"):
        BYTES.decode([65, bad])
    with pytest.raises(ValueError, match=r"is not in 0 \.\. 257"):
        BYTES.stream_decoder().push(bad)


def test_what_is_no_text_is_refused():
    with pytest.raises(TypeError, match="not bytes"):
        BYTES.encode(b"abc")
    with pytest.raises(ValueError, match="not valid Unicode"):
        BYTES.encode("a\ud800")


# Streams


def streamed(tokenizer, ids, **kwargs):
    stream = tokenizer.stream_decoder(**kwargs)
    return [stream.push(i) for i in ids] + [stream.flush()]


def test_a_split_character_waits_for_its_last_byte():
    assert streamed(BYTES, "aé😀b".encode()) == ["a", "", "é", "", "", "", "😀", "b", ""]


def test_an_unfinished_character_comes_out_at_the_end():
    assert streamed(BYTES, [97, 0xF0, 0x9F]) == ["a", "", "", "\ufffd"]
    assert streamed(BYTES, []) == [""]


def test_bytes_that_are_no_text_do_not_hold_up_the_rest():
    assert streamed(BYTES, [0xFF, 97, 98]) == ["", "\ufffda", "b", ""]


def test_a_written_replacement_character_survives():
    assert "".join(streamed(BYTES, "a\ufffdb\ufffd".encode())) == "a\ufffdb\ufffd"


@given(st.lists(st.integers(0, 257)))
def test_pieces_join_to_the_whole(ids):
    pieces = streamed(BYTES, ids)
    assert "".join(pieces) == BYTES.decode(ids)
    shown = streamed(BYTES, ids, skip_special_tokens=False)
    assert "".join(shown) == BYTES.decode(ids, skip_special_tokens=False)


@given(st.text(min_size=1))
def test_valid_text_never_shows_a_replacement_on_the_way(text):
    pieces = streamed(BYTES, [*text.encode()])
    assert "".join(pieces) == text
    assert all("\ufffd" not in piece for piece in pieces) or "\ufffd" in text


def test_a_vocabulary_that_drops_the_first_space_keeps_the_others():
    """SentencePiece style: each word starts with a mark, and the text's first mark is dropped."""
    from tokenizers import Tokenizer as Backend
    from tokenizers import decoders, models, pre_tokenizers

    backend = Backend(models.WordLevel({"▁so": 0, "▁it": 1, "▁goes": 2}, unk_token="▁so"))
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.decoder = decoders.Metaspace()
    tokenizer = Tokenizer(backend)
    assert tokenizer.decode([0, 1, 2, 1]) == "so it goes it"
    assert streamed(tokenizer, [0, 1, 2, 1]) == ["so", " it", " goes", " it", ""]


# SmolLM2

# Bytes that its vocabulary lacks and that occur in valid UTF-8: characters with one are dropped.
UNKNOWN_BYTES = {0x04, 0x06, 0x13, 0x14, 0x16, 0x1D, 0xF1, 0xF2}


def known(text):
    return "".join(c for c in text if not UNKNOWN_BYTES & {*c.encode()})


@pytest.mark.model
def test_known_ids(smollm2):
    assert smollm2.encode("The capital of France is") == [504, 3575, 282, 4649, 314]
    assert smollm2.encode("<|im_start|>user\n") == [1, 4093, 198]
    assert (smollm2.eos_token_id, smollm2.bos_token_id) == (2, 1)
    assert smollm2.vocab_size == 49152


@pytest.mark.model
def test_digits_are_split_singly(smollm2):
    ids = smollm2.encode("In 1969: 3.14159")
    spelled = [smollm2.token(i) for i in ids]
    assert [t for t in spelled if any(c.isdigit() for c in t)] == [*"1969314159"]


@pytest.mark.model
@given(text=st.text())
def test_smollm2_round_trip(smollm2, text):
    text = known(text)
    assert smollm2.decode(smollm2.encode(text), skip_special_tokens=False) == text


@pytest.mark.model
@given(text=st.text(st.characters(min_codepoint=0x80), min_size=1))
def test_smollm2_streams_split_characters(smollm2, text):
    text = known(text)
    pieces = streamed(smollm2, smollm2.encode(text))
    assert "".join(pieces) == text
    assert all("\ufffd" not in piece for piece in pieces) or "\ufffd" in text


@pytest.mark.model
def test_bytes_that_smollm2_does_not_know_are_dropped(smollm2):
    spelled = {c for i in range(smollm2.vocab_size) for c in smollm2.token(i)}
    lacking = {b for b, c in enumerate(byte_alphabet()) if c not in spelled}
    never_in_utf8 = {0xC0, 0xC1, *range(0xF5, 0x100)}
    assert lacking - never_in_utf8 == UNKNOWN_BYTES
    assert smollm2.encode("a\x16b") == smollm2.encode("a") + smollm2.encode("b")


@pytest.mark.model
def test_smollm2_chat_template(smollm2):
    expected = (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face"
        "<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
    )
    assert smollm2.apply_chat_template(HI) == expected + "<|im_start|>assistant\n"
    assert smollm2.apply_chat_template(HI, add_generation_prompt=False) == expected
    own = [{"role": "system", "content": "Be brief."}, *HI]
    assert smollm2.apply_chat_template(own).startswith("<|im_start|>system\nBe brief.<|im_end|>")


# Chat templates of any model


def with_template(template):
    return Tokenizer(BYTES.backend, eos_token_ids=[257], bos_token_id=256, chat_template=template)


def test_tiny_chat_template():
    text = BYTES.apply_chat_template([*HI, {"role": "assistant", "content": "Ho"}, *HI])
    turns = ["user\nHi", "assistant\nHo", "user\nHi"]
    whole = "".join(f"<|im_start|>{turn}<|im_end|>\n" for turn in turns)
    assert text == whole + "<|im_start|>assistant\n"


@pytest.mark.parametrize(
    ("messages", "match"),
    [
        ([], "must be a list"),
        ("Hi", "must be a list"),
        ({"role": "user", "content": "Hi"}, "must be a list"),
        (None, "must be a list"),
        (7, "must be a list"),
        (["Hi"], "message 0 is 'Hi'"),
        ([*HI, {"role": "user"}], "message 1"),
        ([{"role": "user", "content": None}], "message 0"),
    ],
)
def test_bad_messages_are_refused(messages, match):
    with pytest.raises(ValueError, match=match):
        BYTES.apply_chat_template(messages)


def test_templates_that_refuse_or_do_not_parse():
    with pytest.raises(ValueError, match="brings no chat template"):
        with_template(None).apply_chat_template(HI)
    with pytest.raises(ValueError, match="roles must alternate"):
        with_template("{{ raise_exception('roles must alternate') }}").apply_chat_template(HI)
    with pytest.raises(ValueError, match="chat template"):
        with_template("{% for %}").apply_chat_template(HI)
    with pytest.raises(ValueError, match="chat template"):
        with_template("{{ 1 / 0 }}").apply_chat_template(HI)


def test_templates_run_in_a_sandbox():
    spy = "{{ ''.__class__.__mro__[1].__subclasses__() }}"
    with pytest.raises(ValueError, match="unsafe"):
        with_template(spy).apply_chat_template(HI)


def test_without_jinja2_the_error_says_so(monkeypatch):
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(ModuleNotFoundError, match="pip install jinja2"):
        BYTES.apply_chat_template(HI)


def test_the_first_token_does_not_come_twice():
    tokenizer = Tokenizer(BYTES.backend, bos_token_id=256, add_bos=True)
    assert tokenizer.encode("a") == [256, 97]
    assert tokenizer.encode("<|im_start|>a") == [256, 97]


# Tokenizers that come with checkpoints


def test_gguf_tokenizer_merges_and_special_tokens(tmp_path):
    write_gguf(tmp_path / "m.gguf", SMALL, random_weights(SMALL))
    _, tokenizer = load_model(tmp_path / "m.gguf", device="cpu")
    assert tokenizer.encode("abb<|b|>") == [259, 98, 257]
    assert tokenizer.eos_token_id == 257
    with pytest.raises(ValueError, match="no chat template"):
        tokenizer.apply_chat_template(HI)


def test_folder_tokenizer_takes_its_ends_and_template_from_the_files_beside_it(tmp_path):
    folder = write_folder(tmp_path / "m", SMALL, random_weights(SMALL))
    assert load_model(folder, device="cpu")[1].eos_token_ids == (257,)
    (folder / "generation_config.json").write_text('{"eos_token_id": [257, 10]}')
    (folder / "tokenizer_config.json").write_text('{"chat_template": "A{{ messages[0].content }}"}')
    _, tokenizer = load_model(folder, device="cpu")
    assert (tokenizer.eos_token_id, tokenizer.eos_token_ids) == (257, (257, 10))
    assert tokenizer.apply_chat_template(HI) == "AHi"
    (folder / "chat_template.jinja").write_text("B{{ eos_token }}")
    assert load_model(folder, device="cpu")[1].apply_chat_template(HI) == "B<|im_end|>"


def test_rows_without_a_token_have_no_text(tmp_path):
    folder = write_folder(tmp_path / "m", SMALL, random_weights(SMALL))  # 260 rows, 258 tokens
    _, tokenizer = load_model(folder, device="cpu")
    assert tokenizer.vocab_size == 260
    assert tokenizer.decode([65, 258, 259, 66]) == "AB"
    assert streamed(tokenizer, [65, 258, 66]) == ["A", "", "B", ""]
