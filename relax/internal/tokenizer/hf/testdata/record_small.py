"""Records small.json: tiny tokenizers, and what the Python package makes of them.

    python -m venv v && v/bin/pip install tokenizers==0.22.2
    v/bin/python record_small.py > small.json

An inner text is encoded behind the added token <|sep|>, whose id is then left out. For a case
with "control" Python loads the file with those tokens special, for one with "added" it adds them
as transformers does; the Go test gives both as options instead.
"""

import copy
import json
import random

from tokenizers import AddedToken, Tokenizer

SEP = "<|sep|>"
FLAGS = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
WORDS = ["a", "b", "c", "d", "ab", "cd", "abcd", "é", "你", "\0", "1", "x", "."]
BYTES = [f"<0x{n:02X}>" for n in range(256)]


def added(content, special=False, **flags):
    return {"id": 0, "content": content, "special": special, **FLAGS, **flags}


def file(model, tokens=(), **parts):
    tokens = [added(SEP), *copy.deepcopy(list(tokens))]
    known = (
        model["vocab"]
        if isinstance(model["vocab"], dict)
        else {p: i for i, (p, _) in enumerate(model["vocab"])}
    )
    fresh = 0
    for token in tokens:
        token["id"] = known.get(token["content"], len(known) + fresh)
        fresh += token["content"] not in known
    empty = dict.fromkeys(
        ["truncation", "padding", "normalizer", "pre_tokenizer", "post_processor", "decoder"]
    )
    return {"version": "1.0", **empty, "added_tokens": tokens, "model": model, **parts}


def piece_bpe():
    words = ["<unk>", "<s>", "</s>", *BYTES, "▁", "▁▁", "▁a", "▁ab", "ab", "cd", "abcd", *"abcdx1."]
    merges = ["▁ ▁", "▁ a", "a b", "▁ ab", "c d", "ab cd"]
    vocab = {word: n for n, word in enumerate(words)}
    return {
        "type": "BPE",
        "vocab": vocab,
        "merges": merges,
        "unk_token": "<unk>",
        "byte_fallback": True,
        "fuse_unk": True,
    }


def byte_bpe():
    letters = [n if 33 <= n <= 126 or 161 <= n <= 172 or n >= 174 else None for n in range(256)]
    spare = iter(range(256, 512))
    alphabet = [chr(next(spare) if n is None else n) for n in letters]
    vocab = {word: n for n, word in enumerate([*alphabet, "ab", "Ġa", "Ġab"])}
    return {"type": "BPE", "vocab": vocab, "merges": ["a b", "Ġ a", "Ġa b"]}


def unigram():
    words = ["<unk>", "<s>", "▁", "▁a", "ab", "▁ab", "cd", *"abcdx1.", *BYTES]
    scores = [[word, 0.0 if n < 2 else -1.0 - n / 8] for n, word in enumerate(words)]
    return {"type": "Unigram", "unk_id": 0, "vocab": scores, "byte_fallback": True}


def metaspace(scheme, split=True):
    return {"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": split}


def sequence(name, *steps):
    return {"type": "Sequence", name: list(steps)}


LLAMA_DECODER = sequence(
    "decoders",
    {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
    {"type": "ByteFallback"},
    {"type": "Fuse"},
    {"type": "Strip", "content": " ", "start": 1, "stop": 0},
)
BYTE_LEVEL = {
    "type": "ByteLevel",
    "add_prefix_space": False,
    "trim_offsets": True,
    "use_regex": True,
}
SPECIALS = [added("<s>", special=True), added("</s>", special=True)]
TURNS = [added("[INST]"), added("[/INST]"), added("<think>")]
FLAGGED = [
    added("<l>", lstrip=True),
    added("<r>", rstrip=True),
    added("<w>", single_word=True),
    added("word", single_word=True),
    added("<N>", normalized=True),
    added("<S>", special=True, normalized=True, lstrip=True, rstrip=True),
]


def cases():
    for scheme in ["first", "always", "never"]:
        for split in [True, False]:
            parts = {"pre_tokenizer": metaspace(scheme, split), "decoder": LLAMA_DECODER}
            yield f"bpe {scheme} split={split}", file(piece_bpe(), SPECIALS + TURNS, **parts)
        parts = {"pre_tokenizer": metaspace(scheme), "decoder": metaspace(scheme)}
        yield f"unigram {scheme}", file(unigram(), [added("<s>", special=True), *TURNS], **parts)
    digits = {"type": "Digits", "individual_digits": True}
    steps = sequence("pretokenizers", digits, sequence("pretokenizers", metaspace("first")))
    yield (
        "first in a sequence",
        file(piece_bpe(), TURNS, pre_tokenizer=steps, decoder=LLAMA_DECODER),
    )
    strip = {"type": "Strip", "strip_left": True, "strip_right": False}
    yield (
        "first behind a normalizer",
        file(
            piece_bpe(),
            TURNS,
            normalizer=strip,
            pre_tokenizer=metaspace("first"),
            decoder=LLAMA_DECODER,
        ),
    )
    legacy = sequence(
        "normalizers",
        {"type": "Prepend", "prepend": "▁"},
        {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
    )
    yield (
        "prepend normalizer",
        file(piece_bpe(), SPECIALS + TURNS, normalizer=legacy, decoder=LLAMA_DECODER),
    )
    lower = {"type": "Lowercase"}
    yield (
        "flags",
        file(byte_bpe(), FLAGGED, normalizer=lower, pre_tokenizer=BYTE_LEVEL, decoder=BYTE_LEVEL),
    )
    yield (
        "flags before metaspace",
        file(piece_bpe(), FLAGGED, pre_tokenizer=metaspace("first"), decoder=LLAMA_DECODER),
    )
    yield (
        "byte level with a prefix space",
        file(
            byte_bpe(),
            TURNS,
            pre_tokenizer={**BYTE_LEVEL, "add_prefix_space": True},
            decoder=BYTE_LEVEL,
        ),
    )
    yield (
        "letters that stand for bytes",
        file(
            byte_bpe(),
            [added("é"), added("Ġ"), added("né▁")],
            pre_tokenizer=BYTE_LEVEL,
            decoder=BYTE_LEVEL,
        ),
    )
    yield "no decoder", file(piece_bpe(), TURNS, pre_tokenizer=metaspace("first"))
    yield (
        "word pieces",
        file(
            {
                "type": "WordPiece",
                "vocab": {"[UNK]": 0, "a": 1, "##b": 2, "cd": 3, ".": 4},
                "unk_token": "[UNK]",
                "continuing_subword_prefix": "##",
                "max_input_chars_per_word": 9,
            },
            TURNS,
            pre_tokenizer={"type": "BertPreTokenizer"},
            decoder={"type": "WordPiece", "prefix": "##", "cleanup": True},
        ),
    )


def texts(tokens):
    spell = [t["content"] for t in tokens]
    yield from [
        "",
        " ",
        "  ",
        "a",
        " a",
        "  a",
        "▁a",
        "ab",
        "ab cd",
        "ab  cd ",
        "\0",
        "\0 a",
        "\n a",
        "你好",
        "é ab",
        "1 12",
        "abcd.",
    ]
    for token in spell:
        yield from [
            token,
            token + "a",
            "a" + token,
            f" {token} ",
            f"a {token} b",
            f"  {token}  {token}ab",
            token.upper(),
            token.lower() + " x",
        ]
    yield from [
        "sword word words word.",
        "a<w>b <w> b",
        "A AB <n> <N> <s> <S>",
        "".join(spell),
        " ".join(spell),
    ]
    r = random.Random(7)
    for _ in range(25):
        yield "".join(r.choice([*WORDS, *spell, " ", " ", "  "]) for _ in range(r.randint(2, 9)))


def record(name, content, control=(), more=()):
    loaded = copy.deepcopy(content)
    for token in loaded["added_tokens"]:
        token["special"] = token["special"] or token["content"] in control
    tokenizer = Tokenizer.from_str(json.dumps(loaded))
    for token in more:
        made = AddedToken(**{k: v for k, v in token.items() if k != "id"})
        (tokenizer.add_special_tokens if token["special"] else tokenizer.add_tokens)([made])
    tokenizer.encode_special_tokens = True
    sep = tokenizer.token_to_id(SEP)

    def encode(text):
        return tokenizer.encode(text, add_special_tokens=False).ids

    listed = []
    for text in dict.fromkeys(texts(content["added_tokens"] + list(more))):
        ids, inner = encode(text), encode(SEP + text)
        assert inner[0] == sep
        listed.append([text, ids, inner[1:], tokenizer.decode(ids, skip_special_tokens=False)])
    r = random.Random(8)
    size = tokenizer.get_vocab_size()
    drawn = [[r.randrange(size) for _ in range(r.randint(1, 9))] for _ in range(60)]
    decodes = [[ids, tokenizer.decode(ids, skip_special_tokens=False)] for ids in drawn]
    return {
        "name": name,
        "file": content,
        "control": list(control),
        "added": list(more),
        "texts": listed,
        "decodes": decodes,
    }


def main():
    recorded = [record(name, content) for name, content in cases()]
    turns = file(
        piece_bpe(), SPECIALS + TURNS, pre_tokenizer=metaspace("first"), decoder=LLAMA_DECODER
    )
    recorded.append(record("controls", turns, control=["[INST]", "[/INST]"]))
    recorded.append(
        record(
            "normalized control",
            file(byte_bpe(), FLAGGED, normalizer={"type": "Lowercase"}, decoder=BYTE_LEVEL),
            control=["<N>", "word"],
        )
    )
    ids = {token["content"]: token["id"] for token in turns["added_tokens"]}
    last = max(ids.values())
    more = [
        {**added("<think>", lstrip=True, rstrip=True), "id": ids["<think>"]},
        {**added("[INST]", special=True), "id": ids["[INST]"]},
        {**added("<new>", rstrip=True), "id": last + 1},
        {**added("<end>", special=True), "id": last + 2},
    ]
    recorded.append(record("entries of the configuration", turns, more=more))
    rows = ",\n".join(
        json.dumps(case, ensure_ascii=False, separators=(",", ":")) for case in recorded
    )
    print(f"[\n{rows}\n]")


if __name__ == "__main__":
    main()
