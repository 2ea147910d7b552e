"""A ReAct agent of LangGraph with a tool, on LangChain's client for OpenAI."""

from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.prebuilt import create_react_agent
from sdk_task import METADATA, TASK, finish


@tool
def add(a: int, b: int) -> int:
    """Adds two integers."""
    return a + b


def agent(**options):
    return create_react_agent(ChatOpenAI(model="model", **options), [add], prompt="You add.")


def end(messages):
    last = messages[-1]
    kinds = [message.type for message in messages]
    finish(last.text, kinds=kinds, total_tokens=last.usage_metadata["total_tokens"])


def chat_stream():
    state = {}
    for mode, event in agent().stream(
        {"messages": TASK["messages"]}, stream_mode=["messages", "values"]
    ):
        state = event if mode == "values" else state
    end(state["messages"])


def responses():
    end(agent(use_responses_api=True).invoke({"messages": TASK["messages"]})["messages"])


globals()[METADATA["mode"]]()
