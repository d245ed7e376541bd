"""Rates that count instead of timing: a GEMM "takes" its FLOPs, a stream its bytes, a collective the bytes sent."""

import numpy as np

from parlay.rates.interface import Priced


class CountingRates:
    """Seconds stand for FLOP (gemm, attention), for bytes (stream), or for bytes sent per rank (collective)."""

    name = "counting"

    def __init__(self, *, flops=True, streams=False, wire=False):
        self.flops, self.streams, self.wire = flops, streams, wire

    def _priced(self, value, on):
        return Priced(np.asarray(value, dtype=np.float64) * (1.0 if on else 0.0), "exact")

    def gemm(self, m, n, k, dtype, *, accumulate=False):
        return self._priced(2.0 * np.asarray(m) * n * k, self.flops)

    def grouped_gemm(self, rows, groups, n, k, dtype, *, fused=True, weight_gradient=False):
        return self._priced(2.0 * np.asarray(rows) * n * k + 0.0 * np.asarray(groups), self.flops)

    def attention(self, queries, keys, heads, kv_heads, qk_dim, v_dim, *, score_share, batch=1, backward=False, dtype="bf16"):
        pairs = np.asarray(batch) * heads * np.asarray(queries) * keys * np.asarray(score_share)
        factor = 3.0 * qk_dim + 2.0 * v_dim if backward else qk_dim + v_dim
        return self._priced(2.0 * pairs * factor, self.flops)

    def stream(self, nbytes, kind):
        return self._priced(nbytes, self.streams)

    def collective(self, op, nbytes, group):
        n = np.asarray(group.size)
        factor = {"all_reduce": 2 * (n - 1) / n, "send_recv": np.where(n > 1, 1.0, 0.0)}.get(op, (n - 1) / n)
        return self._priced(np.asarray(nbytes) * factor, self.wire)

    def host_copy(self, nbytes, direction):
        return self._priced(nbytes, self.streams)

    def launch(self):
        return self._priced(0.0, True)

    def beside(self):
        return None
