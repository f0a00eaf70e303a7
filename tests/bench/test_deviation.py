"""Sets of one law are close, sets of different laws are not."""

import pytest
import torch

from mmspec.bench.deviation import code_distance, colour_distance


def _tokens(seed: int, weights: list[int]) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.multinomial(torch.tensor(weights).float(), 200 * 9, replacement=True, generator=generator).view(
        200, 9
    )


PROMPTS = [str(index) for index in range(200)]


def test_code_distance_tells_laws_apart() -> None:
    codebook = torch.eye(4)
    plain, same = _tokens(0, [4, 3, 2, 1]), _tokens(1, [4, 3, 2, 1])
    other = _tokens(2, [1, 2, 3, 4])
    assert abs(code_distance(plain, same, PROMPTS, codebook)) < 0.01
    assert code_distance(plain, other, PROMPTS, codebook) > 0.05


def test_code_distance_of_equal_laws_is_nothing_when_pictures_depend_on_their_prompts() -> None:
    codebook, prompts = torch.eye(4), ["a", "b"] * 100
    weights = ([9, 1, 0, 0], [0, 0, 1, 9])

    def pictures(seed: int) -> torch.Tensor:
        return torch.stack([_tokens(seed + half, weight)[:100] for half, weight in enumerate(weights)], dim=1).flatten(
            0, 1
        )

    assert abs(code_distance(pictures(0), pictures(10), prompts, codebook)) < 0.01
    # negative control: the second set in another order, as if its prompts were exchanged
    assert abs(code_distance(pictures(0), pictures(10).flip(0), prompts, codebook)) > 0.1


def test_code_distance_counts_near_codes_less() -> None:
    near = torch.tensor([[0.0], [0.1], [5.0], [5.1]])
    plain = _tokens(0, [1, 0, 1, 0])
    assert code_distance(plain, plain + 1, PROMPTS, near) < code_distance(
        plain, _tokens(1, [1, 0, 0, 0]), PROMPTS, near
    )


def test_code_distance_needs_two_prompts_and_sets_of_one_size() -> None:
    with pytest.raises(ValueError, match="no spread"):
        code_distance(torch.zeros(2, 3).long(), torch.zeros(2, 3).long(), ["a", "a"], torch.eye(2))
    with pytest.raises(ValueError, match="one each"):
        code_distance(torch.zeros(1, 3).long(), torch.zeros(2, 3).long(), ["a", "b"], torch.eye(2))


def test_colour_distance_is_a_total_variation() -> None:
    black, white = torch.zeros(2, 3, 4, 4), torch.ones(2, 3, 4, 4)
    assert colour_distance(black, black) == 0
    assert colour_distance(black, white) == 1
    assert colour_distance(black, torch.cat([black[:1], white[:1]])) == pytest.approx(0.5)
