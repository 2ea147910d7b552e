#!/usr/bin/env python3
"""Makes the checkpoint directories of this folder, and the file that tests compare with.

    python make_tinychat.py checkpoint   writes tinychat/ and notemplate/
    python make_tinychat.py golden       writes tinychat_golden.json from tinychat/

`tinychat/` looks like a small Qwen checkpoint without weights: a byte-level BPE vocabulary,
the control tokens of ChatML, and a chat template with tools and reasoning. `notemplate/` is a
tokenizer that loads, of a checkpoint that has no template. Everything is made from the text
in this file and a fixed seed, so two runs give the same bytes. Needs the PyPI package
`tokenizers`.
"""

# ruff: noqa: RUF001  (the text is meant to be in several scripts)
from __future__ import annotations

import argparse
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

HERE = Path(__file__).resolve().parent
TINYCHAT = HERE / "tinychat"
NOTEMPLATE = HERE / "notemplate"
GOLDEN = HERE / "tinychat_golden.json"

SEED = 20
VOCAB_SIZE = 2048  # added tokens included

END_OF_TEXT = "<|endoftext|>"
SPECIAL = [END_OF_TEXT, "<|im_start|>", "<|im_end|>"]
PLAIN_ADDED = [
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
    "<think>",
    "</think>",
]

# How Qwen2 vocabularies cut text before merging: one digit a piece, letters with the one
# sign before them, runs of signs with the newlines after them, runs of white space.
SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

# ChatML as Qwen3 models speak it: the wording of the tools block, the tags and the line breaks
# are the protocol that tests compare with, the program is ours.
CHAT_TEMPLATE = r"""
{#- An opening system turn holds the system prompt and the tools. -#}
{%- set has_prompt = messages[0].role == 'system' %}
{%- if has_prompt or tools %}
    {{- '<|im_start|>system\n' }}
    {%- if has_prompt %}
        {{- messages[0].content or '' }}
    {%- endif %}
    {%- if tools %}
        {%- if has_prompt %}
            {{- '\n\n' }}
        {%- endif %}
        {{- '# Tools\n\nYou may call one or more functions to assist with the user query.\n\n' }}
        {{- 'You are provided with function signatures within <tools></tools> XML tags:\n' }}
        {{- '<tools>\n' }}
        {%- for tool in tools %}
            {{- tool | tojson }}
            {{- '\n' }}
        {%- endfor %}
        {{- '</tools>\n\nFor each function call, return a json object with function name ' }}
        {{- 'and arguments within <tool_call></tool_call> XML tags:\n<tool_call>\n' }}
        {{- '{"name": <function-name>, "arguments": <args-json-object>}\n</tool_call>' }}
    {%- endif %}
    {{- '<|im_end|>\n' }}
{%- endif %}

{#- Reasoning is shown again only in the turns that answer the latest query. A user turn that is
    one big tool response is no query. -#}
{%- set latest = namespace(query=messages | length - 1) %}
{%- for message in messages %}
    {%- if message.role == 'user' %}
        {%- set said = message.content or '' %}
        {%- if not (said.startswith('<tool_response>') and said.endswith('</tool_response>')) %}
            {%- set latest.query = loop.index0 %}
        {%- endif %}
    {%- endif %}
{%- endfor %}

{%- for message in messages %}
    {%- set said = message.content or '' %}
    {%- if message.role == 'user' or (message.role == 'system' and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\n' + said + '<|im_end|>\n' }}
    {%- elif message.role == 'assistant' %}
        {%- if message.reasoning_content is defined and message.reasoning_content is not none %}
            {%- set thought = message.reasoning_content %}
        {%- elif '</think>' in said %}
            {%- set pieces = said.split('</think>') %}
            {%- set thought = pieces[0].rstrip('\n').split('<think>')[-1].lstrip('\n') %}
            {%- set said = pieces[-1].lstrip('\n') %}
        {%- else %}
            {%- set thought = '' %}
        {%- endif %}
        {{- '<|im_start|>assistant\n' }}
        {%- if loop.index0 > latest.query and (loop.last or thought) %}
            {{- '<think>\n' + thought.strip('\n') + '\n</think>\n\n' + said.lstrip('\n') }}
        {%- else %}
            {{- said }}
        {%- endif %}
        {%- for call in message.tool_calls or [] %}
            {%- set function = call.function or call %}
            {%- if said or not loop.first %}
                {{- '\n' }}
            {%- endif %}
            {{- '<tool_call>\n{"name": "' + function.name + '", "arguments": ' }}
            {%- if function.arguments is string %}
                {{- function.arguments }}
            {%- else %}
                {{- function.arguments | tojson }}
            {%- endif %}
            {{- '}\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\n' }}
    {%- elif message.role == 'tool' %}
        {#- Neighbouring results share one user turn. -#}
        {%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}
            {{- '<|im_start|>user' }}
        {%- endif %}
        {{- '\n<tool_response>\n' + said + '\n</tool_response>' }}
        {%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}
            {{- '<|im_end|>\n' }}
        {%- endif %}
    {%- endif %}
{%- endfor %}

{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\n\n</think>\n\n' }}
    {%- endif %}
{%- endif %}
""".strip()

NAMES = ["Ada", "Ben", "Clara", "David", "Emma", "Felix", "Grace", "Hugo"]
THINGS = [
    "apple",
    "book",
    "file",
    "letter",
    "number",
    "picture",
    "river",
    "question",
    "window",
    "machine",
]
PLACES = ["the garden", "the library", "a small town", "the office", "the kitchen", "the next room"]
VERBS = ["finds", "reads", "writes", "opens", "counts", "carries", "remembers", "describes"]
JOINS = ["because", "although", "while", "before", "after", "so that"]
PHRASES = [
    "The answer is {n}.",
    "Let me think about this step by step.",
    "First, we need to compute the sum of {n} and {m}.",
    "I will call the tool to search for the {thing}.",
    "Therefore the result should be {n}, which is less than {m}.",
    "Please write a function that returns the largest {thing}.",
    "The user asks about {place}, and there is no {thing} there.",
    "It's clear that we don't have enough information; wait, let's check again.",
    "How many {thing}s are there if {name} has {n} and buys {m} more?",
    "You are a helpful assistant. Use the tools when you need them.",
]
CHINESE = [
    "今天天气很好，我们一起去公园吧。",
    "请问这个问题的答案是什么？",
    "我需要先计算两个数的和，然后再比较大小。",
    "他在图书馆里看了一本很有意思的书。",
    "你好，我是一个助手，可以帮助你写代码和回答问题。",
    "这个函数返回列表中最大的数。",
    "首先，设未知数为x，那么方程可以写成下面的形式。",
    "因此，最后的结果等于这三个整数的平均值。",
    "如果用户没有提供文件名，就返回一个错误信息。",
    "她昨天晚上给老师发了一封很长的电子邮件。",
    "这座城市有两百多万人口，交通非常方便。",
    "请使用工具查询北京明天的天气情况。",
    "让我们一步一步地思考，不要着急。",
    "数据保存在服务器上，每个星期更新一次。",
]

# Words that chats are full of; sentences without sense give them to the trainer.
WORD_LIST = """
able about above accept according account across action actually add address again against
agree algorithm allow almost alone along already also always among amount analysis and another
answer any appear apply approach argument around array ask assume available average away back
base because become begin behind believe below best better between black blue board body both
bottom bring build business but call cannot careful case cause center certain change character
check choose city class clear close code color column come command common company compare
complete condition consider constant contain content continue control convert copy correct cost
could count country course create current data database date decide default define delete
depend describe design detail develop different difficult digit direct directory distance
divide document double down during each early easy effect either element else empty end enough
ensure enter equal equation error even event every exact example except execute exist expect
explain express extra fact factor fail false family fast feature field figure final find finish
first fix float follow force form format forward found fraction friend from full function
future game general generate give global good graph great green group grow half hand happen
hard have height help here high history hold home hour house however human hundred idea
identify image import important improve include increase index input inside instead integer
interest internal item join just keep keyword kind know language large last later learn least
left length less level library life light like limit line list little local logic long look
lower main make many match mathematics matter maximum mean measure member memory message method
middle might minimum minute missing model money month more morning most move multiply must name
near need negative never next night none normal nothing notice object obtain odd offer often
open operation option order original other output over own package page paper parameter parent
parse part pass path pattern people perform perhaps person place plan point position positive
possible power present price prime print probability problem process product program project
property prove provide public purpose python quantity quick rather ratio reach ready real
reason receive recent recipe record rectangle red reduce reference regular relation remain
remove repeat replace report request require response rest return reverse right room root round
row rule same sample save school science second section select sense sentence separate sequence
series server service several shape short should show side sign similar simple since single
size slow small solution solve some sort sound source space special specific speed square stand
start state statement step still stop store story string strong student subject substitute
subtract success such suggest suppose sure surface symbol system table take talk target task
teacher temperature term test than that the their them then there these they thing think third
this those thousand three through time today together tomorrow total travel tree triangle true
try turn type under understand unique until update upper user usual value variable vector
verify version very view visit volume walk want water way week weight well were what when where
whether which while white whole width will window with within without word work world would
write wrong year yellow yesterday yield young zero
"""
WORDS = WORD_LIST.split()

CODE = [
    "def {name}(values: list[int]) -> int:\n    total = 0\n    for value in values:\n"
    "        if value > {n}:\n            total += value\n    return total\n",
    'import json\n\nwith open("{thing}.json", encoding="utf-8") as f:\n    data = json.load(f)\n'
    'print(data["{thing}"])\n',
    "class {Name}:\n    def __init__(self, {thing}: str) -> None:\n"
    "        self.{thing} = {thing}\n\n"
    '    def __repr__(self) -> str:\n        return f"{Name}({{self.{thing}!r}})"\n',
    "try:\n    result = compute({n}, {m})\nexcept ValueError as error:\n"
    "    raise RuntimeError(str(error)) from error\n",
    "while True:\n    line = input()\n    if not line.strip():\n        break\n"
    "    print(len(line), line.upper())\n",
]
TOOLS = {
    "search": ["query", "limit"],
    "calculator": ["expression"],
    "read_file": ["path", "offset"],
    "get_weather": ["city", "unit"],
    "run_python": ["code"],
}


def arithmetic(rng: random.Random) -> str:
    a, b = rng.randrange(1000), rng.randrange(1, 100)
    op, value = rng.choice([("+", a + b), ("-", a - b), ("*", a * b), ("//", a // b)])
    return rng.choice(
        [
            f"{a} {op} {b} = {value}",
            f"What is {a} {op} {b}?\nThe answer is {value}.",
            f"\\boxed{{{value}}}",
        ]
    )


def english(rng: random.Random) -> str:
    def clause() -> str:
        what = f"{rng.choice(VERBS)} the {rng.choice(THINGS)}"
        return f"{rng.choice(NAMES)} {what} in {rng.choice(PLACES)}"

    if rng.random() < 0.5:
        return f"{clause()} {rng.choice(JOINS)} {clause()}."
    if rng.random() < 0.5:
        first, *rest = rng.choices(WORDS, k=rng.randrange(4, 16))
        return f"{first.capitalize()} {' '.join(rest)}{rng.choice('.,?!:;')}"
    return rng.choice(PHRASES).format(
        n=rng.randrange(100),
        m=rng.randrange(100),
        thing=rng.choice(THINGS),
        place=rng.choice(PLACES),
        name=rng.choice(NAMES),
    )


def tool_use(rng: random.Random) -> str:
    name = rng.choice(sorted(TOOLS))
    arguments: dict[str, Any] = {
        key: rng.choice(
            [rng.choice(THINGS), rng.randrange(50), f"{rng.choice(THINGS)} {rng.choice(VERBS)}"]
        )
        for key in TOOLS[name]
    }
    call = json.dumps({"name": name, "arguments": arguments})
    properties = {
        key: {"type": "string", "description": f"The {key} to use"} for key in TOOLS[name]
    }
    schema = json.dumps(
        {
            "type": "function",
            "function": {
                "name": name,
                "description": f"Use {name} to find the {rng.choice(THINGS)}",
                "parameters": {
                    "type": "object",
                    "properties": properties,
                    "required": TOOLS[name][:1],
                },
            },
        }
    )
    return rng.choice(
        [
            call,
            call,
            schema,
            json.dumps({"ok": rng.random() < 0.5, "result": arguments, "error": None}, indent=2),
        ]
    )


def code(rng: random.Random) -> str:
    thing = rng.choice(THINGS)
    return rng.choice(CODE).format(
        n=rng.randrange(10),
        m=rng.randrange(10),
        thing=thing,
        name=f"sum_{thing}s",
        Name=thing.capitalize(),
    )


def chinese(rng: random.Random) -> str:
    return "".join(rng.choice(CHINESE) for _ in range(rng.randrange(1, 4)))


def corpus() -> Iterator[str]:
    """The training text, the same in every run."""
    rng = random.Random(SEED)
    kinds = [arithmetic, english, english, tool_use, code, chinese]
    for _ in range(6000):
        yield rng.choice(kinds)(rng)
    # What templates write between control tokens.
    for role in ["system", "user", "assistant", "tool"]:
        yield from [f"{role}\n"] * 50


def train() -> Tokenizer:
    tok = byte_level(models.BPE())
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE - len(SPECIAL) - len(PLAIN_ADDED),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tok.train_from_iterator(corpus(), trainer)
    tok.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in SPECIAL])
    tok.add_tokens([AddedToken(t, special=False, normalized=False) for t in PLAIN_ADDED])
    if tok.get_vocab_size() != VOCAB_SIZE:
        raise SystemExit(
            f"the corpus gives {tok.get_vocab_size()} tokens, want {VOCAB_SIZE}: write more of it"
        )
    return tok


def byte_level(model: models.Model) -> Tokenizer:
    tok = Tokenizer(model)
    tok.normalizer = normalizers.NFC()
    tok.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT), behavior="isolated", invert=False),
            pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=False, use_regex=False),
        ]
    )
    tok.post_processor = processors.ByteLevel(
        add_prefix_space=False, trim_offsets=False, use_regex=False
    )
    tok.decoder = decoders.ByteLevel()
    return tok


def write_json(path: Path, value: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")


def write_tokenizer(directory: Path, tok: Tokenizer) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "tokenizer.json").write_text(tok.to_str(pretty=False) + "\n", encoding="utf-8")


def write_checkpoint() -> None:
    tok = train()
    write_tokenizer(TINYCHAT, tok)
    added = {
        str(token_id): {
            "content": token.content,
            "lstrip": token.lstrip,
            "normalized": token.normalized,
            "rstrip": token.rstrip,
            "single_word": token.single_word,
            "special": token.special,
        }
        for token_id, token in sorted(tok.get_added_tokens_decoder().items())
    }
    write_json(
        TINYCHAT / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "add_bos_token": False,
            "add_prefix_space": False,
            "added_tokens_decoder": added,
            "additional_special_tokens": SPECIAL[1:],
            "bos_token": None,
            "eos_token": "<|im_end|>",
            "pad_token": END_OF_TEXT,
            "unk_token": None,
            "clean_up_tokenization_spaces": False,
            "split_special_tokens": False,
            "model_max_length": 32768,
            "chat_template": CHAT_TEMPLATE,
        },
    )
    vocab = tok.get_vocab()
    end_of_turn, end_of_text = vocab["<|im_end|>"], vocab[END_OF_TEXT]
    write_json(
        TINYCHAT / "generation_config.json",
        {
            "bos_token_id": end_of_text,
            "do_sample": True,
            "eos_token_id": [end_of_turn, end_of_text],
            "pad_token_id": end_of_text,
            "temperature": 0.6,
            "top_k": 20,
            "top_p": 0.95,
        },
    )

    alphabet = {char: i for i, char in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    plain = byte_level(models.BPE(vocab=alphabet, merges=[]))
    plain.add_special_tokens([AddedToken(END_OF_TEXT, special=True, normalized=False)])
    write_tokenizer(NOTEMPLATE, plain)
    write_json(
        NOTEMPLATE / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "eos_token": END_OF_TEXT,
            "model_max_length": 32768,
        },
    )


GOLDEN_TEXTS = [
    "",
    " ",
    "a",
    "Hello, world!",
    "The answer is 42.",
    "  two  spaces   three ",
    "\n",
    "\n\n\n",
    " \n \n",
    "line one\nline two\r\nline three\r",
    "tab\tand\ttab\t\t",
    "\x00",
    "before\x00after",
    "\x00\x00a\x00",
    "<think>\x00</think>",
    "\x01\x02\x7f\x1b[31mred\x1b[0m",
    "1234567890",
    "3.14159 - 2,000,000 + 7e-3",
    "What is 12 * 34?",
    "it's we'll THEY'RE I'd don't",
    "你好，我是一个助手。",
    "今天天气很好，我们一起去公园吧。2024年5月",
    "日本語のテキストと한국어",
    "Привет, мир! Γειά σου",
    "مرحبا بالعالم",
    "naïve café résumé",
    "cafe\u0301 and \u212bngstrom, \ufb01ne",
    "\u1112\u1161\u11ab",
    "😀",
    "\U0001f468\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466 family 🇩🇪 flag 👍🏽",
    "𝔘𝔫𝔦𝔠𝔬𝔡𝔢 𐍈",
    "\u200b\u200d\ufeffzero width",
    "\u00a0nbsp\u2003em\u3000wide",
    "\ufffd replacement \ufffe\uffff",
    "\u2028line\u2029paragraph",
    "<|im_end|>",
    "<|im_start|>user\nhi<|im_end|>\n",
    "<|endoftext|><|endoftext|>",
    "text<|im_end|>text",
    "<|im_end|",
    "<|im_<|im_end|>end|>",
    "<think>",
    "<think>\nLet me think about this step by step.\n</think>\n\nThe answer is 42.",
    '<tool_call>\n{"name": "search", "arguments": {"query": "river", "limit": 3}}\n</tool_call>',
    "<tool_response>\n[1, 2]\n</tool_response>",
    "<tool_call><tool_call></tool_call>",
    "x<think>y</think>z",
    " <think> ",
    "<think",
    "<<think>>",
    "</think><|im_end|>",
    "<|im_end|><think>",
    "<THINK>",
    "<tools></tools>",
    '{"a": [1, 2.5, null, true], "b": {"c": "\\u4f60"}}',
    "def f(x: int) -> int:\n    return x ** 2\n",
    "\\boxed{17} and $x^2 + y^2 = z^2$",
    "https://example.org/path?q=1&r=a%20b#frag",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "Ġ is a letter, and so is Ċ",
    "e\u0301\u0323\u0301\u0323",
    "mixed 中文 and English，全角！",
    "    if x:\n        pass\n\n\n    # end",
]


def write_golden() -> None:
    tok = Tokenizer.from_file(str(TINYCHAT / "tokenizer.json"))
    tok.encode_special_tokens = True  # special spellings are text
    texts: list[dict[str, Any]] = []
    for text in GOLDEN_TEXTS:
        ids = tok.encode(text, add_special_tokens=False).ids
        texts.append(
            {"text": text, "ids": ids, "decoded": tok.decode(ids, skip_special_tokens=False)}
        )

    # Ids as a model samples them: control tokens, cut characters, single bytes.
    def of(text: str) -> list[int]:
        return list(tok.encode(text, add_special_tokens=False).ids)

    vocab = tok.get_vocab()
    control = [vocab[t] for t in SPECIAL + PLAIN_ADDED]
    grin = of("😀")
    sampled: list[list[int]] = [
        control,
        of("done") + control[2:3] + of("\n") + control[1:2] + of("user\n"),
        grin[:1],
        grin[:-1],
        grin[1:],
        grin[:2] + of("a") + grin,
        grin[:1] + control[2:3] + grin[1:],
        of("日")[:1] + of("本"),
        of("\x00") + grin[-1:] + of("\x00"),
        *([i] for i in range(188, 256)),
    ]
    decodes = [{"ids": ids, "text": tok.decode(ids, skip_special_tokens=False)} for ids in sampled]
    # One case a line, so that a change shows as one line.
    parts = [f'{{\n"made_with": "tokenizers {tokenizers.__version__}"']
    for key, cases in [("texts", texts), ("decodes", decodes)]:
        rows = ",\n".join(json.dumps(case) for case in cases)
        parts.append(f'"{key}": [\n{rows}\n]')
    GOLDEN.write_text(",\n".join(parts) + "\n}\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["checkpoint", "golden"])
    if parser.parse_args().what == "checkpoint":
        write_checkpoint()
    else:
        write_golden()


if __name__ == "__main__":
    main()
