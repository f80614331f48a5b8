"""What ranks return arrives as it was, on CPU, in rank order."""

import pytest
import torch

import labkit


def returned(fn, world_size=2):
    return labkit.launch(fn, world_size=world_size, live=False).results


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.arange(10.0, dtype=torch.bfloat16),
        lambda: torch.empty(0, 3),
        lambda: torch.tensor(3.5, dtype=torch.float64),
        lambda: torch.tensor([True, False]),
        lambda: torch.arange(12).view(3, 4).t(),
        lambda: torch.arange(12)[3:5],
        lambda: torch.ones(2, 3).expand(4, 2, 3),
        lambda: torch.tensor([1 + 2j]).conj(),
        lambda: torch.arange(4, dtype=torch.int16),
        lambda: torch.eye(3).to_sparse(),
    ],
    ids="bfloat16 empty 0-dim bool transposed view expanded conjugate int16 sparse".split(),
)
def test_tensors(make):
    expected = make()
    for tensor in returned(lambda rank: make(), world_size=1):
        assert tensor.dtype == expected.dtype and tensor.shape == expected.shape
        assert torch.equal(tensor.to_dense(), expected.to_dense())
        assert tensor.device.type == "cpu"


def test_a_parameter_keeps_its_gradient():
    def step(rank):
        weight = torch.nn.Parameter(torch.full((3,), float(rank.rank)))
        (2 * weight).sum().backward()
        return weight

    for rank, weight in enumerate(returned(step)):
        assert isinstance(weight, torch.nn.Parameter) and weight.requires_grad
        assert weight.tolist() == [rank] * 3 and weight.grad.tolist() == [2.0] * 3


def test_a_result_of_a_computation_is_detached():
    def step(rank):
        return torch.ones(3, requires_grad=True) * 2

    assert not returned(step)[0].requires_grad


def test_a_200_mb_state_dict_of_each_rank():
    def step(rank):
        net = torch.nn.Linear(5000, 10_000)
        torch.nn.init.constant_(net.weight, rank.rank)
        return net.state_dict()

    for rank, state in enumerate(returned(step)):
        assert state["weight"].shape == (10_000, 5000)
        assert (state["weight"] == rank).all()


def test_tensors_of_a_result_can_be_changed():
    tensor = returned(lambda rank: torch.zeros(3))[0]
    tensor += 1
    assert tensor.tolist() == [1.0] * 3


def test_tied_weights_stay_tied():
    def step(rank):
        weight = torch.nn.Parameter(torch.ones(2))
        return {"embed": weight, "head": weight}

    result = returned(step)[0]
    assert result["embed"] is result["head"]


def test_objects_of_the_learners_own_classes():
    class Note:
        def __init__(self, text):
            self.text = text

    (note,) = returned(lambda rank: Note("kept"), world_size=1)
    assert isinstance(note, Note) and note.text == "kept"
