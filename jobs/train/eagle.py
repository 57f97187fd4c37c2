"""Recipe: EAGLE-3 (arXiv 2503.01840), one layer that drafts token by token, trained on its own output ("training-time test").

In pass 0 the row of token i sees what the target's layers said of it beside the embedding of token i + 1, and learns what the target says
of the token after that. In pass k the output of pass k - 1 takes the place of the target's features, as it does when it drafts: a row then
sees the target's features up to k tokens back, and behind them its own.
`data`: the target's own answers, as the output folder of a finished job or as rows; or prompts, which the target answers first.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn
from transformers import LlamaConfig

from drawloom.jobs.train.data import Packed, batches
from drawloom.jobs.train.features import Target, ahead, own_answers, publish, shape_of
from drawloom.jobs.train.loop import Loss, fit
from drawloom.jobs.train.settings import EagleSettings
from drawloom.models.drafters.eagle import EagleNetwork, EagleOptions

PASS_WEIGHT = 0.8  # of each pass, to the one before


def train(settings: EagleSettings) -> None:
    target = Target(settings)
    layers = target.config.num_hidden_layers
    taps = target.taps(settings.layers, (2, layers // 2, layers - 3))
    config = LlamaConfig(**shape_of(target.config), num_hidden_layers=1)
    network = EagleNetwork(config, EagleOptions(len(taps)), target.config.hidden_size, config.vocab_size)
    network.lm_head.weight.data.copy_(target.network.get_output_embeddings().weight)
    corpus = own_answers(settings, target.tokenizer)
    source = batches(corpus, settings.rows, settings.row_tokens, settings.seed, target.tokenizer.eos_token_id)
    fit(settings, network, source, loss_with(settings, target, taps))
    told = {
        **config.to_dict(),
        "architectures": ["LlamaForCausalLMEagle3"],
        "draft_vocab_size": config.vocab_size,
        "eagle_config": {"use_aux_hidden_state": True, "eagle_aux_hidden_state_layer_ids": list(taps)},
    }
    publish(settings, told, network.state_dict())


def loss_with(settings: EagleSettings, target: Target, taps: tuple[int, ...]) -> Loss:
    def loss(trainee: nn.Module, batch: Packed, generator: Generator) -> Tensor:
        """Cross entropy against what the target says, over the passes."""
        network: Any = trainee.network
        features, last = target.read(batch, taps)
        hidden, keys, values = network.enter(features), [], []
        embedded = target.embed(ahead(batch, 1)[0].to(hidden.device))
        angles = network.rotary_emb(embedded, batch.positions.to(hidden.device))
        said = last.roll(-1, 1)
        wanted, total = ahead(batch, 2)[1].to(hidden.device), hidden.new_zeros(())
        for number in range(settings.ahead):
            hidden, normed = network(embedded, hidden, angles, [attention(batch, number, keys, values)])
            live = wanted & (batch.positions >= number).to(wanted.device)
            goal = target.chances(said[live])
            total = total + PASS_WEIGHT**number * F.cross_entropy(network.said(normed[live]), goal)
            hidden = hidden.roll(1, 1)  # what token i + 1 gets in place of its features
        return total

    return loss


def attention(batch: Packed, number: int, keys: list[Tensor], values: list[Tensor]) -> Any:
    """Pass `number`'s attention: [B, L, heads, D] each. It sees pass 0 up to `number` tokens back, and one row of every later pass."""

    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        keys.append(key)
        values.append(value)
        key, value = (torch.cat(one, 1).transpose(1, 2) for one in (keys, values))
        mask = sees(batch, number).to(query.device)
        return F.scaled_dot_product_attention(query.transpose(1, 2), key, value, mask, enable_gqa=True).transpose(1, 2)

    return attend


def sees(batch: Packed, number: int) -> Tensor:
    """[B, 1, L, (number + 1) * L] bool."""
    place = torch.arange(batch.tokens.shape[1])
    back = place[:, None] - place
    same = (batch.document[:, :, None] == batch.document[:, None]) & (batch.document >= 0)[:, :, None]
    parts = [same & (back >= number), *(same & (back == number - earlier) for earlier in range(1, number + 1))]
    mask = torch.cat(parts, 2)
    mask[:, :, : len(place)] |= ~mask.any(2, keepdim=True) & (back == 0)  # no row of a softmax is empty
    return mask[:, None]
