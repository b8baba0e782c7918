"""A Llama-style decoder that takes token ids and positions and knows nothing of caches.

Where the keys and values of earlier tokens are kept, and how a query finds them, is the business
of the `attend` function that the caller passes in. That one seam lets the same model run without
a cache (the oracle), over a contiguous cache and over pages.
"""

from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as F

from course.engine.model_config import ModelConfig
from course.engine.native.linear import Linear
from course.engine.operations import operations

# attend(layer, q [T, num_heads, D], k [T, num_kv_heads, D], v like k) -> [T, num_heads, D]
Attend = Callable[[int, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


class Layer:
    """The weights of one decoder layer. Matrices that read the same input are one matrix."""

    def __init__(self, weights: Callable[[str], torch.Tensor], config: ModelConfig):
        def stacked(*names: str) -> torch.Tensor:
            return torch.cat([weights(name) for name in names])

        qkv_bias = stacked("q_bias", "k_bias", "v_bias") if config.qkv_bias else None
        self.attention_norm = weights("attention_norm")
        self.qkv = Linear(stacked("q", "k", "v"), qkv_bias)
        self.o = Linear(weights("o"))
        self.mlp_norm = weights("mlp_norm")
        self.gate_up = Linear(stacked("gate", "up"))
        self.down = Linear(weights("down"))


class LlamaModel:
    """RMSNorm, rotary positions, grouped-query attention, SwiGLU.

    `weights` maps the names of `config.weight_shapes()` to tensors; each is asked for once and
    moved to `device` and `dtype` at once, so a lazy mapping never holds two copies of the model.
    """

    def __init__(
        self,
        config: ModelConfig,
        weights: Mapping[str, torch.Tensor],
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ):
        self.config, self.dtype, self.device = config, dtype, torch.device(device)
        self.ops = operations(self.device, dtype)

        def take(name: str) -> torch.Tensor:
            return weights[name].to(device=self.device, dtype=dtype)

        with torch.inference_mode():
            self.embedding = take("embedding")
            self.layers = [
                Layer(lambda name, i=i: take(f"{i}.{name}"), config)
                for i in range(config.num_layers)
            ]
            self.final_norm = take("final_norm")
            self.lm_head = Linear(self.embedding if config.tied_embeddings else take("lm_head"))
            self.rope_rate = rope_rate(config).to(self.device)

    @torch.inference_mode()
    def forward(
        self, token_ids: torch.Tensor, positions: torch.Tensor, attend: Attend
    ) -> torch.Tensor:
        """One step over `num_tokens` rows, of one sequence or of many.

        token_ids, positions: int64 [num_tokens], on the model's device. `attend` is called once a
        layer with q and k already turned to their positions; q, k and v are views of one buffer
        (strided), and the tensor that it returns is only read. Returns hidden states
        [num_tokens, hidden_size], for `logits`.
        """
        config = self.config
        num_rotated = config.num_heads + config.num_kv_heads
        num_all = num_rotated + config.num_kv_heads
        angles = self.ops.rope_angles(positions, self.rope_rate, self.dtype)  # for all layers
        hidden = F.embedding(token_ids, self.embedding)
        for i, layer in enumerate(self.layers):
            qkv = layer.qkv(self._norm(hidden, layer.attention_norm))
            qkv = qkv.view(-1, num_all, config.head_dim)
            turned = self.ops.rope(qkv, num_rotated, angles)
            q, k = turned[:, : config.num_heads], turned[:, config.num_heads :]
            out = attend(i, q, k, qkv[:, num_rotated:])
            hidden = layer.o(out.reshape(len(out), -1), plus=hidden)

            gate_up = layer.gate_up(self._norm(hidden, layer.mlp_norm))
            hidden = layer.down(self.ops.silu_mul(gate_up), plus=hidden)
        return self._norm(hidden, self.final_norm)

    @torch.inference_mode()
    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """hidden [N, hidden_size] -> float32 [N, vocab_size]: ask only for rows that sample."""
        return self.lm_head(hidden).float()

    def _norm(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return self.ops.rms_norm(x, weight, self.config.rms_norm_eps)


def rope_rate(config: ModelConfig) -> torch.Tensor:
    """How far each pair turns from one position to the next, in radians: [head_dim / 2].

    Pair j is elements j and j + head_dim / 2; it turns by theta^(-2j / head_dim) a position
    (RoFormer, arXiv 2104.09864). In float64, as a float32 angle at position 8,000 is already off
    in the fourth decimal.
    """
    half = config.head_dim // 2
    return config.rope_theta ** (-torch.arange(half, dtype=torch.float64) / half)


def dense_attend(sliding_window: int | None = None) -> Attend:
    """Full causal attention over the rows of one sequence, with no cache: the oracle.

    The rows must be positions 0, 1, 2, ... of a single sequence. Scores and sums in float32.
    With a window, a token sees itself and the sliding_window - 1 before it.
    """

    def attend(layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        group = q.shape[1] // k.shape[1]
        k, v = (t.repeat_interleave(group, dim=1).float() for t in (k, v))
        scores = torch.einsum("qhd,khd->hqk", q.float(), k) * q.shape[-1] ** -0.5
        visible = torch.ones(len(q), len(q), dtype=torch.bool, device=q.device).tril()
        if sliding_window is not None:
            visible = visible.triu(1 - sliding_window)
        weights = scores.masked_fill(~visible, float("-inf")).softmax(dim=-1)
        return torch.einsum("hqk,khd->qhd", weights, v).to(q.dtype)

    return attend
