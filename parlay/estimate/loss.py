"""What cross entropies hold of the logits, by implementation, kernels and era. Bytes per logit."""

from __future__ import annotations

import dataclasses
from datetime import date
from typing import Literal

from parlay.layouts.vocabulary import CrossEntropy, Framework

Kernels = Literal["transformer-engine", "eager", "compiled", "nanotron"]
TE_LOSS_SEPARATE_SINCE = date(2026, 7, 9)  # its fused loss keeps a gradient of its own since pull request 3193


@dataclasses.dataclass(frozen=True, slots=True)
class LossBytes:
    """Bytes per logit: at the forward peak, kept for the backward pass, at the backward peak; sequence chunks; and of the output
    itself, which a training loop lets go before the backward pass, and a pipeline does not."""

    forward: float
    kept: float
    backward: float
    chunks: float = 1.0
    output: float = 0.0


# frameworks' cross entropies: Megatron core/tensor_parallel/cross_entropy.py:25,60-110, core/fusions/fused_cross_entropy.py:82;
# TransformerEngine pytorch/cross_entropy.py:53-79; torchtitan components/loss.py:24-180 (eager and compiled are our reading
# of what autograd holds; torchtitan's whole runs measure 14 and 3.3 to 4.2 bytes); chunks: the loss of each of 8 pieces of the
# sequence, torchtitan loss.py:501.
VOCAB_PARALLEL = LossBytes(6.0, 4.0, 6.0)
# The native fusion is compiled from operations that do not run in place: bf16 logits, their fp32 copy and its exponential
# live at once. 10 bytes are what Megatron's own tests and SkyRL pull request 1841 (10.1) measure.
FUSED = LossBytes(10.0, 4.0, 6.0)
TE_IN_PLACE = LossBytes(2.0, 2.0, 2.0)
EAGER = LossBytes(10.0, 6.0, 14.0)
# torchtitan deletes the bf16 logits before the backward pass (train.py, `del pred`), which holds three fp32 tensors: the
# softmax, its gradient, and the gradient that comes in. Their memory fits none of these, so it stays reserved: 14 again.
DELETED = LossBytes(10.0, 4.0, 12.0, output=2.0)
# Compiled, the loss is one kernel a direction: bf16 logits stay and their bf16 gradient comes beside them, with no fp32 copy.
COMPILED = LossBytes(2.0, 2.0, 4.0)
CHUNKS = 8.0
# nanotron parallel/tensor_parallel/functional.py, _ShardedCrossEntropy: fp32 logits and their shifted copy, which becomes the
# softmax and the gradient in place; then its bf16 cast.
NANOTRON = LossBytes(8.0, 4.0, 6.0)


def loss_bytes(name: CrossEntropy, kernels: Kernels, day: date, who: Framework) -> LossBytes:
    """Return what a cross entropy holds per logit; `day` tells versions of one implementation apart."""
    if name == "te":
        return TE_IN_PLACE if day < TE_LOSS_SEPARATE_SINCE else VOCAB_PARALLEL
    plain = {"transformer-engine": VOCAB_PARALLEL, "eager": EAGER, "compiled": COMPILED, "nanotron": NANOTRON}[kernels]
    if name == "chunked":
        return dataclasses.replace(plain, chunks=CHUNKS)
    if name == "fused":
        return FUSED
    return DELETED if plain is EAGER and who == "torchtitan" else plain
