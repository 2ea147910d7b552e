"""One training row of a batch."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

    from .batch import Batch


class Segment(NamedTuple):
    """Tokens ``[start, end)`` of a row, sampled under one weight version."""

    start: int
    end: int
    weight_version: int
    """-1 if the backend's version is not a number."""


class Turn(NamedTuple):
    """One response of a row: tokens ``[start, end)``."""

    start: int
    end: int
    advantage: float
    """The turn's training credit."""
    masked: bool
    """Whether an earlier row trains it, so that loss_mask is 0 here (shared_prefix_loss)."""


@dataclass(frozen=True)
class Row:
    """One training context. Arrays are views of the batch's columns."""

    batch: Batch
    index: int

    def _tokens(self, name: str) -> npt.NDArray[Any]:
        offsets = self.batch.numpy("offsets")
        return self.batch.numpy(name)[offsets[self.index] : offsets[self.index + 1]]

    def _scalar(self, name: str) -> Any:
        return self.batch.numpy(name)[self.index].item()

    @property
    def tokens(self) -> npt.NDArray[np.int32]:
        """All ids of the row: prompt, responses and observations."""
        return self._tokens("tokens")

    @property
    def loss_mask(self) -> npt.NDArray[np.uint8]:
        """1 exactly on ids the policy sampled in this row; as long as tokens."""
        return self._tokens("loss_mask")

    @property
    def logprobs(self) -> npt.NDArray[np.float32]:
        """Rollout logprobs where loss_mask is 1, 0 elsewhere; as long as tokens."""
        return self._tokens("logprobs")

    @property
    def prompt_len(self) -> int:
        """Tokens before the first response."""
        return int(self._scalar("prompt_len"))

    @property
    def prompt_tokens(self) -> npt.NDArray[np.int32]:
        """The ids before the first response."""
        return self.tokens[: self.prompt_len]

    @property
    def response_tokens(self) -> npt.NDArray[np.int32]:
        """The ids from the first response on, later observations included."""
        return self.tokens[self.prompt_len :]

    @property
    def response_loss_mask(self) -> npt.NDArray[np.uint8]:
        """loss_mask of response_tokens."""
        return self.loss_mask[self.prompt_len :]

    @property
    def response_logprobs(self) -> npt.NDArray[np.float32]:
        """logprobs of response_tokens."""
        return self.logprobs[self.prompt_len :]

    @property
    def reward(self) -> float:
        """The task outcome, NaN if unset."""
        return float(self._scalar("reward"))

    @property
    def advantage(self) -> float:
        """The training credit of the whole row."""
        return float(self._scalar("advantage"))

    @property
    def raw_reward(self) -> float:
        """The task outcome of the row's Session, NaN if unset: the same for all its rows."""
        return float(self._scalar("raw_reward"))

    @property
    def advantages(self) -> npt.NDArray[np.float32]:
        """The training credit of each token, 0 before the first response; as long as tokens.

        A view where the batch has the column, else a new array with ``advantage`` everywhere from
        the first response on.
        """
        if "advantages" in self.batch.names:
            return self._tokens("advantages")
        out = np.full(len(self.tokens), self.advantage, np.float32)
        out[: self.prompt_len] = 0
        return out

    @property
    def group_id(self) -> int:
        """The Group's number within the run."""
        return int(self._scalar("group_id"))

    @property
    def session_seq(self) -> int:
        """The Session's place in its Group."""
        return int(self._scalar("session_seq"))

    @property
    def sample_index(self) -> int:
        """The logical sample: all rows of one Session share it, and no others have it."""
        return int(self._scalar("sample_indices"))

    @property
    def mask_sum(self) -> int:
        """loss_mask summed over all rows of the Session: dividing a row's token sum by it makes a
        Session count once, however many contexts it exports."""
        return int(self._scalar("sample_index_mask_sums"))

    @property
    def partition(self) -> int:
        """The rollout the row was delivered for: the batch's, or in a fully-async run an earlier
        one whose debt it pays."""
        return int(self._scalar("partition"))

    @property
    def truncated(self) -> bool:
        """Whether the last turn was cut by a limit."""
        return bool(self._scalar("status") == 1)

    @property
    def turns(self) -> int:
        """Responses along the lineage."""
        return int(self._scalar("turns"))

    @property
    def aborts(self) -> int:
        """Backend aborts along the lineage."""
        return int(self._scalar("aborts"))

    @property
    def turn_table(self) -> list[Turn]:
        """The row's responses in order."""
        offsets = self.batch.numpy("turn_offsets")
        part = slice(offsets[self.index], offsets[self.index + 1])
        starts, lengths, advantages, masked = (
            self.batch.numpy(f"turn_{name}")[part].tolist()
            for name in ("start", "len", "advantage", "masked")
        )
        return [
            Turn(start, start + length, advantage, bool(mask))
            for start, length, advantage, mask in zip(
                starts, lengths, advantages, masked, strict=True
            )
        ]

    @property
    def routed_experts(self) -> npt.NDArray[np.int32]:
        """The experts that each token but the last went to: ``(len(tokens) - 1, layers, top k)``.

        Raises InvalidError where the batch has none.
        """
        layers, top_k = self.batch.numpy("routed_experts_shape").tolist()
        start, end = self.batch.numpy("offsets")[self.index : self.index + 2].tolist()
        width = layers * top_k
        first = (start - self.batch.routes_before(self.index)) * width
        count = max(end - start - 1, 0)
        view = self.batch.numpy("routed_experts")[first : first + count * width]
        return view.reshape(count, layers, top_k)

    @property
    def segments(self) -> list[Segment]:
        """The weight versions the row was sampled under, in order."""
        offsets = self.batch.numpy("seg_offsets")
        part = slice(offsets[self.index], offsets[self.index + 1])
        starts = self.batch.numpy("seg_start")[part].tolist()
        versions = self.batch.numpy("seg_weight_version")[part].tolist()
        ends = [*starts[1:], len(self.tokens)]
        return [Segment(*s) for s in zip(starts, ends, versions, strict=True)]

    @property
    def meta(self) -> dict[str, Any]:
        """The row's metadata; parsed anew at each access."""
        offsets = self.batch.numpy("meta_offsets")
        text = self.batch.numpy("meta_json")[offsets[self.index] : offsets[self.index + 1]]
        return dict(json.loads(text.tobytes() or b"{}"))

    def __repr__(self) -> str:
        return (
            f"Row({self.index}: tokens={len(self.tokens)}, prompt_len={self.prompt_len}, "
            f"turns={self.turns}, reward={self.reward:g}, advantage={self.advantage:g})"
        )
