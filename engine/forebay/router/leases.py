"""In-flight accounting for one endpoint: one idempotent lease for each dispatched request.

The engine's last load report counts requests of every router, but is old the moment it arrives. `Ledger.load` corrects
it: own dispatches since that report are added, own releases of requests it counted are subtracted. Invariants: closing
a lease twice changes nothing; when all leases are closed every counter is zero; `load` is never below own in-flight.
"""

from forebay.contract.wire import LoadReport


class Lease:
    """The right to one request at one endpoint. Whoever dispatched closes it on every path."""

    __slots__ = ("_generation", "_ledger", "_open")

    def __init__(self, ledger: "Ledger", generation: int) -> None:
        self._ledger = ledger
        self._generation = generation
        self._open = True

    def close(self) -> None:
        """Give the request's load back; a second call does nothing."""
        if self._open:
            self._open = False
            self._ledger.closed(self._generation)


class Ledger:
    """Own in-flight requests of one endpoint, and the engine's last load report.

    A generation starts with each poll. A report covers the requests of the generations before its poll; the live
    requests of later generations are counted in two numbers, those before the poll in flight and those since.
    """

    __slots__ = ("_fresh", "_generation", "_released", "_reported", "_unreported", "inflight", "report", "report_s")

    def __init__(self) -> None:
        self.inflight = 0
        self.report: LoadReport | None = None
        self.report_s = 0.0
        self._generation = 0
        self._reported = 0
        self._fresh = 0
        self._unreported = 0
        self._released = 0

    def open(self) -> Lease:
        """Charge one dispatched request."""
        self.inflight += 1
        self._fresh += 1
        return Lease(self, self._generation)

    def closed(self, generation: int) -> None:
        """Take back one request of a generation; called by its lease, once."""
        self.inflight -= 1
        if generation == self._generation:
            self._fresh -= 1
        elif generation >= self._reported:
            self._unreported -= 1
        else:
            self._released += 1

    def poll_started(self) -> None:
        """A load poll goes out: what is dispatched from now on cannot be in its report."""
        self._generation += 1
        self._unreported += self._fresh
        self._fresh = 0

    def poll_answered(self, report: LoadReport, now_s: float) -> None:
        """The report of the poll that started last.

        A request released while the poll was under way may still be in the report; it counts until the next one.
        """
        self.report = report
        self.report_s = now_s
        self._reported = self._generation
        self._unreported = 0
        self._released = 0

    def load(self, now_s: float, stale_s: float) -> int:
        """Requests at this endpoint, running or waiting: the corrected report, or own in-flight when it is stale."""
        report = self.report
        if report is None or now_s - self.report_s > stale_s:
            return self.inflight
        reported = max(report.running + report.waiting - self._released, 0)
        return max(self.inflight, reported + self._unreported + self._fresh)

    def unreported(self) -> int:
        """Own requests in flight that no report covers yet."""
        return self._unreported + self._fresh
