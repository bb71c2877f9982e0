"""How many rows and tokens a lane may take beside others: the reckoning, without an engine."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from hotreload.engine.capabilities import BatchSize
from hotreload.engine.lanes.compiled_sizes import CompiledSizes
from hotreload.engine.lanes.lane import Bound, Lane
from hotreload.engine.lanes.pool_shares import SHADOW_ROWS, STEPS_KEPT, PoolShares, Share

PAGE = 4
LIMIT = 8
ALL_ROWS = LIMIT + SHADOW_ROWS


class Pool:
    """An allocator that knows only how much is free."""

    def __init__(self, free: int) -> None:
        self.free_tokens = free
        self.page_size = PAGE

    def available_size(self) -> int:
        return self.free_tokens


def request(prompt: int = 10, most: int = 20, made: int = 0, computed: int = 0) -> Any:
    return SimpleNamespace(
        origin_input_ids=[0] * prompt,
        output_ids=[0] * made,
        prefix_indices=[0] * computed,
        sampling_params=SimpleNamespace(max_new_tokens=most),
    )


class Kind:
    """Lanes whose state is three lists; it notes what is sent back and given back."""

    row_limit = "row_limit"

    def __init__(self, pool: Pool) -> None:
        self.did: list[str] = []
        self.cached: dict[str, int] = {}
        self._pool = pool

    def list_running(self, look: Any) -> Any:
        return look("running")

    def find_chunked(self, look: Any) -> Any:
        return look("chunked")

    def evict(self, tree: str, tokens: int) -> None:
        given = min(tokens, self.cached.get(tree, 0))
        self.cached[tree] = self.cached.get(tree, 0) - given
        self._pool.free_tokens += given
        self.did.append(f"evict {tree}")

    def note_room(self, scheduler: Any) -> None:
        self.did.append("note room")

    def retract(self, scheduler: Any) -> None:
        self.did.append("retract")

    def retract_chunked(self, scheduler: Any) -> None:
        self.did.append("retract chunked")


class Lanes:
    """An old and a new lane, and one in which weights are proven."""

    def __init__(self, free: int = 1000, rows: int = ALL_ROWS) -> None:
        self.pool = Pool(free)
        self.kind = Kind(self.pool)
        self.scheduler: Any = SimpleNamespace(
            token_to_kv_pool_allocator=self.pool,
            row_limit=LIMIT,
            page_size=PAGE,
            tp_worker=SimpleNamespace(get_precompile_paddings=lambda: ([8, 16, 32], [], [])),
            chunked_prefill_size=16,
            is_mixed_chunk=False,
            req_to_token_pool=SimpleNamespace(free_slots=list(range(rows)), size=ALL_ROWS),
            running_batch=SimpleNamespace(batch_size=lambda: 0),
        )
        self.old = self._lane("old")
        self.new = self._lane("new")
        self.shadow = self._lane("shadow", has_own_pool=True)
        self.lanes = [self.old, self.new, self.shadow]
        kind: Any = self.kind
        self.turns_between = 1
        self.compiled = CompiledSizes()
        self.sharing = PoolShares(
            self.scheduler, kind, self.lanes, lambda lane: self.turns_between, self.compiled
        )

    def _lane(self, name: str, *, has_own_pool: bool = False) -> Lane:
        bound: Any = Bound([], None)
        lane = Lane(self.scheduler, 0, bound, has_own_pool=has_own_pool)
        lane.leave_with(
            {
                "running": [],
                "chunked": None,
                "waiting_queue": [],
                "tree_cache": name,
                "new_token_ratio": 0.5,
                "token_to_kv_pool_allocator": Share(self.pool),
            }
        )
        return lane

    def put(self, lane: Lane, **state: Any) -> None:
        assert lane._state is not None
        lane._state.update(state)

    def admits(self, lane: Lane) -> tuple[int, int] | None:
        """The tokens and the rows that upstream sees when this lane admits; None: it may not."""

        def look() -> tuple[int, int]:
            free: int = lane.look("token_to_kv_pool_allocator").available_size()
            return free, self.scheduler.row_limit

        seen: tuple[int, int] | None = self.sharing.admit(lane, look)
        return seen


@pytest.fixture
def lanes() -> Lanes:
    return Lanes()


def test_a_lane_alone_sees_all_there_is(lanes: Lanes) -> None:
    del lanes.lanes[1:]
    assert lanes.admits(lanes.old) == (1000, LIMIT)


def test_what_the_requests_of_the_other_are_likely_to_need_is_kept_from_each(lanes: Lanes) -> None:
    lanes.put(lanes.old, running=[request(most=100, made=20)])
    lanes.put(lanes.new, running=[request(most=60)])
    assert lanes.admits(lanes.new) == (1000 - 40, LIMIT)
    assert lanes.admits(lanes.old) == (1000 - 30, LIMIT)


def test_after_it_has_admitted_only_the_next_steps_of_the_older_are_kept(lanes: Lanes) -> None:
    lanes.put(lanes.old, running=[request(most=100)] * 3)
    lanes.admits(lanes.new)
    share = lanes.new.look("token_to_kv_pool_allocator")
    assert share.available_size() == 1000 - (STEPS_KEPT + 1) * 3 * PAGE
    lanes.admits(lanes.old)
    assert lanes.old.look("token_to_kv_pool_allocator").available_size() == 1000


def test_what_the_first_who_waits_in_the_older_lane_needs_is_kept_from_the_younger(
    lanes: Lanes,
) -> None:
    lanes.put(lanes.old, waiting_queue=[request(prompt=10, most=20), request()])
    assert lanes.admits(lanes.new) == (1000 - 31, LIMIT)


def test_a_prompt_half_computed_needs_its_rest_and_its_answer(lanes: Lanes) -> None:
    lanes.put(lanes.old, chunked=request(prompt=40, computed=16, most=20))
    assert lanes.admits(lanes.new) == (1000 - (40 - 16) - 10, LIMIT)


def test_the_younger_sends_all_back_when_the_older_cannot_take_its_next_step(
    lanes: Lanes,
) -> None:
    lanes.pool.free_tokens = (STEPS_KEPT + 1) * 2 * PAGE - 1
    lanes.put(lanes.old, running=[request()] * 2)
    lanes.put(lanes.new, running=[request()])
    assert lanes.admits(lanes.new) is None
    assert lanes.kind.did[-1] == "retract"
    assert lanes.sharing.times_given_way == 1


def test_the_older_never_gives_way(lanes: Lanes) -> None:
    lanes.pool.free_tokens = 0
    lanes.put(lanes.old, running=[request()] * 2)
    lanes.put(lanes.new, running=[request()])
    assert lanes.admits(lanes.old) == (0, LIMIT)
    assert lanes.sharing.times_given_way == 0


def test_its_own_prefixes_go_before_it_gives_way(lanes: Lanes) -> None:
    lanes.pool.free_tokens = 0
    lanes.kind.cached["new"] = 100
    lanes.put(lanes.old, running=[request()])
    assert lanes.admits(lanes.new) is not None
    assert "evict new" in lanes.kind.did
    assert lanes.sharing.times_given_way == 0


def test_prefixes_of_the_others_go_when_it_would_wait_for_them(lanes: Lanes) -> None:
    lanes.kind.cached["old"] = 100
    lanes.put(lanes.new, waiting_queue=[request()])
    lanes.sharing.admit(lanes.new, lambda: None)
    assert lanes.kind.cached["old"] == 0


def test_a_piece_of_a_prompt_that_finds_no_room_goes_back(lanes: Lanes) -> None:
    lanes.pool.free_tokens = PAGE
    lanes.put(lanes.old, chunked=request(prompt=40, computed=16))
    assert lanes.admits(lanes.old) is not None
    assert lanes.kind.did[-1] == "retract chunked"


def test_rows_are_counted_over_both_lanes_and_some_stay_free() -> None:
    lanes = Lanes(rows=SHADOW_ROWS + 3)
    assert lanes.admits(lanes.new) == (1000, 3)
    assert lanes.scheduler.row_limit == LIMIT


def test_those_that_run_keep_their_rows() -> None:
    lanes = Lanes(rows=SHADOW_ROWS)
    lanes.scheduler.running_batch.batch_size = lambda: 5
    assert lanes.admits(lanes.new) == (1000, 5)


def test_the_rows_that_stay_free_are_for_the_lane_in_which_weights_are_proven() -> None:
    lanes = Lanes(rows=SHADOW_ROWS)
    assert lanes.admits(lanes.new) == (1000, 0)
    assert lanes.admits(lanes.shadow) == (1000, LIMIT)


def test_rows_that_prompts_of_a_probe_have_are_taken_from_nobody() -> None:
    lanes = Lanes(rows=SHADOW_ROWS - 3 + 2)
    lanes.put(lanes.shadow, running=[request()] * 3)
    assert lanes.admits(lanes.new) == (1000, 2)


def test_a_lane_that_looks_seldom_keeps_room_for_all_steps_until_it_looks_again(
    lanes: Lanes,
) -> None:
    lanes.turns_between = 4
    lanes.pool.free_tokens = (STEPS_KEPT + 4) * 2 * PAGE - 1
    lanes.put(lanes.old, running=[request()] * 2)
    lanes.put(lanes.new, running=[request()])
    assert lanes.admits(lanes.new) is None
    lanes.pool.free_tokens += 1 + PAGE  # and a page for its own step
    assert lanes.admits(lanes.new) is not None


def test_a_pool_with_no_rows_to_spare_gets_some() -> None:
    lanes = Lanes()
    rows = SimpleNamespace(size=LIMIT, free_slots=list(range(LIMIT)))
    rows.req_to_token = np.ones((LIMIT, 3), np.int32)
    lanes.scheduler.req_to_token_pool = rows
    kind: Any = lanes.kind
    for _ in range(2):
        PoolShares(lanes.scheduler, kind, lanes.lanes, lambda lane: 1, lanes.compiled)
        assert (rows.size, rows.free_slots) == (ALL_ROWS, list(range(ALL_ROWS)))
        assert rows.req_to_token.shape == (ALL_ROWS, 3)


def test_a_limit_is_as_it_was_when_admitting_fails(lanes: Lanes) -> None:
    def fail() -> None:
        assert lanes.scheduler.row_limit < LIMIT
        raise ValueError("inside")

    lanes.scheduler.req_to_token_pool.free_slots = list(range(SHADOW_ROWS + 2))
    with pytest.raises(ValueError, match="inside"):
        lanes.sharing.admit(lanes.new, fail)
    assert lanes.scheduler.row_limit == LIMIT


def test_room_is_looked_for_anew_once_more_when_the_other_lane_has_ended(lanes: Lanes) -> None:
    lanes.admits(lanes.new)
    del lanes.lanes[0], lanes.lanes[1:]
    lanes.kind.did.clear()
    lanes.admits(lanes.new)
    lanes.admits(lanes.new)
    assert lanes.kind.did == ["note room"]


def test_a_share_of_a_pool_is_the_pool_in_all_else() -> None:
    pool = Pool(10)
    share = Share(pool)
    share.kept = 20
    assert share.available_size() == 0
    assert share.page_size == PAGE


def test_while_sizes_are_missing_clients_have_as_many_rows_as_what_is_compiled_holds(
    lanes: Lanes,
) -> None:
    """Also beside another lane; what is proven has its own rows, and programs."""
    lanes.compiled.is_kept_to = True
    lanes.compiled.sizes.add(BatchSize(False, 2, 2, 16))
    assert lanes.admits(lanes.new) == (1000, 2)
    assert lanes.admits(lanes.shadow) == (1000, LIMIT)
    del lanes.lanes[1:]
    assert lanes.admits(lanes.old) == (1000, 2)


def test_beside_clients_what_is_proven_reads_prompts_in_pieces_of_the_smallest_size(
    lanes: Lanes,
) -> None:
    """Their next token waits for each piece: two busy loops beside a tiny model made it 1.6 s."""
    scheduler = lanes.scheduler

    def piece(lane: Lane) -> Any:
        return lanes.sharing.admit(lane, lambda: scheduler.chunked_prefill_size)

    assert piece(lanes.shadow) == 16
    lanes.shadow.prompts = 2  # what we ask, and no candidate's
    assert piece(lanes.shadow) == 8
    lanes.shadow.prompts = 0
    lanes.put(lanes.old, running=[request()])
    assert (piece(lanes.shadow), piece(lanes.old), scheduler.chunked_prefill_size) == (8, 16, 16)
    scheduler.page_size = 3
    assert piece(lanes.shadow) == 6
    scheduler.page_size = 12
    assert piece(lanes.shadow) == 12
    scheduler.chunked_prefill_size = None  # without pieces a prompt is computed whole
    assert piece(lanes.shadow) is None


def test_a_lane_that_was_full_looks_again_when_more_is_compiled(lanes: Lanes) -> None:
    """Upstream would look only when a request has ended."""
    del lanes.lanes[1:]
    lanes.compiled.is_kept_to = True
    lanes.compiled.sizes.add(BatchSize(False, 2, 2, 16))
    for _ in range(2):
        lanes.admits(lanes.old)
    assert lanes.kind.did == ["note room"]
    lanes.compiled.sizes.add(BatchSize(False, 4, 4, 16))
    assert lanes.admits(lanes.old) == (1000, 4)
    lanes.compiled.is_kept_to = False
    assert lanes.admits(lanes.old) == (1000, LIMIT)
    assert lanes.kind.did == ["note room"] * 3
