"""Conversations that chat templates treat differently, for test_fidelity.

Arguments have sorted keys, as the engine's canonical form has them. Tools go to the template as
the client wrote them. No text spells a control token.
"""

# ruff: noqa: RUF001 (look-alike characters are the point)

import json
import random
from dataclasses import dataclass
from typing import Any

from fidelity_texts import random_text


@dataclass(frozen=True)
class Conversation:
    name: str
    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None = None
    kwargs: dict[str, Any] | None = None


def compact(value):
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def system(content):
    return {"role": "system", "content": content}


def user(content):
    return {"role": "user", "content": content}


def assistant(content, *calls, reasoning=None):
    message = {"role": "assistant", "content": content}
    if reasoning is not None:
        message["reasoning_content"] = reasoning
    if calls:
        message["tool_calls"] = [
            {
                "id": f"call_{name}_{i}",
                "type": "function",
                "function": {"name": name, "arguments": json.loads(compact(arguments))},
            }
            for i, (name, arguments) in enumerate(calls)
        ]
    return message


def results(calling, *contents):
    return [
        {"role": "tool", "content": content, "tool_call_id": call["id"]}
        for call, content in zip(calling["tool_calls"], contents, strict=True)
    ]


def tool(name, description=None, parameters=None, **more):
    function = {"name": name, "parameters": parameters, **more}
    if description is not None:
        function["description"] = description
    return {"type": "function", "function": function}


STOCK = tool(
    "lookup_stock",
    'Find "units" left & <price> of an item — naïve',
    {
        "type": "object",
        "properties": {
            "sku": {"type": "string", "description": "item's code"},
            "depth": {"type": "integer", "minimum": 1, "default": 3},
            "opts": {
                "type": "object",
                "properties": {
                    "z": {"type": "boolean"},
                    "a": {"type": "array", "items": {"type": "string", "enum": ["x", "ÿ"]}},
                },
            },
            "ratio": {"type": ["number", "null"], "maximum": 0.25},
        },
        "required": ["sku"],
        "additionalProperties": False,
    },
)
PING = tool("ping", "No args", {"type": "object", "properties": {}}, strict=True)
SEARCH = tool("検索", "", {"type": "object", "properties": {"q": {"type": "string"}}})
TOOLS = [STOCK, PING, SEARCH]

ODD = {"depth": 2, "opts": {"a": ["x", None, -0.5, 1e-07, 12345678901234567890], "z": True}}
ODD |= {"sku": 'Ä-7\n"q" \\ </script> &', "ratio": None, "": "", "ключ": "值 🙂"}
CODE = 'def f(x):\n\tif x:\n\t\treturn {"a": [1, 2]}  # "naïve"\n\n\n    return None\n'


def plain_conversations():
    """Without tools."""
    yield "simple", [user("Hello, who are you?")]
    yield "system", [system("Be terse."), user("Hi")]
    yield "two systems", [system("Be terse."), system("Be kind."), user("Hi")]
    yield "turns", [user("1+1?"), assistant("2"), user("and 2+2?"), assistant("4"), user("so?")]
    yield "padded", [system("  sys \n"), user("  u \n\n"), assistant("\n\n a \n"), user("ok\n")]
    yield "no words", [user(" "), assistant("\n"), user("\t\n \u3000\xa0 \r\n")]
    yield "empty answer", [user("a"), assistant(""), user("b"), assistant(None), user("c")]
    yield "code", [user(CODE), assistant(f"```python\n{CODE}```"), user("x" * 300 + "\n" * 30)]
    yield (
        "cjk",
        [system("日本語で。"), user("中文、한국어？"), assistant("はい。"), user("ไทย العربية")],
    )
    yield "emoji", [user("👩‍👩‍👧‍👦🏳️‍🌈 👍🏽"), assistant("🇩🇪1️⃣"), user("e\u0301 é \u200b\ufeff")]
    yield (
        "template text",
        [user("{{ x }} {% y %} {# z #}"), assistant("{{ bos_token }}"), user("%}")],
    )
    yield "markup", [user("<b>&amp;\"'</b>"), assistant("</div>"), user("a < b > c")]
    yield "reasoning", [user("q"), assistant("a", reasoning="one\n\ntwo"), user("r")]
    yield "inline think", [user("q"), assistant("<think>\nabc\n</think>\n\nseen"), user("r")]
    yield "think tags", [user("</think> in <think> a question"), assistant("ok"), user("r")]
    yield "late system", [user("a"), assistant("b"), system("From now on: c."), user("d")]
    yield "last system", [system("s"), user("a"), assistant("b"), system("Now c.")]
    yield "nul", [user("a\x00b"), assistant("\x00"), user("\x00\x7f\x1b[0m")]


def tool_conversations():
    one = assistant(None, ("lookup_stock", {"sku": "B-1", "depth": 1}))
    spoken = assistant("Let me look.", ("lookup_stock", {"sku": "B-1"}))
    thought = assistant(None, ("ping", {}), reasoning="ping first")
    two = assistant("", ("lookup_stock", ODD), ("ping", {}))
    odd = assistant(None, ("lookup_stock", ODD))
    late = assistant(None, ("検索", {"q": "値段"}), reasoning="検索しよう")
    ask = user("stock of B-1?")
    yield "offered", [ask]
    yield "offered, system", [system("Use tools."), ask]
    yield "one call", [ask, one, *results(one, '{"units": 4}')]
    yield "spoken call", [ask, spoken, *results(spoken, "4 units"), assistant("4."), user("thx")]
    yield "thoughtful call", [ask, thought, *results(thought, "pong")]
    yield "thought and said", [ask, {**spoken, "reasoning_content": "hm"}, *results(spoken, "4")]
    yield "odd arguments", [ask, odd, *results(odd, 'r\n"1" é')]
    yield "parallel", [user("both"), two, *results(two, "r1", "r2\n")]
    yield "empty result", [ask, one, *results(one, "")]
    yield (
        "chain",
        [ask, one, *results(one, "4"), late, *results(late, "百円"), assistant("4"), user("?")],
    )
    yield "new question", [ask, one, *results(one, "4"), user("never mind")]
    yield "answered", [ask, late, *results(late, "r"), assistant("a", reasoning="so"), user("u")]
    yield "orphan result", [ask, {"role": "tool", "content": "r", "tool_call_id": "call_x_0"}]


def random_arguments(rng):
    values = [True, False, None, 0, -7, 2**70, 0.5, 1e-07, 1.5e300]
    values += [[], {}, [1, [None, "x"]], {"k": {}}]
    names = ("sku", "depth", "q", "Ä", "zero width\u200b", "a b")
    return {
        name: random_text(rng, 6) if rng.random() < 0.6 else rng.choice(values)
        for name in rng.sample(names, rng.randrange(len(names)))
    }


def random_messages(rng, max_calls):
    if rng.random() < 0.5:
        yield system(random_text(rng))
    for _ in range(rng.randrange(3)):
        yield user(random_text(rng))
        for _ in range(rng.randrange(3) if max_calls else 0):
            names = [rng.choice(("ping", "lookup_stock")) for _ in range(rng.randint(1, max_calls))]
            calls = [(name, random_arguments(rng)) for name in names]
            # Not both: some templates refuse that.
            content, reasoning = rng.choice(
                [(None, None), (random_text(rng), None), (None, random_text(rng))]
            )
            calling = assistant(content, *calls, reasoning=reasoning)
            yield calling
            yield from results(calling, *(random_text(rng) for _ in calls))
        reasoning = random_text(rng) if rng.random() < 0.4 else None
        yield assistant(random_text(rng) if rng.random() < 0.9 else "", reasoning=reasoning)
    yield user(random_text(rng))


def conversations(seed, max_calls):
    for name, messages in plain_conversations():
        yield Conversation(name, messages)
    for name, messages in tool_conversations():
        yield Conversation(name, messages, TOOLS)
    yield Conversation("no thinking", [user("hi")], None, {"enable_thinking": False})
    yield Conversation("undescribed", [user("hi")], [tool("ping"), tool("p", None, {})])
    yield Conversation("effort", [user("hi")], [PING], {"reasoning_effort": "high", "x": [1]})
    rng = random.Random(seed)
    for i in range(40):
        tools = rng.sample(TOOLS, rng.randint(1, 3)) if rng.random() < 0.6 else None
        yield Conversation(f"random {i}", list(random_messages(rng, max_calls)), tools)
