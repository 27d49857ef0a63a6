"""The protocol as pure functions: sums are recovered whoever drops out, and nothing else is."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

pytest.importorskip("cryptography")
pytest.importorskip("Crypto")

from federation.uniformity import p_values, two_samples
from isonomy.privacy.secure import member as members
from isonomy.privacy.secure import primitives as crypto
from isonomy.privacy.secure.member import Advert, Member, context
from isonomy.privacy.secure.primitives import ProtocolError
from isonomy.privacy.secure.recovery import unmasked
from isonomy.privacy.secure.threshold import least

EPOCH = "an epoch"


class Federation:
    """Members, and a server that follows the protocol."""

    def __init__(self, clients: int, *, threshold: int = 2, slots: int = 2) -> None:
        self.members = {k: Member(k, threshold) for k in range(clients)}
        ids = list(self.members)
        self.adverts = {k: one.advertise(EPOCH, ids, slots) for k, one in self.members.items()}
        sealed = {k: one.share(EPOCH, self.adverts) for k, one in self.members.items()}
        for k, one in self.members.items():
            one.receive(EPOCH, {j: sealed[j][k] for j in ids if j != k})
        self.threshold = least(threshold, clients)

    def about(self, slot: int, asked: list[int], what: str = "a question") -> bytes:
        return context(members.roster(EPOCH, self.adverts), slot, asked, what)

    def masked(self, vectors: dict[int, Tensor], slot: int = 0, asked: list[int] | None = None):
        asked = sorted(vectors) if asked is None else asked
        about = self.about(slot, asked)
        return {k: self.members[k].mask(EPOCH, slot, asked, about, v) for k, v in vectors.items()}

    def recovered(
        self, masked: dict[int, Tensor], tells: list[int], asked: list[int], slot: int = 0
    ) -> Tensor:
        answered = sorted(masked)
        shares = {k: self.members[k].unmask(EPOCH, slot, answered) for k in tells}
        about = self.about(slot, asked)
        return unmasked(masked, shares, self.adverts, slot, asked, self.threshold, about)


def vectors(clients: int, seed: int, dtype: torch.dtype = torch.int64) -> dict[int, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    most = 2**30 // clients
    return {
        k: torch.randint(-most, most, (5,), generator=generator).to(dtype) for k in range(clients)
    }


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_any_dropouts_above_the_threshold_leave_the_sum_of_the_others(data: Any) -> None:
    """Clients drop out before they mask, and others before they tell shares."""
    clients = data.draw(st.integers(2, 7))
    dtype = data.draw(st.sampled_from([torch.int32, torch.int64]))
    made = Federation(clients, slots=1)
    own, asked = vectors(clients, data.draw(st.integers(0, 9)), dtype), list(range(clients))
    answers = data.draw(st.lists(st.sampled_from(asked), unique=True))
    tells = data.draw(st.lists(st.sampled_from(asked), unique=True))
    masked = made.masked({k: own[k] for k in sorted(answers)}, asked=asked)
    tells = [k for k in tells if k in masked]
    if len(masked) < made.threshold or len(tells) < made.threshold:
        with pytest.raises(ProtocolError, match="needed"):
            made.recovered(masked, tells, asked)
        return
    total = made.recovered(masked, tells, asked)
    assert torch.equal(total, sum(own[k] for k in masked))


def test_a_sum_may_wrap_around_on_the_way_but_not_at_the_end() -> None:
    made = Federation(3)
    top = torch.tensor([2**62, -(2**62), 2**63 - 1])
    own = {0: top, 1: -top, 2: torch.tensor([1, 2, 3])}
    got = made.recovered(made.masked(own), [0, 1, 2], [0, 1, 2])
    assert got.tolist() == [1, 2, 3]


def test_slots_are_independent_and_used_once() -> None:
    made = Federation(3)
    own = vectors(3, 0)
    first, second = made.masked(own), made.masked(own, slot=1)
    for k in own:
        assert not torch.equal(first[k], second[k])
        with pytest.raises(ProtocolError, match="were used"):
            made.masked({k: own[k]}, slot=0, asked=[0, 1, 2])
    assert torch.equal(made.recovered(second, [0, 1, 2], [0, 1, 2], slot=1), sum(own.values()))
    with pytest.raises(ProtocolError, match="unmasked already"):
        made.members[0].unmask(EPOCH, 1, [0, 1, 2])


def test_a_late_reply_stays_hidden() -> None:
    """All shares of a client that was declared lost do not remove its own mask."""
    made = Federation(4)
    own, asked = vectors(4, 1), [0, 1, 2, 3]
    masked = made.masked(own)
    late = masked.pop(3)
    shares = {k: made.members[k].unmask(EPOCH, 0, [0, 1, 2]) for k in (0, 1, 2)}
    about = made.about(0, asked)
    total = unmasked(masked, shares, made.adverts, 0, asked, made.threshold, about)
    assert torch.equal(total, own[0] + own[1] + own[2])
    place = {k: told[3] for k, told in enumerate(shares.values(), 1)}
    private = crypto.private_key(crypto.combined(place, made.threshold))
    for j in (0, 1, 2):  # what the server can remove from the late reply
        key = members.pair_key(private, made.adverts[j].slots[0], about)
        late = late - members.sign(3, j) * crypto.mask(key, len(late), late.dtype)
    assert not (late == own[3]).any()


@settings(max_examples=30, deadline=None)
@given(st.integers(2, 7), st.data())
def test_no_claims_about_dropouts_give_both_kinds_of_shares(clients: int, data: Any) -> None:
    """A server tells every client another list; each tells one kind of share of the victim."""
    made = Federation(clients, slots=1)
    asked = list(range(clients))
    made.masked(vectors(clients, 2))
    victim = data.draw(st.sampled_from(asked))
    kinds = {"seed": 0, "key": 0}
    for k in asked:
        claimed = sorted({k} | set(data.draw(st.lists(st.sampled_from(asked), unique=True))))
        try:
            told = made.members[k].unmask(EPOCH, 0, claimed)
        except ProtocolError:
            continue
        assert set(told) == set(asked)
        kinds["seed" if victim in claimed else "key"] += 1
        with pytest.raises(ProtocolError, match="already"):
            made.members[k].unmask(EPOCH, 0, asked)
    assert min(kinds.values()) < made.threshold


def test_different_questions_or_clients_give_a_random_sum() -> None:
    """A server that asks one client something else learns nothing from the sum."""
    made = Federation(3)
    own, asked = vectors(3, 3), [0, 1, 2]
    masked = {
        k: made.members[k].mask(
            EPOCH, 0, asked, made.about(0, asked, "another question" if k == 1 else "a question"), v
        )
        for k, v in own.items()
    }
    total = made.recovered(masked, asked, asked)
    assert not (total == sum(own.values())).any()


def seen_of_one(value: int, times: int = 60) -> list[Tensor]:
    """What the server receives of client 0 with this reply, in so many runs of the protocol."""
    out = []
    for _ in range(times):
        made = Federation(3, slots=1)
        own = {k: torch.arange(40) * (value if k == 0 else 7) for k in range(3)}
        out.append(made.masked(own)[0])
    return out


@pytest.mark.parametrize("fault", ["none", "no masks"])
def test_a_masked_reply_does_not_depend_on_the_reply(
    fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two very different replies look the same; with masks off they do not."""
    if fault == "no masks":
        monkeypatch.setattr(crypto, "mask", lambda key, n, dtype: torch.zeros(n, dtype=dtype))
    one, other = seen_of_one(1), seen_of_one(-(10**9))
    if fault == "no masks":
        assert min(p_values(one)) < 1e-12
        assert two_samples(one, other) < 1e-12
        return
    for vectors in (one, other):
        assert min(p_values(vectors)) > 1e-5
    assert two_samples(one, other) > 1e-5


def test_false_shares_and_keys_are_found() -> None:
    made = Federation(4)
    asked = [0, 1, 2, 3]
    masked = made.masked({k: v for k, v in vectors(4, 4).items() if k != 3}, asked=asked)
    shares = {k: dict(made.members[k].unmask(EPOCH, 0, [0, 1, 2])) for k in (0, 1, 2)}
    shares[1][3] = bytes(16)
    with pytest.raises(ProtocolError, match="do not give its key"):
        unmasked(masked, shares, made.adverts, 0, asked, 3, made.about(0, asked))
    shares[1].pop(3)
    with pytest.raises(ProtocolError, match="of other clients"):
        unmasked(masked, shares, made.adverts, 0, asked, 3, made.about(0, asked))


def other(advert: Advert) -> Advert:
    return Advert(crypto.public_key(crypto.private_key(bytes(16))), advert.slots)


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda a: {k: v for k, v in a.items() if k != 0}, "not this one's own"),
        (lambda a: {**a, 0: other(a[0])}, "not this one's own"),
        (lambda a: {**a, 9: a[1]}, "of other clients"),
        (lambda a: {**a, 1: a[2]}, "are the same"),
        (lambda a: {0: a[0]}, "needs 2 clients"),
        (lambda a: {**a, 1: Advert(a[1].box, a[1].slots[:1])}, "other keys"),
        (lambda a: {**a, 1: Advert(bytes(32), a[1].slots)}, "not one"),  # a point of low order
    ],
)
def test_keys_that_break_the_protocol_are_refused(spoil: Any, words: str) -> None:
    group = {k: Member(k, 2) for k in range(3)}
    adverts = {k: one.advertise(EPOCH, [0, 1, 2], 2) for k, one in group.items()}
    with pytest.raises(ProtocolError, match=words):
        group[0].share(EPOCH, spoil(adverts))


def test_shares_are_bound_to_sender_receiver_and_keys() -> None:
    group = {k: Member(k, 2) for k in range(3)}
    adverts = {k: one.advertise(EPOCH, [0, 1, 2], 1) for k, one in group.items()}
    sealed = {k: one.share(EPOCH, adverts) for k, one in group.items()}
    with pytest.raises(ProtocolError, match="forged"):
        group[0].receive(EPOCH, {1: sealed[1][2]})
    with pytest.raises(ProtocolError, match="forged"):
        group[0].receive(EPOCH, {2: sealed[1][0]})
    for _ in range(2):  # a message may be repeated
        group[0].receive(EPOCH, {1: sealed[1][0]})
    group[0]._epoch.shares[1] = bytes(32)
    with pytest.raises(ProtocolError, match="sent before"):
        group[0].receive(EPOCH, {1: sealed[1][0]})
    with pytest.raises(ProtocolError, match="have shared"):
        group[0].check(EPOCH, 0, [0, 1, 2])
    group[0].check(EPOCH, 0, [0, 1])


def test_a_single_share_tells_nothing() -> None:
    """Shares of two very different secrets are both uniform."""
    ones, zeros = [], []
    for _ in range(300):
        ones.append(crypto.split(b"\xff" * 16, 3, 5)[1])
        zeros.append(crypto.split(bytes(16), 3, 5)[1])
    for shares in (ones, zeros):
        bits = torch.tensor([[b >> i & 1 for b in one for i in range(8)] for one in shares])
        assert abs(float(bits.double().mean()) - 0.5) < 4 * 0.5 / bits.numel() ** 0.5


@pytest.mark.parametrize(
    ("members_", "number", "words"),
    [([0, 1], 2, "lack this one"), ([2, 0, 1], 0, "in order"), ([0, 0, 1], 0, "in order")],
)
def test_epochs_that_are_not_joined(members_: list[int], number: int, words: str) -> None:
    with pytest.raises(ProtocolError, match=words):
        Member(number, 2).advertise(EPOCH, members_, 2)
    with pytest.raises(ProtocolError, match="a sum has 3"):
        Member(0, 3).advertise(EPOCH, [0, 1], 2)


def test_a_new_epoch_forgets_the_old_one() -> None:
    made = Federation(3)
    made.members[0].advertise("another", [0, 1, 2], 1)
    with pytest.raises(ProtocolError, match="no keys of this epoch"):
        made.members[0].unmask(EPOCH, 0, [0, 1, 2])
