"""Tokens that came together make the same outputs as updates, and what has to be looked at comes as updates."""

from __future__ import annotations

import numpy as np

from jaxengine.contract.outputs import RequestOutput
from jaxengine.contract.sampling_params import RequestOutputKind
from jaxengine.contract.step_updates import Gained, Roster
from jaxengine.contract.updates import Admission, SequenceUpdate
from jaxengine.front.postprocess import Postprocessor, Progress
from jaxengine.front.token_sinks import TokenSinks
from tests.harness import make_request

ADMISSION = Admission(weight_version="1")


def begun(request_id: str, kind: RequestOutputKind) -> Progress:
    progress = Postprocessor(None, output_kind=kind).begin(make_request(request_id, [1, 2], max_tokens=5))
    progress.take(SequenceUpdate.of_token(request_id, 0, 3, None, Admission(weight_version="0"), 0))
    return progress


def test_tokens_go_where_updates_would_have_put_them() -> None:
    kinds = {"quiet": RequestOutputKind.FINAL_ONLY, "stream": RequestOutputKind.DELTA}
    open_ = {name: begun(name, kind) for name, kind in kinds.items()}
    away = {"late": begun("late", RequestOutputKind.DELTA)}
    sinks = TokenSinks(lambda name: (name, open_[name]) if name in open_ else None)
    roster = Roster(["quiet", "late", "stream"], [0, 0, 0], [ADMISSION] * 3)

    def step(*tokens: int, position: int, rows: list[int] | None = None) -> tuple[list[str], list[SequenceUpdate]]:
        places = None if rows is None else np.array(rows, np.int32)
        columns = np.array(tokens, np.int32), np.full(len(tokens), position, np.int32)
        return sinks.take(Gained(roster, *columns, rows=places))

    told, left = step(4, 5, 6, position=1)
    assert (told, len(left)) == ([], 3)  # nobody knows yet whether this roster lasts
    for update in left:
        (open_ | away)[update.request_id].take(update)
    told, left = step(4, 5, 6, position=2)
    assert told == ["stream"]
    assert left == [SequenceUpdate.of_token("late", 0, 5, None, ADMISSION, 2)]
    away["late"].take(left[0])
    open_ |= away  # it has taken all that came before
    assert step(7, 8, position=3, rows=[1, 2]) == (["late", "stream"], [])

    output, _ = open_["late"].tell()
    assert isinstance(output, RequestOutput)
    assert output.outputs[0].token_ids == (3, 5, 5, 7)
    output, _ = open_["stream"].tell()
    assert isinstance(output, RequestOutput)
    assert output.outputs[0].token_ids == (3, 6, 6, 8)
    assert [(each.version, each.num_tokens) for each in output.outputs[0].weight_versions] == [("0", 1), ("1", 3)]
    end = SequenceUpdate("quiet", 0, (9,), (None,), ADMISSION, finish_reason="length", position=3)
    output, _ = open_["quiet"].process([end])
    assert isinstance(output, RequestOutput)
    assert output.outputs[0].token_ids == (3, 4, 4, 9)


def test_what_came_as_updates_is_taken_before_more_is_put_beside_it() -> None:
    open_ = {"a": begun("a", RequestOutputKind.FINAL_ONLY)}
    waiting: list[SequenceUpdate] = []
    sinks = TokenSinks(lambda name: None if waiting else (name, open_[name]))
    roster = Roster(["a"], [0], [ADMISSION])

    def gained(token: int, position: int) -> Gained:
        return Gained(roster, np.array([token], np.int32), np.array([position], np.int32))

    for update in sinks.take(gained(4, 1))[1]:
        open_["a"].take(update)
    assert sinks.take(gained(5, 2)) == ([], [])  # it is known where they go
    for part in ([SequenceUpdate.of_token("a", 0, 6, None, ADMISSION, 3)], gained(7, 4), gained(8, 5)):
        waiting += sinks.take(part)[1]
    end = SequenceUpdate("a", 0, (9,), (None,), ADMISSION, finish_reason="length", position=6)
    output, _ = open_["a"].process([*waiting, end])
    assert isinstance(output, RequestOutput)
    assert output.outputs[0].token_ids == (3, 4, 5, 6, 7, 8, 9)
