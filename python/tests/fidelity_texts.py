"""Texts that tokenizers disagree about, for test_fidelity."""

# ruff: noqa: RUF001 (look-alike characters are the point)

import random

SAMPLES = (
    *(" ", "\n", "\t", "\r\n", "\r", "\x00", "a\x00b", " \x00 "),
    *("\xa0", "\u3000", "\u2028\u2029", "\u200b"),
    "\ufeffbom",
    "Hello, world!",
    " leading and trailing ",
    "don't DON'T I'LL we've 'tis O'Neill's",
    "naïve café cafe\u0301 Å A\u030a ﬁ",
    'def f(x: int) -> str:\n    """Doc."""\n    return f"{x!r:>9}"  # ok\n\n\nclass A:\n\tpass\n',
    '#include <stdio.h>\nint main(void) { printf("%d\\n", 1 << 3); return 0; }\n',
    '{"a": [1, 2.5e-7, null, true], "b": "\\u00e9\\n"}',
    '<div class="a">&amp; &#x27;</div>',
    r"$\int_0^1 x^2\,dx = \frac{1}{3}$",
    "a_b-c.d/e\\f:g;h@i#j%k^l&m*n+o=p~q`r|s",
    "1 12 123 1234 12345 1234567890 3.14159 1,000,000 0xDEADBEEF 1e-10",
    "١٢٣ ४५६ 一二三 Ⅷ ½ ²",
    "中文测试，标点。「引号」",
    "日本語のテキスト、カタカナ ひらがな",
    "한국어 텍스트",
    "ไทย ພາສາລາວ မြန်မာ العربية עברית हिन्दी தமிழ்",
    "Ελληνικά Русский Türkçe İıIi ẞß",
    "👋🌍🎉 👩‍👩‍👧‍👦 👍🏽👍🏿 🏳️‍🌈🏴‍☠️ 🇩🇪🇯🇵 1️⃣ ☺︎☺️",
    "e\u0301\u0302\u0303 \u0301alone \u202eRTL\u202c",
    "\ufdd0\uffff\U0010ffff\U0001fffe\ue000",
    "𝔘𝔫𝔦 𝟙𝟚𝟛 Z͑ͫa̴l͝g̷o",
    "▁ ▁▁▁ Ġ Ċ <0x0A><0xFF>",
    *("[INST] [/INST] <s> </s> <|im_start", "<|", "|>", "<｜", "< |im_end|>"),
    "<think>\nhm\n</think>\n\nanswer <tool_call>\n{}\n</tool_call>",
)


def corpus(seed, spellings):
    """The samples, runs of white space, look-alikes of the spellings, and random texts."""
    rng = random.Random(seed)
    texts = list(SAMPLES)
    for n in (2, 3, 4, 5, 7, 8, 15, 16, 17, 31, 32, 33, 64, 65, 100):
        texts += [
            " " * n,
            "a" + " " * n + "b",
            "x" + "\n" * n,
            "\n" + "\t" * n + "y",
            " \n" * n + "z",
        ]
    for s in spellings:
        texts += [
            s,
            f"a{s}b",
            f" {s} ",
            s + s,
            s[:-1],
            s[1:],
            s + s[:-1],
            f"日本{s}👍🏽",
            f"{s}\x00",
        ]
    texts += [random_text(rng) for _ in range(300)]
    return texts


_SCRIPTS = (
    *(
        (0x20, 0x7E),
        (0x61, 0x7A),
        (0x61, 0x7A),
        (0x30, 0x39),
        (0x20, 0x20),
        (0x09, 0x0D),
        (0x00, 0x1F),
    ),
    *((0x80, 0xFF), (0x100, 0x24F), (0x300, 0x36F), (0x370, 0x5FF), (0x600, 0x6FF), (0x900, 0xDFF)),
    *((0x2000, 0x206F), (0x2190, 0x2BFF), (0x3000, 0x30FF), (0x4E00, 0x9FFF), (0xAC00, 0xD7A3)),
    *(
        (0xE000, 0xFFFF),
        (0x1D400, 0x1D7FF),
        (0x1F300, 0x1FAFF),
        (0x20000, 0x2FFFF),
        (0x0, 0x10FFFF),
    ),
)


def random_text(rng, size=20):
    """Up to size runs of a few characters of one script each; never empty."""
    text = ""
    for _ in range(rng.randint(1, size)):
        low, high = rng.choice(_SCRIPTS)
        points = (rng.randint(low, high) for _ in range(rng.randint(1, 8)))
        text += "".join(chr(p) for p in points if not 0xD800 <= p <= 0xDFFF)
        if rng.random() < 0.1:
            text += rng.choice(_SNIPPETS)
    return text or "-"


_SNIPPETS = (
    "\n\n",
    "```\n",
    "://",
    "don't",
    "  ",
    "return ",
    "。",
    "👩‍👩‍👧‍👦",
    "{{",
    "%}",
    "</b>",
    "e\u0301",
)
