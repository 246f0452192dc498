"""What a process holds of a line: any cut of a tensor, and any stretch of a cut."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedgossip.learning.one_model.weights import Place, chunk

LINE = np.arange(100, dtype=np.float32)


@pytest.mark.parametrize("shape", [(6, 4), (5, 3, 2), (7,)])
@pytest.mark.parametrize("parts", [1, 2, 3, 8])
@pytest.mark.parametrize("axis", [0, 1])
def test_the_parts_of_a_tensor_are_those_of_torch(shape: tuple[int, ...], parts: int, axis: int) -> None:
    axis = min(axis, len(shape) - 1)
    whole = Place.tensor(10, shape)
    tensor = torch.from_numpy(whole.take(LINE)).view(shape)
    expected = [part.flatten().numpy() for part in torch.chunk(tensor, parts, axis)]
    places = [whole.divided(axis, part, parts) for part in range(parts)]
    found = [place.take(LINE) for place in places]
    assert [len(one) for one in found] == [place.size for place in places]
    assert all(np.array_equal(*pair) for pair in zip(found, expected, strict=False))
    assert not any(len(one) for one in found[len(expected) :])  # torch.chunk leaves out empty parts


@pytest.mark.parametrize("axis", [0, 1])
def test_what_is_written_part_by_part_is_the_whole_and_nothing_beside_it(axis: int) -> None:
    """Parts of parts too: each cut is divided again, in rows, and none of them covers another's elements."""
    line, whole = np.zeros(100, np.float32), Place.tensor(20, (6, 5))
    for first in range(2):
        cut = whole.divided(axis, first, 2)
        for second in range(3):
            place = cut.between(*chunk(cut.size, second, 3))
            assert not place.take(line).any()
            place.put(line, place.take(LINE))
    assert np.array_equal(line[20:50], LINE[20:50])
    assert not line[:20].any() and not line[50:].any()


def test_a_line_may_lack_what_lies_before() -> None:
    place, vector = Place.tensor(30, (4, 5)).divided(1, 1, 2), LINE[25:].copy()
    assert np.array_equal(place.take(vector, 25), place.take(LINE))
    place.put(vector, np.zeros(place.size, np.float32), 25)
    assert vector.sum() == LINE[25:].sum() - place.take(LINE).sum()


def test_a_place_knows_how_much_of_it_is_personal() -> None:
    assert [Place.stretch(0, 50).count_before(end) for end in (0, 20, 90)] == [0, 20, 50]
    assert Place.tensor(0, (4, 5)).divided(1, 0, 2).count_before(20) == 8 + 4  # all of it
    assert Place.tensor(20, (4, 5)).divided(1, 0, 2).count_before(20) == 0
