"""RandAR and ARPG: windows equal one slot at a time, orders are exact, native groups are what the papers say."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor

from mmspec.acceptance import ACCEPTANCE_RULES
from mmspec.core.draft import Draft, DraftLaw
from mmspec.core.guidance import Guidance
from mmspec.core.noise import RowNoise
from mmspec.core.sampling import SamplingParams
from mmspec.core.stats import DecodeStats
from mmspec.core.verify import Guarantee, Verdict
from mmspec.drafters.jacobi import COUPLINGS, JacobiDrafter
from mmspec.image.any_order import AnyOrderModel, arpg_groups, cell_order, in_raster, randar_groups, teacher_forced
from mmspec.image.parallel_groups import ParallelDecoder
from mmspec.image.randar import RandARTransformer
from tests.oracles.any_order import NETWORKS, full_logits, open_runner, tiny_network
from tests.oracles.decode import decode, seeds
from tests.oracles.toy import string_numbers, z_score

EVERY = pytest.mark.parametrize("kind", NETWORKS)
ORDER = torch.tensor([2, 0, 3, 1])
WIDE = torch.tensor([7, 0, 11, 3, 5, 1, 9, 2, 10, 4, 8, 6])


@torch.no_grad()
def window_logits(network, tokens: Tensor, order: Tensor, window: int, wrong_first: bool = False) -> Tensor:
    """Laws (M, V) of all slots by windows of ``window`` nodes through the runner."""
    runner = open_runner(network, torch.tensor([1]), order, window)
    laws = [runner.prefill().logits[0]]
    done = 1
    while done < len(order):
        nodes = tokens[None, done - 1 : min(done - 1 + window, len(order) - 1)]
        if wrong_first:  # a rejected tail is written to the same slots before
            runner.verify(Draft((nodes + 1) % network.config.vocab_size, DraftLaw.DETERMINISTIC), done)
        laws.append(runner.verify(Draft(nodes, DraftLaw.DETERMINISTIC), done).logits[0])
        kept = torch.tensor([nodes.shape[1]])
        runner.commit(Verdict(kept - 1, nodes[:, -1], nodes), kept)
        done += nodes.shape[1]
    return torch.cat(laws)


@EVERY
@pytest.mark.parametrize("window", [1, 2, 5, 11])
def test_windows_equal_the_whole_sequence(kind: str, window: int) -> None:
    network = tiny_network(kind, 7, (3, 4))
    tokens = torch.randint(7, (12,), generator=torch.Generator().manual_seed(0))
    whole = full_logits(network, 1, tokens, WIDE)
    for wrong_first in (False, True):
        laws = window_logits(network, tokens, WIDE, window, wrong_first)
        torch.testing.assert_close(laws, whole, atol=2e-5, rtol=0)


@pytest.mark.parametrize("mutant", ["identity class rotation", "raster places", "token positions"])
@EVERY
def test_mistakes_are_found(kind: str, mutant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative controls: what public ports get wrong changes the laws."""
    network = tiny_network(kind, 7, (3, 4))
    tokens = torch.randint(7, (12,), generator=torch.Generator().manual_seed(0))
    whole = full_logits(network, 1, tokens, WIDE)
    if mutant == "identity class rotation":
        network.rotary[0, 0] = 1.0
        order = WIDE
    elif mutant == "raster places":
        order = torch.arange(12)
    else:
        order = WIDE
        plain = AnyOrderModel._run

        def shifted(self, embeds, cache, slots, mask):
            self.query_places = self.places  # reads a cell where its token is, not where it is asked for
            return plain(self, embeds, cache, slots, mask)

        monkeypatch.setattr(AnyOrderModel, "_run", shifted)
    assert (window_logits(network, tokens, order, 5) - whole).abs().max() > 1e-3


def law_of_order(network, label: int, order: Tensor) -> Tensor:
    """Probability of every string of slots, by enumeration of full passes."""
    size, cells = network.config.vocab_size, len(order)
    law = []
    for string in itertools.product(range(size), repeat=cells):
        tokens = torch.tensor(string)
        log_p = full_logits(network, label, tokens, order).double().log_softmax(-1)
        law.append(log_p.gather(1, tokens[:, None]).sum().exp())
    return torch.stack(law)


@EVERY
def test_permuted_order_keeps_the_law(kind: str) -> None:
    network = tiny_network(kind)
    law = law_of_order(network, 1, ORDER)
    count = 3000
    labels = torch.ones(count, dtype=torch.long)
    for coupling in COUPLINGS:
        drafter = JacobiDrafter(window=4, coupling=coupling, initializer="uniform", controller="fixed")
        runner = open_runner(network, labels, ORDER, 4)
        tokens = decode(runner, seeds(count), 4, drafter, ACCEPTANCE_RULES.create("ratio"))[0]
        assert abs(z_score(string_numbers(tokens, 3), law)) < 4.5
    # negative control: another order has another law
    assert z_score(string_numbers(tokens, 3), law_of_order(network, 1, ORDER.flip(0))) > 8


@EVERY
@pytest.mark.parametrize("scale", [1.0, 2.5])
def test_windows_give_the_tokens_of_plain_decoding(kind: str, scale: float) -> None:
    network = tiny_network(kind, 5, (3, 4))
    labels = torch.tensor([0, 3, 2])
    plain = decode(open_runner(network, labels, WIDE, 1, scale), seeds(3), 12)[0]
    for window in (2, 5, 12):
        drafter = JacobiDrafter(window=window, initializer="uniform", controller="fixed")
        tokens, _ = decode(open_runner(network, labels, WIDE, window, scale), seeds(3), 12, drafter)
        assert torch.equal(tokens, plain)
    alone = decode(open_runner(network, labels[1:2], WIDE, 12, scale), seeds(3)[1:2], 12, drafter)[0]
    assert torch.equal(alone[0], plain[1])


@EVERY
def test_known_cells_stay_and_the_rest_continues_them(kind: str) -> None:
    """Inpainting: the order begins with the known cells; the others are drawn as if these had been drawn."""
    network = tiny_network(kind, 5, (3, 4))
    cells = torch.tensor([5, 6, 9])
    order = cell_order("random", 12, seed=3, known=cells)
    labels = torch.tensor([2])
    whole = decode(open_runner(network, labels, order, 1), seeds(1), 12)[0]
    drafter = JacobiDrafter(window=6, initializer="uniform", controller="fixed")
    runner = open_runner(network, labels, order, 6, known=whole[:, :3])
    rest = decode(runner, seeds(1), 9, drafter)[0]
    picture = in_raster(torch.cat([whole[:, :3], rest], dim=1), order)
    assert torch.equal(picture[0, cells], whole[0, :3])
    laws = full_logits(network, 2, torch.cat([whole[0, :3], rest[0]]), order)
    again = decode(open_runner(network, labels, order, 1, known=whole[:, :3]), seeds(1), 9)[0]
    assert torch.equal(rest, again)
    assert laws.shape == (12, 5)


@torch.no_grad()
def parallel(model: AnyOrderModel, groups: list[int], rows: int, scale: float = 1.0) -> Tensor:
    """Tokens (rows, cells) of the native sampler with the seeds of :func:`seeds`."""
    noise, stats = RowNoise(seeds(rows), model.vocab_size), DecodeStats("parallel", Guarantee.LAW_OF_TRANSFORM)
    decoder = ParallelDecoder(model, groups, noise, SamplingParams(), Guidance(scale), stats)
    *_, last = decoder.steps()
    assert last.finished
    assert stats.forwards == len(groups)
    return last.tokens


@EVERY
def test_one_pass_for_training_equals_the_whole_sequence(kind: str) -> None:
    network = tiny_network(kind, 7, (3, 4))
    tokens = torch.randint(7, (2, 12), generator=torch.Generator().manual_seed(0))
    orders = torch.stack([WIDE, WIDE.flip(0)])
    with torch.no_grad():
        laws = teacher_forced(network, torch.tensor([1, 2]), tokens, orders)
    for row, label in enumerate((1, 2)):
        torch.testing.assert_close(laws[row], full_logits(network, label, tokens[row], orders[row]), atol=2e-5, rtol=0)


@EVERY
@pytest.mark.parametrize("scale", [1.0, 2.0])
def test_groups_of_one_are_plain_decoding(kind: str, scale: float) -> None:
    network = tiny_network(kind, 5, (3, 4))
    labels, guided = torch.tensor([0, 3]), scale != 1
    plain = decode(open_runner(network, labels, WIDE, 1, scale), seeds(2), 12)[0]
    assert torch.equal(parallel(AnyOrderModel(network, labels, WIDE, guided), [1] * 12, 2, scale), plain)
    rest = decode(open_runner(network, labels, WIDE, 1, scale, known=plain[:, :4]), seeds(2), 8)[0]
    model = AnyOrderModel(network, labels, WIDE, guided, known=plain[:, :4])
    assert torch.equal(parallel(model, [1] * 8, 2, scale), rest)
    with pytest.raises(ValueError, match="8 cells"):
        parallel(model, [1] * 12, 2, scale)


@EVERY
def test_a_group_is_drawn_from_its_own_independent_laws(kind: str) -> None:
    """Two groups of two: enumerated; the joint law of one slot after the other is another one."""
    network = tiny_network(kind)
    count = 3000
    model = AnyOrderModel(network, torch.ones(count, dtype=torch.long), ORDER)
    tokens = parallel(model, [2, 2], count)
    observed = string_numbers(tokens, 3)
    assert abs(z_score(observed, _group_law(network, kind))) < 4.5
    assert z_score(observed, law_of_order(network, 1, ORDER)) > 8


def _group_law(network, kind: str) -> Tensor:
    """Law of groups (2, 2): slots 0 and 1 given the class; slots 2 and 3 given the class and slots 0 and 1."""
    law = torch.zeros(81, dtype=torch.float64)
    for number, string in enumerate(itertools.product(range(3), repeat=4)):
        tokens = torch.tensor(string)
        first = full_logits(network, 1, tokens, ORDER)
        p = [first[0], _second(network, tokens[:0]), first[2], _second(network, tokens[:2])]
        law[number] = torch.stack([x.double().softmax(-1)[t] for x, t in zip(p, string, strict=True)]).prod()
    return law


@torch.no_grad()
def _second(network, known: Tensor) -> Tensor:
    """Law (V,) of the second cell of the group after ``known``: its query follows the group's first query directly."""
    from mmspec.models.layers import apply_rotary

    done = len(known)
    table = network.rotary
    if not isinstance(network, RandARTransformer):  # queries do not see one another: ask for the cell at once
        order = torch.cat([ORDER[:done], ORDER[done + 1 : done + 2], ORDER[done : done + 1], ORDER[done + 2 :]])
        tokens = torch.cat([known, torch.zeros(4 - done, dtype=torch.long)])
        return full_logits(network, 1, tokens, order)[done]
    query = network.query_embedding.view(network.config.num_heads, -1)
    sequence, places = [network.embed_classes(torch.tensor([1]))[0]], [0]
    for slot in range(done + 2):
        place = int(ORDER[slot]) + 1
        sequence.append(apply_rotary(query, (table[place, 0], table[place, 1])).flatten())
        places.append(place)
        if slot < done:
            sequence.append(network.embed_tokens(known[slot : slot + 1])[0])
            places.append(place)
    hidden = torch.stack(sequence)[None]
    rotary = (table[places][None, :, 0, None], table[places][None, :, 1, None])
    mask = torch.ones(hidden.shape[1], hidden.shape[1], dtype=torch.bool).tril()
    for block in network.layers:
        hidden = block(hidden, rotary, mask, None, 0)
    return network.head(network.norm(hidden))[0, -1]


def test_published_schedules() -> None:
    randar = randar_groups(256, 88)
    assert (len(randar), sum(randar), randar[:24], max(randar)) == (88, 256, [1] * 24, 5)
    assert randar_groups(256, 256) == [1] * 256
    arccos = arpg_groups(256, 32)
    assert (len(arccos), sum(arccos), arccos[:8], arccos[-4:]) == (32, 256, [6, 5, 5, 5, 5, 5, 5, 6], [11, 14, 17, 40])
    cosine = arpg_groups(256, 64, "cosine")
    assert (sum(cosine), cosine[:13], cosine[13:18], max(cosine)) == (256, [1] * 13, [2, 3, 2, 2, 3], 7)
    for wrong in (0, 257):
        with pytest.raises(ValueError, match="steps"):
            randar_groups(256, wrong)
    with pytest.raises(ValueError, match="arccos"):
        arpg_groups(256, 8, "linear")


def test_orders() -> None:
    assert cell_order("raster", 4).tolist() == [0, 1, 2, 3]
    assert cell_order("raster", 4, known=torch.tensor([2])).tolist() == [2, 0, 1, 3]
    assert sorted(cell_order("random", 9, seed=1).tolist()) == list(range(9))
    for wrong in (torch.tensor([1, 1]), torch.tensor([4])):
        with pytest.raises(ValueError, match="known"):
            cell_order("raster", 4, known=wrong)
    with pytest.raises(ValueError, match="raster, random"):
        cell_order("spiral", 4)
    with pytest.raises(ValueError, match="once"):
        AnyOrderModel(tiny_network("randar"), torch.tensor([0]), torch.tensor([0, 1, 1, 2]))
