"""A followed run on a terminal, one screen of its size; or in a pipe, one line per round and event, never corrected
later.
"""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from fedgossip.base.scores import Score
from fedgossip.base.untrusted_text import line
from fedgossip.core.records import EventRow, NetworkRow, PeerRow, Row
from fedgossip.core.roles import Roles
from fedgossip.report.page.numbers import data_size, number, percent
from fedgossip.report.watch.federation import Led, Peer
from fedgossip.report.watch.follow import DRIVERS, Follower
from fedgossip.report.watch.snapshot import Words, event_line, links_up, needs_attention, note, sort_peers, title
from fedgossip.report.watch.state import State

COLOURS = {"training": "blue", "leading": "blue", "answered": "green", "done": "green",
           "suspected": "yellow", "asleep": "magenta", "starting": "dim",
           "left": "dim", "stopped": "dim", "elsewhere": "dim"}  # fmt: skip
"""Colour of a state's word; an ended peer is red.  The word is always shown: colour alone has no meaning."""
EVENTS_SHOWN = 5
LEAST_ROWS = 3
WHOLE_MOST = 1_000
"""Maximum number of rows of a table of unlimited height; the others are counted by their state."""
NARROW = 84
"""Minimum width in columns for received bytes, the loss and the links."""


class Screen:
    """Draws the present state of the follower.  `whole`: up to WHOLE_MOST peers, in any number of lines."""

    def __init__(self, follower: Follower, words: Words, *, footer: str = "", whole: bool = False) -> None:
        self.follower, self.words, self.footer, self.whole = follower, words, footer, whole

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        above, below = self._above(), self._below()
        room = console.height - len(above) - len(below) - 3  # the table's head, the line for the rest, the cursor
        room = WHOLE_MOST if self.whole else max(room, LEAST_ROWS)
        state = self.follower.state
        shown = sort_peers(state) if len(state.peers) <= room else state.sort_by_interest()[:room]
        listed = clients_table if state.led else peers_table
        yield Group(*above, listed(state, shown, options.max_width), *list_omitted(state, shown), *below)

    def _above(self) -> list[RenderableType]:
        return [_one(text) for text in heading(self.follower)]

    def _below(self) -> list[RenderableType]:
        found: list[RenderableType] = []
        state = self.follower.state
        for row in list(state.events)[-EVENTS_SHOWN:]:
            found.append(_one(event_line(row, self.words, state.roles), "dim"))
        return [*found, _one(self.footer)] if self.footer else found


def heading(follower: Follower) -> list[str]:
    """Return the run's name, its progress, and its scores."""
    state, facts = follower.state, follower.facts
    what = [line(title(follower)), facts.graph if facts.graph != title(follower) else ""]
    what += [role_counts(state), DRIVERS.get(follower.driver, follower.driver)]
    pace = follower.rounds_per_second
    where = [f"round {state.round} of {state.rounds}" if state.rounds else f"round {state.round}"]
    where += rounds_led(state, state.led) if state.led else []
    where += [clock(follower.seconds), "" if pace is None else f"{number(pace)} rounds/s", status(follower)]
    lines = [" · ".join(line(part) for part in what if part), " · ".join(part for part in where if part)]
    lines += [words] if (words := " · ".join(learned(state))) else []
    return lines + ([line(text) for text in follower.lacking] if follower.ended else [])


def role_counts(state: State) -> str:
    """Return the number of each role; without an experiment, the number seen so far."""
    return state.roles.wording if state.n else f"{len(state.learners)} {state.roles.one}s"


def status(follower: Follower) -> str:
    """Return the run's status, in a word or two."""
    if follower.ended:
        return line(follower.state.status)
    if follower.read_share < 1:
        return f"reading, {100 * follower.read_share:.0f} %"
    return "running"


def rounds_led(state: State, led: Led) -> list[str]:
    """Return the state of a coordinator's open round, and the number of abandoned rounds."""
    wanted, words = led.federation.wanted, []
    answered = led.answered(state.peers.values())
    if wanted is not None and answered is not None and not state.status and state.round < state.rounds:
        words.append(f"{answered} of {wanted} have answered")
    return [*words, f"{led.abandoned} abandoned"] if led.abandoned else words


def describe_client_score(led: Led, now: int, score: Score) -> list[str]:
    """Return the clients' last measurement of the global model, if any: mostly of the round before."""
    tested = led.tested
    return (
        [f"{format_score(score, tested.score_clients)} at the clients{_note_round(tested.round - 1, now)}"]
        if tested
        else []
    )


def _note_round(round: int, now: int) -> str:
    return "" if round == now else f" (round {round})"


def learned(state: State) -> list[str]:
    """Return the three scores, or the loss, and the consensus distance, if measured."""
    words, tested, distance, score = [], state.tested, state.distance, state.score
    of_round = _note_round(tested.round, state.round) if tested else ""
    if state.led and tested is not None and tested.score_averaged is not None:
        of_model = f"{score.word} {format_score(score, tested.score_averaged)} global model{of_round}"
        words.append(", ".join([of_model, *describe_client_score(state.led, state.round, score)]))
    elif tested is not None and tested.score_averaged is not None and state.roles.leader is not None:
        words.append(f"{score.word} {format_score(score, tested.score_averaged)}{of_round}")
    elif tested is not None and tested.score_averaged is not None:
        words.append(three(score, tested) + of_round)
    elif tested is not None:
        words.append(f"loss {number(tested.test_loss)}{of_round}")
    if distance is not None:
        words.append(disagreement(state, distance) + _note_round(distance.round, state.round))
    return words


def disagreement(state: State, row: NetworkRow) -> str:
    """Return the consensus distance of a round, and its bounds forecast before the run."""
    text = f"disagreement {number(row.consensus_distance)}"
    edges = state.foretold.edges(row.round) if state.foretold else None
    if edges is None:
        return text
    return f"{text} (forecast {_between(edges)}{_project_end(state, row.round)})"


def _project_end(state: State, round: int) -> str:
    last = state.foretold.rounds if state.foretold else 0
    inner = state.narrowed.edges(last) if state.narrowed and round < last else None
    return "" if inner is None else f"; as it goes, {_between(inner)} in round {last}"


def _between(edges: tuple[float, float]) -> str:
    low, high = (number(edge) for edge in edges)
    return low if low == high else f"{low} to {high}"


def format_score(score: Score, value: float | None) -> str:
    """Return a value of a score for people."""
    return percent(value) if score.percent else number(value)


def three(score: Score, row: NetworkRow) -> str:
    """Return the three scores of a round, in words."""
    values = (row.score_averaged, row.score_mean_peer, row.score_worst_peer)
    named = zip(values, ("averaged", "mean peer", "worst peer"), strict=True)
    return f"{score.word} " + ", ".join(f"{format_score(score, value)} {name}" for value, name in named)


def peers_table(state: State, peers: list[Peer], width: int) -> Table:
    """Return a table with one line per participant."""
    wide = width >= NARROW
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    scored, who = state.score.word, state.roles.one if state.roles.alike else "who"
    heads = (who, "state", "round", "loss", scored, "waiting", "sent", "received", "links", "what others say")
    left = ("who", "state", "reports of others")
    for head in heads:
        if wide or head not in ("loss", "received", "links"):
            table.add_column(head, justify="left" if head in left else "right", no_wrap=True, overflow="ellipsis")
    down = state.links()
    for peer in peers:
        links = links_up(state, peer, down)
        whole = len(set(links.split("/"))) == 1
        cells = {
            who: Text(str(peer.node) if state.roles.alike else state.roles.label(peer.node)),
            "state": _state(state.condition(peer)),
            "round": Text(_round(state, peer)),
            "loss": Text(number(peer.loss)),
            state.score.word: Text(_score(state.score, peer)),
            "waiting": Text("–" if peer.waiting is None else f"{100 * peer.waiting:.0f} %"),
            "sent": Text(data_size(peer.bytes_sent if peer.known else None)),
            "received": Text(data_size(peer.bytes_received if peer.known else None)),
            "links": Text(links or "–", style="" if whole else "yellow"),
            "what others say": Text(note(state, peer)),
        }
        table.add_row(*(cells[str(column.header)] for column in table.columns))
    return table


def clients_table(state: State, peers: list[Peer], width: int) -> Table:
    """Return a table with one line for the coordinator, and one per client."""
    wide = width >= NARROW
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    heads = ("client", "state", "last round", "rounds", "loss", state.score.word, "sent", "received", "what is said")
    left = ("client", "state", "what is said")
    for head in heads:
        if wide or head not in ("loss", "received", "rounds"):
            table.add_column(head, justify="left" if head in left else "right", no_wrap=True, overflow="ellipsis")
    for peer in peers:
        leads, known = peer.node == state.roles.leader, peer.known
        cells = {
            "client": Text(state.roles.label(peer.node) if leads else str(peer.node)),
            "state": _state(state.condition(peer)),
            "last round": Text(_round(state, peer)),
            "rounds": Text("–" if leads or not known else str(peer.turns)),
            "loss": Text(number(peer.loss)),
            state.score.word: Text(_score(state.score, peer)),
            "sent": Text(data_size(peer.bytes_sent if known else None)),
            "received": Text(data_size(peer.bytes_received if known else None)),
            "what is said": Text(_account(state) if leads and not note(state, peer) else note(state, peer)),
        }
        table.add_row(*(cells[str(column.header)] for column in table.columns))
    return table


def _round(state: State, peer: Peer) -> str:
    if not peer.known:
        return "–"
    return f"{peer.round}/{state.rounds}" if state.rounds else str(peer.round)


def _score(score: Score, peer: Peer) -> str:
    return format_score(score, peer.score) + ("" if peer.score is None else _note_round(peer.tested, peer.round))


def _account(state: State) -> str:
    given = state.led.contributions if state.led else None
    return "" if given is None else f"{given} contributions in the last round"


def list_omitted(state: State, shown: list[Peer]) -> list[RenderableType]:
    """Return the peers left out of the table, counted by state."""
    there = {peer.node for peer in shown}
    counts: dict[str, int] = {}
    for peer in state.peers.values():
        if peer.node not in there:
            word = state.condition(peer)
            counts[word] = counts.get(word, 0) + 1
    number, word = state.unlisted
    if number:
        counts[word] = counts.get(word, 0) + number
    if not counts:
        return []
    named = ", ".join(f"{count} {word}" for word, count in counts.items())
    return [_one(f"and {sum(counts.values())} more: {named}", "dim")]


def clock(seconds: float) -> str:
    """Return 1:05:09, or 5:09 below an hour."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def _state(word: str) -> Text:
    return Text(word, style="bold red" if needs_attention(word) and word != "suspected" else COLOURS.get(word, ""))


def _one(text: str, style: str = "") -> Text:
    return Text(text, style=style, no_wrap=True, overflow="ellipsis")


class StatusLines:
    """Formats rows, and transitions into and out of trouble; rounds are the network's, otherwise a watched peer's."""

    def __init__(self, follower: Follower, words: Words) -> None:
        self.follower, self.words = follower, words
        self.roles = follower.state.roles
        self._trouble: dict[int, str] = {}

    def heading(self) -> list[str]:
        """Return the name of the watched run."""
        return heading(self.follower)[:1]

    def describe(self, row: Row) -> str:
        """Return the line of a row; empty for one that is part of a later line."""
        score = self.follower.state.score
        match row:
            case EventRow():
                return event_line(row, self.words, self.roles)
            case NetworkRow():
                led = self.follower.state.led
                words = _describe_model(row, led, score) if led else _describe_network(row, self.follower.state)
                return f"{self._round(row.round)}  {words}".rstrip()
            case PeerRow() if not self.follower.place.folder:
                words = _describe_peer(row, self.roles, score)
                return f"{self._round(row.round)}, {self.roles.label(row.peer)}  {words}".rstrip()
            case _:
                return ""

    def _round(self, round: int) -> str:
        rounds = self.follower.state.rounds
        return f"round {round} of {rounds}" if rounds else f"round {round}"

    def troubles(self) -> Iterator[str]:
        """Yield a line for each peer with a changed state since the last call, if one of them is bad."""
        state = self.follower.state
        for peer in state.peers.values():
            word = state.condition(peer)
            before, now = self._trouble.get(peer.node, ""), word if needs_attention(word) else ""
            if now != before:
                self._trouble[peer.node] = now
                who = self.roles.label(peer.node)
                yield line(f"{who} is {word}" + (f" ({words})" if (words := note(state, peer)) else ""))


def _describe_network(row: NetworkRow, state: State) -> str:
    words, score = [], state.score
    if row.score_averaged is not None:
        words.append(three(score, row))
    elif row.loss is not None or row.test_loss is not None:
        words.append(f"loss {number(row.test_loss if row.loss is None else row.loss)}")
    if row.consensus_distance is not None:
        words.append(disagreement(state, row))
    return ", ".join(words)


def _describe_model(row: NetworkRow, led: Led, score: Score) -> str:
    words = []
    if row.score_averaged is not None:
        words += [
            f"{score.word} {format_score(score, row.score_averaged)}",
            *describe_client_score(led, row.round, score),
        ]
    if not words and (row.loss is not None or row.test_loss is not None):
        words.append(f"loss {number(row.test_loss if row.loss is None else row.loss)}")
    return ", ".join([*words, *([] if not row.round else [f"{led.contributions or 0} contributions"])])


def _describe_peer(row: PeerRow, roles: Roles, score: Score) -> str:
    words = [] if row.loss is None else [f"loss {number(row.loss)}"]
    if row.score is not None:
        words.append(f"{score.word} {format_score(score, row.score)}")
    if row.peer == roles.leader:
        words.append(f"{row.clients or 0} contributions")
    return ", ".join(words if roles.leader is not None else [*words, f"waited {number(row.seconds_waiting)} s"])
