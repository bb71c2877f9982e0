"""The metrics of the hosts of one engine."""

from collections.abc import Callable, Iterator, Mapping

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from hotreload.picture.picture import Rank


class RankNow(Collector):
    """The metrics of the ranks; one host alone is no rank."""

    def __init__(self, rank: Rank | None, heard: Callable[[], Mapping[int, float]]) -> None:
        """`heard` says how many seconds ago each other rank gave a sign of life."""
        self._rank = rank
        self._heard = heard

    def collect(self) -> Iterator[Metric]:
        """Yield what there is to say of them."""
        rank = self._rank
        yield GaugeMetricFamily(
            "hotreload_ranks",
            "Hosts over which the engine lies ([engine] nnodes).",
            rank.of if rank else 1,
        )
        if rank is None:
            return
        yield GaugeMetricFamily(
            "hotreload_rank",
            "Which of several hosts this is; 0 is the one that decides and answers. No series "
            "where there is one host.",
            rank.own,
        )
        if not rank.follows:
            yield self._silences()

    def _silences(self) -> Metric:
        heard = GaugeMetricFamily(
            "hotreload_rank_heard_seconds",
            "On rank 0: how long ago each other rank gave its last sign of life; after 30 s the "
            "engine counts as lost.",
            labels=["rank"],
        )
        for rank, seconds in self._heard().items():
            heard.add_metric([str(rank)], seconds)
        return heard
