"""The openai SDK as an agent. What it does is the task's metadata "mode".

Its clients check every answer and event against the SDK's own models.
"""

import asyncio
import json
import os

import httpx2
import openai
from openai import AsyncOpenAI, OpenAI
from openai.types.chat import ChatCompletionMessage
from pydantic import BaseModel, Field
from sdk_task import METADATA, PARAMETERS, TASK, add, finish

STRICT = {"_strict_response_validation": True, "timeout": 300}


class Add(BaseModel):
    """Adds two integers."""

    a: int = Field(description="the first")
    b: int = Field(description="the second")


CHAT_TOOL = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Adds two integers.",
        "parameters": PARAMETERS,
        "strict": True,
    },
}
RESPONSES_TOOL = {"type": "function", **CHAT_TOOL["function"]}


# ---- Chat Completions ---------------------------------------------------------------------------


async def chat(ask, **facts):
    """A conversation until the model calls no tool. ask makes one call and returns the message."""
    messages, ids = TASK["messages"], []
    while True:
        message = await ask(model="model", messages=messages, tools=[CHAT_TOOL])
        messages.append(message)
        if not message.tool_calls:
            break
        for call in message.tool_calls:
            ids.append(call.id)
            content = add(call.function.arguments)
            messages.append({"role": "tool", "tool_call_id": call.id, "content": content})
    finish(message.content, calls=ids, **facts)


async def chat_sync():
    client, usages = OpenAI(**STRICT), []

    async def ask(**request):
        completion = client.chat.completions.create(**request)
        usages.append(completion.usage.to_dict())
        return completion.choices[0].message

    await chat(ask, usages=usages)


async def chat_async():
    """The first turn comes in one piece, the second is streamed."""
    async with AsyncOpenAI(**STRICT) as client:

        async def ask(**request):
            if len(request["messages"]) == 1:
                return (await client.chat.completions.create(**request)).choices[0].message
            async with client.chat.completions.stream(**request) as stream:
                return (await stream.get_final_completion()).choices[0].message

        await chat(ask)


async def chat_stream():
    """Puts the message together from deltas, as programs without the SDK's helper do."""
    client, finishes, totals = OpenAI(**STRICT), [], []

    async def ask(**request):
        content, calls, role = "", {}, None
        with client.chat.completions.create(
            stream=True, stream_options={"include_usage": True}, **request
        ) as stream:
            for chunk in stream:
                totals.extend([chunk.usage.total_tokens] if chunk.usage else [])
                for choice in chunk.choices:
                    finishes.extend([choice.finish_reason] if choice.finish_reason else [])
                    role = choice.delta.role or role
                    content += choice.delta.content or ""
                    for part in choice.delta.tool_calls or []:
                        call = calls.setdefault(part.index, {"type": "function", "function": {}})
                        call["id"] = part.id or call["id"]
                        for key, text in part.function.to_dict().items():
                            call["function"][key] = call["function"].get(key, "") + text
        whole = {"role": role, "content": content}
        if calls:
            whole["tool_calls"] = [calls[i] for i in sorted(calls)]
        return ChatCompletionMessage.model_validate(whole)

    await chat(ask, finishes=finishes, totals=totals)


async def chat_raw():
    client, ids, answers = OpenAI(**STRICT), [], []

    async def ask(**request):
        raw = client.chat.completions.with_raw_response.create(**request)
        completion = raw.parse()
        ids.append([raw.headers["x-request-id"], raw.request_id, completion._request_id])
        answers.append([raw.status_code, raw.headers["content-type"], completion.id])
        return completion.choices[0].message

    await chat(ask, ids=ids, answers=answers)


async def chat_helper():
    client, events = OpenAI(**STRICT), []

    async def ask(**request):
        with client.chat.completions.stream(**request) as stream:
            events.append([event.type for event in stream])
            return stream.get_final_completion().choices[0].message

    await chat(ask, events=events)


async def chat_parse():
    client, parsed = OpenAI(**STRICT), []

    async def ask(**request):
        request["tools"] = [openai.pydantic_function_tool(Add, name="add")]
        message = client.chat.completions.parse(**request).choices[0].message
        for call in message.tool_calls or []:
            parsed.append(call.function.parsed_arguments.model_dump())
        return message

    await chat(ask, parsed=parsed)


async def chat_logprobs():
    """Two turns without a tool, each with the log-probabilities of its tokens."""
    client, messages, tokens = OpenAI(**STRICT), TASK["messages"], []
    for _ in range(2):
        completion = client.chat.completions.create(
            model="model", messages=messages, logprobs=True, top_logprobs=0
        )
        choice = completion.choices[0]
        tokens += [[t.token, bytes(t.bytes).decode(), t.logprob] for t in choice.logprobs.content]
        messages += [choice.message, {"role": "user", "content": "Go on."}]
    finish(choice.message.content, tokens=tokens)


# ---- Responses ----------------------------------------------------------------------------------


async def respond(ask, **facts):
    """A conversation until the model calls no tool. ask makes one call and returns the response."""
    items, ids = TASK["messages"], []
    while True:
        response = await ask(model="model", input=items, tools=[RESPONSES_TOOL])
        calls = [item for item in response.output if item.type == "function_call"]
        items += response.output
        if not calls:
            break
        for call in calls:
            ids.append(call.call_id)
            output = add(call.arguments)
            items.append(
                {"type": "function_call_output", "call_id": call.call_id, "output": output}
            )
    finish(response.output_text, calls=ids, **facts)


async def responses_sync():
    client, seen = OpenAI(**STRICT), []

    async def ask(**request):
        response = client.responses.create(**request)
        seen.append([response.status, [item.type for item in response.output]])
        return response

    await respond(ask, seen=seen)


async def responses_async():
    """The first turn comes in one piece, the second is streamed."""
    async with AsyncOpenAI(**STRICT) as client:

        async def ask(**request):
            if len(request["input"]) == 1:
                return await client.responses.create(**request)
            async with client.responses.stream(**request) as stream:
                return await stream.get_final_response()

        await respond(ask)


async def responses_events():
    """stream=True: the last event has the response."""
    client, events, numbers = OpenAI(**STRICT), [], []

    async def ask(**request):
        with client.responses.create(stream=True, **request) as stream:
            seen = list(stream)
        events.append([event.type for event in seen])
        numbers.append([event.sequence_number for event in seen])
        return seen[-1].response

    await respond(ask, events=events, numbers=numbers)


async def responses_helper():
    """The accumulator: what it put together must be what the last event says."""
    client, all_texts, all_arguments = OpenAI(**STRICT), [], []

    async def ask(**request):
        with client.responses.stream(**request) as stream:
            events = list(stream)
            response = stream.get_final_response()
        texts = [e.text for e in events if e.type == "response.output_text.done"]
        arguments = [
            e.arguments for e in events if e.type == "response.function_call_arguments.done"
        ]
        assert response.output_text == "".join(texts)
        assert [i.arguments for i in response.output if i.type == "function_call"] == arguments
        all_texts.append(texts)
        all_arguments.append(arguments)
        return response

    await respond(ask, texts=all_texts, arguments=all_arguments)


async def responses_parse():
    client, parsed = OpenAI(**STRICT), []

    async def ask(**request):
        request["tools"] = [openai.pydantic_function_tool(Add, name="add")]
        request["tools"] = [{"type": "function", **request["tools"][0]["function"]}]
        response = client.responses.parse(**request)
        for item in response.output:
            if item.type == "function_call":
                parsed.append(item.parsed_arguments)
        return response

    await respond(ask, parsed=parsed)


# ---- errors and retries -------------------------------------------------------------------------


def counted(sent, transport=None, **options):
    """A client that adds every request it sends to a list."""
    http = openai.DefaultHttpxClient(
        transport=transport, event_hooks={"request": [lambda r: sent.append(dict(r.headers))]}
    )
    return OpenAI(**{**STRICT, "http_client": http, **options})


def refusal(call):
    """What the SDK raises, the facts of the error, and how often it asked."""
    sent = []
    try:
        call(counted(sent))
    except openai.APIStatusError as err:
        return {
            "class": type(err).__name__,
            "message": err.message,
            "facts": [err.status_code, err.code, err.type],
            "requests": len(sent),
        }
    raise AssertionError("no error")


async def errors():
    hello = [{"role": "user", "content": "hello"}]
    long = [{"role": "user", "content": "x" * 5000}]
    key = METADATA["finished_session"]
    facts = {
        "chat_long": refusal(lambda c: c.chat.completions.create(model="m", messages=long)),
        "responses_long": refusal(lambda c: c.responses.create(model="m", input=long)),
        "chat_bad": refusal(lambda c: c.chat.completions.create(model="m", messages=[{}])),
        "responses_bad": refusal(lambda c: c.responses.create(model="m", input=[{"role": 1}])),
        "nobody": refusal(
            lambda c: c.chat.completions.create(
                model="m", messages=hello, extra_headers={"Authorization": openai.Omit()}
            )
        ),
        "finished": refusal(
            lambda c: c.with_options(api_key=key).chat.completions.create(model="m", messages=hello)
        ),
        "route": refusal(lambda c: c.embeddings.create(model="m", input="hello")),
    }
    # What was refused must not have cost the Session.
    client = OpenAI(**STRICT)
    answer = client.chat.completions.create(model="m", messages=hello).choices[0].message.content
    finish(answer, errors=facts)


async def retry_in_flight():
    """Gives up before the model answers, and asks again until it does."""
    sent = []
    client = counted(sent, timeout=METADATA["timeout"], max_retries=6)
    completion = client.chat.completions.create(model="model", messages=TASK["messages"])
    finish(
        completion.choices[0].message.content,
        id=completion.id,
        attempts=[r["x-stainless-retry-count"] for r in sent],
    )


class LosesTheFirstAnswer(httpx2.HTTPTransport):
    """A network that breaks once, when the answer has already been sent."""

    lost = None

    def handle_request(self, request):
        response = super().handle_request(request)
        if self.lost is None:
            self.lost = json.loads(response.read())
            raise httpx2.ReadError("the connection broke", request=request)
        return response


async def retry_after_answer():
    sent, network = [], LosesTheFirstAnswer()
    client = counted(sent, network)
    completion = client.chat.completions.create(model="model", messages=TASK["messages"])
    assert completion.to_dict() == network.lost, "the answer that was lost, once more"
    finish(completion.choices[0].message.content, attempts=len(sent))


async def models():
    """Says whose key it had, for an agent that comes after this Session."""
    client = OpenAI(**STRICT)
    listed = [model.to_dict() for model in client.models.list()]
    one = client.models.retrieve(listed[0]["id"]).to_dict()
    client.chat.completions.create(model=one["id"], messages=TASK["messages"])
    finish(os.environ["RELAX_SESSION_ID"], listed=listed, one=one)


asyncio.run(globals()[METADATA["mode"]]())
