"""The anthropic SDK as an agent. What it does is the task's metadata "mode".

Its clients check every answer and event against the SDK's own models.
"""

import asyncio
import json
import os

import anthropic
from anthropic import Anthropic, AsyncAnthropic
from sdk_task import METADATA, PARAMETERS, TASK, add, finish

STRICT = {"_strict_response_validation": True, "timeout": 300}
TOOL = {"name": "add", "description": "Adds two integers.", "input_schema": PARAMETERS}


async def converse(ask, **facts):
    """A conversation until the model uses no tool. ask makes one call and returns the message."""
    messages, ids, blocks, usages = TASK["messages"], [], [], []
    while True:
        message = await ask(model="model", max_tokens=500, messages=messages, tools=[TOOL])
        blocks.append([block.type for block in message.content])
        usages.append(message.usage.to_dict())
        messages.append({"role": "assistant", "content": message.content})
        if message.stop_reason != "tool_use":
            break
        results = []
        for block in message.content:
            if block.type == "tool_use":
                ids.append(block.id)
                result = {"type": "tool_result", "tool_use_id": block.id}
                results.append({**result, "content": add(block.input)})
        messages.append({"role": "user", "content": results})
    assert message.stop_reason == "end_turn", message
    finish(message.content[-1].text, calls=ids, blocks=blocks, usages=usages, **facts)


async def messages_sync():
    """Asks before each call how long it will be."""
    client, counts, requests = Anthropic(**STRICT), [], []

    async def ask(**request):
        counted = {key: request[key] for key in ("model", "messages", "tools")}
        counts.append(client.messages.count_tokens(**counted).input_tokens)
        message = client.messages.create(**request)
        requests.append(message._request_id)
        return message

    await converse(ask, counts=counts, requests=requests)


async def messages_async():
    """The first turn comes in one piece, the second is streamed."""
    async with AsyncAnthropic(**STRICT) as client:

        async def ask(**request):
            if len(request["messages"]) == 1:
                return await client.messages.create(**request)
            async with client.messages.stream(**request) as stream:
                return await stream.get_final_message()

        await converse(ask)


async def messages_helper():
    """The accumulator: what it put together must be what the deltas said."""
    client, thoughts = Anthropic(**STRICT), []

    async def ask(**request):
        with client.messages.stream(**request) as stream:
            deltas = [e.delta for e in stream if e.type == "content_block_delta"]
            message = stream.get_final_message()
        said = {
            kind: [getattr(d, field) for d in deltas if d.type == kind]
            for kind, field in (
                ("text_delta", "text"),
                ("thinking_delta", "thinking"),
                ("signature_delta", "signature"),
            )
        }
        whole = {
            kind: [b for b in message.content if b.type == kind] for kind in ("text", "thinking")
        }
        assert [b.text for b in whole["text"]] == said["text_delta"]
        assert [b.thinking for b in whole["thinking"]] == said["thinking_delta"]
        assert [b.signature for b in whole["thinking"]] == said["signature_delta"]
        thoughts.extend(said["thinking_delta"])
        return message

    await converse(ask, thoughts=thoughts)


async def messages_events():
    """Puts the message together from events, and sends its key as older versions of the SDK do."""
    headers = {"X-Api-Key": os.environ["ANTHROPIC_API_KEY"], "Authorization": anthropic.Omit()}
    client, events = Anthropic(default_headers=headers, **STRICT), []

    async def ask(**request):
        message, inputs = None, {}
        with client.messages.create(stream=True, **request) as stream:
            seen = list(stream)
        events.append([event.type for event in seen])
        for event in seen:
            if event.type == "message_start":
                message = event.message
            elif event.type == "content_block_start":
                message.content.append(event.content_block)
            elif event.type == "content_block_delta" and event.delta.type == "text_delta":
                message.content[event.index].text += event.delta.text
            elif event.type == "content_block_delta":
                inputs[event.index] = inputs.get(event.index, "") + event.delta.partial_json
            elif event.type == "message_delta":
                message.stop_reason = event.delta.stop_reason
                message.usage.output_tokens = event.usage.output_tokens
        for index, text in inputs.items():
            message.content[index].input = json.loads(text)
        return message

    await converse(ask, events=events)


async def tool_runner():
    """The SDK's own loop over tools."""

    @anthropic.beta_tool
    def add(a: int, b: int) -> str:
        """Adds two integers.

        Args:
            a: the first
            b: the second
        """
        return str(a + b)

    runner = Anthropic(**STRICT).beta.messages.tool_runner(
        model="model", max_tokens=500, messages=TASK["messages"], tools=[add]
    )
    finish(runner.until_done().content[-1].text)


def refusal(call):
    """What the SDK raises, the facts of the error, and how often it asked."""
    sent = []
    http = anthropic.DefaultHttpxClient(event_hooks={"request": [sent.append]})
    try:
        call(Anthropic(http_client=http, **STRICT))
    except anthropic.APIStatusError as err:
        return {
            "class": type(err).__name__,
            "message": err.message,
            "facts": [err.status_code, err.type],
            "requests": len(sent),
        }
    raise AssertionError("no error")


async def errors():
    hello = {"model": "m", "max_tokens": 10, "messages": [{"role": "user", "content": "hello"}]}
    long = {**hello, "messages": [{"role": "user", "content": "x" * 5000}]}
    bad = {**hello, "messages": [{"role": "user", "content": 3}]}
    facts = {
        "long": refusal(lambda c: c.messages.create(**long)),
        "bad": refusal(lambda c: c.messages.create(**bad)),
        "nobody": refusal(
            lambda c: c.messages.create(**hello, extra_headers={"Authorization": anthropic.Omit()})
        ),
        "stranger": refusal(lambda c: c.with_options(api_key="session-0").messages.create(**hello)),
        "route": refusal(lambda c: c.messages.batches.retrieve("b")),
    }
    # What was refused must not have cost the Session.
    client = Anthropic(**STRICT)
    listed = [model.to_dict(mode="json") for model in client.models.list()]
    one = client.models.retrieve(listed[0]["id"]).to_dict(mode="json")
    answer = client.messages.create(**{**hello, "model": one["id"]}).content[0].text
    finish(answer, errors=facts, listed=listed, one=one)


asyncio.run(globals()[METADATA["mode"]]())
