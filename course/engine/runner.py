"""One step of the scheduler turned into one forward pass of the model.

The scheduler speaks of requests, the model of token ids and positions. The runner stands between
them: it lays the scheduled tokens of all requests end to end in one flat batch (prompts in chunks
and single decode tokens side by side), looks up the slot of each, runs the model once, and samples
one token for every request that needs one.
"""

from dataclasses import dataclass

import numpy as np
import torch

from course.engine.attention_plan import AttentionPlan, choose_backend
from course.engine.sampler import make_generator, sample


@dataclass
class StepInputs:
    """What the model and the attention need to know of one step; T tokens, S requests.

    What the model reads is on its device. What describes the memory is on the host, where the
    cache and the attention check it once for all layers before they send it over.
    """

    token_ids: torch.Tensor  # [T] int64
    positions: torch.Tensor  # [T] int64, place of each token in its own request
    slots: torch.Tensor  # [T] int64, where the key and value of each token go
    block_tables: torch.Tensor  # [S, widest table] int32, padded with 0 that nobody reads
    context_lens: torch.Tensor  # [S] int32, tokens of each request after this step
    query_start_loc: torch.Tensor  # [S + 1] int32, row in the flat batch where each request starts
    sample_rows: torch.Tensor  # [number of samples] int64, rows whose logits are wanted


def prepare(step, tables: dict[str, list[int]], block_size: int, device) -> StepInputs:
    """Flatten a `Step` for a model on `device`.

    `tables` maps a request id to its block table, which must cover every scheduled token.
    """
    token_ids, positions, slots = [], [], []
    context_lens, query_start_loc = [], [0]
    owned = [tables[request.request_id] for request, _, _ in step.scheduled]
    for (request, start, num_tokens), table in zip(step.scheduled, owned, strict=True):
        end = start + num_tokens
        token_ids += request.token_ids[start:end]
        positions += range(start, end)
        slots += [table[p // block_size] * block_size + p % block_size for p in range(start, end)]
        context_lens.append(end)
        query_start_loc.append(query_start_loc[-1] + num_tokens)

    block_tables = np.zeros((len(owned), max(map(len, owned))), np.int32)
    for row, table in enumerate(owned):
        block_tables[row, : len(table)] = table

    def put(values: list[int]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.int64).to(device, non_blocking=True)

    return StepInputs(
        token_ids=put(token_ids),
        positions=put(positions),
        slots=torch.tensor(slots, dtype=torch.int64),
        block_tables=torch.from_numpy(block_tables),
        context_lens=torch.tensor(context_lens, dtype=torch.int32),
        query_start_loc=torch.tensor(query_start_loc, dtype=torch.int32),
        sample_rows=put([query_start_loc[row + 1] - 1 for row in step.sample_rows]),
    )


class Runner:
    """Owns the model and its paged cache; runs steps. Keeps nothing of a request but its dice."""

    def __init__(self, model, cache, tables: dict[str, list[int]], backend: str = "auto"):
        self.model, self.cache, self.tables = model, cache, tables
        self.backend = choose_backend(backend, model.device)  # says why, if it cannot run here
        self.generators: dict[str, torch.Generator | None] = {}

    @torch.inference_mode()
    def run(self, step) -> dict[str, int]:
        """Write the step's keys and values, and return {request id: sampled token id}.

        Copies come first: a block with two owners is copied before one of them writes to it. Then
        one forward pass for all scheduled tokens, in which each layer writes its keys and values
        before it attends, since a token sees itself too.

        A token is sampled for each of `step.samples`, from its row of `inputs.sample_rows`, with
        its own params and `self._generator(request)`. Logits are computed for those rows alone, and
        not at all when nobody samples: the vocabulary is the widest matrix of the model.
        """
        if step.copies:
            self.cache.copy_blocks(step.copies)
        inputs = prepare(step, self.tables, self.cache.block_size, self.model.device)
        plan = self._plan(inputs)
        slots = self.cache.check_slots(inputs.slots)

        def attend(layer, q, k, v):
            self.cache.write(layer, k, v, slots)
            return plan.attend(q, *self.cache.layer(layer))

        hidden = self.model.forward(inputs.token_ids, inputs.positions, attend)
        if not step.samples:  # every chunk of this step stops short of its prompt's end
            return {}
        logits = self.model.logits(hidden[inputs.sample_rows])
        token_ids = sample(
            logits,
            [request.params for request in step.samples],
            [self._generator(request) for request in step.samples],
        )
        return {r.request_id: t for r, t in zip(step.samples, token_ids, strict=True)}

    def _plan(self, inputs: StepInputs) -> AttentionPlan:
        """Which query of the step reads which blocks; checked once, used by every layer."""
        return AttentionPlan(
            inputs.block_tables,
            inputs.context_lens,
            inputs.query_start_loc,
            block_size=self.cache.block_size,
            sliding_window=self.model.config.shape.sliding_window,
            backend=self.backend,
            device=self.model.device,
        )

    def _generator(self, request):
        """The request's own random numbers: its samples do not depend on who shares its batch."""
        if request.params.temperature == 0.0:
            return None
        if request.request_id not in self.generators:
            self.generators[request.request_id] = make_generator(
                request.params.seed, request.num_output_tokens
            )
        return self.generators[request.request_id]

    def abandon(self) -> None:
        """The step failed, perhaps after its dice were thrown: make them anew when next needed."""
        self.generators.clear()

    def forget(self, request_id: str) -> None:
        self.generators.pop(request_id, None)
