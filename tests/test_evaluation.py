"""Count tables against a literal loop over images, in one place and summed over participants."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from asterism.aggregate import answered
from asterism.data.augment import plain
from asterism.evaluation import ask_evaluation, count_tables, evaluate, measure, scores
from asterism.flow import Reply, State, Total
from asterism.model import Architecture
from asterism.seeds import generator
from asterism.site import Share, Site, perform
from asterism.worker import Worker
from tests.synthetic import SHAPE, Tiny, copied, everything, pictures, same_bits

Tables = dict[str, Tensor]


def guessing(rows: int) -> Worker:
    """An untrained network whose guesses spread over all rows."""
    worker = Worker.of(Architecture(name="tests.synthetic:Flat"), SHAPE, rows, seed=3)
    worker.network.head.weight.data.normal_(generator=generator(11, "rows"))
    return worker


def state_of(worker: Worker, stage: str, classes: int) -> State:
    return State(stage, 2, worker.take(), worker.layout.id, tuple(f"class {i}" for i in range(classes)))


def literal(worker: Worker, share: Share, known: int, classes: int, rows: int) -> dict[str, list[list[float]]]:
    """The three tables, image by image."""
    tables = {
        "known": [[0.0] * known for _ in range(known)],
        "novel": [[0.0] * (rows - known) for _ in range(classes - known)],
        "joint": [[0.0] * rows for _ in range(classes)],
    }
    for index in share.indices.tolist():
        with torch.no_grad():
            logits = worker.network.eval()(plain(share.images.pixels[index : index + 1]))[0].tolist()
        label = int(share.targets[index])

        def best(values: list[float]) -> int:
            return max(range(len(values)), key=values.__getitem__)

        tables["joint"][label][best(logits[:rows])] += 1
        if label < known:
            tables["known"][label][best(logits[:known])] += 1
        elif rows > known:
            tables["novel"][label - known][best(logits[known:rows])] += 1
    return tables


@pytest.mark.parametrize(
    ("known", "classes", "rows", "network_rows"),
    [(4, 4, 4, 4), (4, 4, 4, 16), (2, 4, 4, 4), (2, 4, 3, 3), (2, 4, 7, 7), (3, 4, 3, 3), (1, 4, 5, 9)],
)
@pytest.mark.parametrize("batch", [1, 7, 1024])
def test_tables_equal_the_loop(known: int, classes: int, rows: int, network_rows: int, batch: int) -> None:
    worker, share = guessing(network_rows), everything(pictures(9))
    tables = count_tables(worker, share, known=known, classes=classes, rows=rows, batch=batch)
    expected = literal(worker, share, known, classes, rows)
    for name, table in tables.items():
        assert table.dtype == torch.float32
        assert table.tolist() == expected[name], name
    assert tables["joint"].sum() == 36 and tables["known"].sum() == 9 * known


def test_rows_of_turned_classes_are_never_predicted() -> None:
    worker, share = guessing(16), everything(pictures(9))
    worker.network.head.weight.data[4:] *= 1000
    with torch.no_grad():
        assert (worker.network.eval()(plain(share.images.pixels)).argmax(dim=1) >= 4).any()
    tables = count_tables(worker, share, known=4, classes=4, rows=4)
    assert tables["joint"].shape == (4, 4) and tables["joint"].sum() == 36
    assert torch.equal(tables["joint"], tables["known"])


def test_only_the_images_of_the_share_are_counted() -> None:
    share = everything(pictures(9))
    part = Share(share.images, share.targets, torch.tensor([0, 1, 20, 35]))
    tables = count_tables(guessing(4), part, known=4, classes=4, rows=4)
    assert tables["joint"].sum(dim=1).tolist() == [2, 0, 1, 1]


def test_images_without_a_label_are_left_out() -> None:
    share = everything(pictures(9))
    targets = share.targets.clone()
    targets[5:12] = -1
    unlabelled = Share(share.images, targets, share.indices)
    left = Share(share.images, share.targets, torch.tensor([*range(5), *range(12, 36)]))
    worker = guessing(4)
    ours, expected = (count_tables(worker, s, known=2, classes=4, rows=4) for s in (unlabelled, left))
    assert same_bits(ours, expected)
    site = Site("a", lambda stage: unlabelled, {}, worker)
    reply = perform(site, ask_evaluation(state_of(worker, "known", 4), ("a",), 2, 4), {"evaluate": evaluate})
    assert same_bits(reply.tensors, expected) and reply.metrics == {"samples": 29.0}


def test_an_empty_share_gives_tables_of_zeros() -> None:
    share = Share(pictures(), pictures().labels, torch.arange(0))
    tables = count_tables(guessing(4), share, known=2, classes=4, rows=4)
    assert [tuple(t.shape) for t in tables.values()] == [(2, 2), (2, 2), (4, 4)]
    assert not any(table.any() for table in tables.values())


def test_measuring_changes_no_statistics_and_asks_for_no_gradient() -> None:
    tiny = Tiny()
    state = tiny.run()
    before = copied(state.tensors)
    tables = measure(state, tiny.worker, everything(pictures(9)), 4, 4)
    assert same_bits(tiny.worker.take(), before) and same_bits(state.tensors, before)
    assert not tiny.worker.gradient.requires_grad
    assert isinstance(tables["joint"], np.ndarray)


def test_participants_tables_add_up_to_the_central_one() -> None:
    tiny = Tiny(
        shares={"a": torch.arange(0, 10), "b": torch.arange(10, 47), "c": torch.arange(0), "d": torch.tensor([47])}
    )
    state = tiny.run()
    ask = ask_evaluation(state, tuple(tiny.shares), known=2, classes=4)
    total = tiny.answer(ask)
    assert isinstance(total, Total)
    assert (total.replies, total.contributors, total.failures) == (4, 3, ())
    assert total.metrics == {"samples": 48.0}
    central = measure(state, tiny.worker, everything(tiny.images), 2, 4)
    assert total.tensors.keys() == central.keys()
    for name, table in central.items():
        np.testing.assert_array_equal(total.tensors[name].numpy(), table)
    assert set(ask.tensors) == {"parameters", "buffers", "counters"}


def test_what_only_an_algorithm_needs_is_not_sent_for_evaluation() -> None:
    worker = guessing(4)
    state = state_of(worker, "known", 4)
    state = replace(state, tensors={**state.tensors, "variate": torch.zeros(3)})
    ask = ask_evaluation(state, ("a",), 4, 4)
    assert "variate" not in ask.tensors
    assert ask.options == {"stage": "known", "known": 4, "classes": 4, "rows": 4, "calibration": "raw"}
    assert ask.version == state.version


def test_a_participant_without_images_of_the_stage_adds_nothing() -> None:
    worker = guessing(4)
    empty = Share(pictures(), pictures().labels, torch.arange(0))
    ask = ask_evaluation(state_of(worker, "known", 4), ("a",), 4, 4)
    reply = perform(Site("a", lambda stage: empty, {}, worker), ask, {"evaluate": evaluate})
    assert reply == Reply({}, 0.0, {}, ask.version)
    assert answered(ask, [("a", reply)]) == Total({}, 0.0, 1, 0)


def tables(known: list[list[int]], novel: list[list[int]], joint: list[list[int]]) -> dict[str, np.ndarray]:
    shaped = {"known": np.array(known, dtype=float), "novel": np.array(novel, dtype=float)}
    return {**shaped, "joint": np.array(joint, dtype=float)}


def test_scores_by_hand() -> None:
    told = scores(
        tables(
            known=[[8, 2], [0, 10]],
            novel=[[0, 9, 1], [10, 0, 0]],  # rows 3 and 2 are classes 2 and 3
            joint=[[6, 2, 2, 0, 0], [0, 10, 0, 0, 0], [1, 0, 0, 8, 1], [0, 0, 10, 0, 0]],
        )
    )
    assert told["headwise"] == pytest.approx({"known": 90.0, "novel": 95.0, "all": 92.5})
    assert told["joint"] == pytest.approx({"known": 80.0, "novel": 90.0, "all": 85.0})
    assert isinstance(told["nmi"], float) and 0 < told["nmi"] < 100
    assert isinstance(told["ari"], float) and 0 < told["ari"] < 100


def test_before_any_novel_stage_novel_scores_are_none() -> None:
    told = scores({**tables([[3, 1], [0, 4]], [], [[3, 1], [0, 4]]), "novel": np.zeros((0, 0))})
    assert told["headwise"] == {"known": 87.5, "novel": None, "all": 87.5}
    assert told["joint"] == {"known": 87.5, "novel": None, "all": 87.5}
    assert told["nmi"] is None and told["ari"] is None


def test_without_images_there_is_nothing_to_say() -> None:
    told = scores(tables([[0, 0], [0, 0]], [[0, 0]], [[0, 0, 0, 0]] * 3))
    nothing = {"known": None, "novel": None, "all": None}
    assert told == {"headwise": nothing, "joint": nothing, "nmi": None, "ari": None}
