"""The pytest plugin behind `--coverage-table`: which numbered systems and field cases the run really checked.

It knows markers and outcomes, not what a number stands for. A skipped or expectedly failing test is never a pass.
"""

from __future__ import annotations

from collections import defaultdict

import pytest

KINDS = {"system": int, "case": str}
OUTCOMES = ("passed", "failed", "skipped")
PROPERTY = "plait-checks"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--coverage-table", action="store_true", help="after the run, print what each system and case check came to"
    )


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("coverage_table") and not hasattr(config, "workerinput"):
        config.pluginmanager.register(CoverageTable(), "plait-coverage-table")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        keys = [key for kind in KINDS for mark in item.iter_markers(kind) for key in _keys(item, mark)]
        if keys:
            item.user_properties.append((PROPERTY, " ".join(sorted(set(keys)))))


def _keys(item: pytest.Item, mark: pytest.Mark) -> list[str]:
    """The marker's arguments as words: `@system(5, 21)` names two checks, `@case("S14")` one."""
    wanted = KINDS[mark.name]
    if not mark.args or mark.kwargs or not all(type(arg) is wanted for arg in mark.args):
        raise pytest.UsageError(
            f"{item.nodeid}: marker {mark.name}{mark.args!r}; expected one or more of type {wanted.__name__}. "
            'write @pytest.mark.system(42) or @pytest.mark.case("S14").'
        )
    return [str(arg) for arg in mark.args]


class CoverageTable:
    """Collects every report of the run, from this process or from its workers, and prints the table."""

    def __init__(self) -> None:
        self.phases: dict[str, set[tuple[str | None, str]]] = defaultdict(set)
        self.checks: dict[str, set[str]] = defaultdict(set)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        keys = dict(report.user_properties).get(PROPERTY)
        if keys is None:
            return
        for key in str(keys).split():
            self.checks[key].add(report.nodeid)
        self.phases[report.nodeid].add((report.when, report.outcome))

    def _outcome(self, nodeid: str) -> str:
        """One outcome for setup, call and teardown: any failure wins, and a test passes only by its call."""
        phases = self.phases[nodeid]
        if any(outcome == "failed" for _, outcome in phases):
            return "failed"
        return "passed" if ("call", "passed") in phases else "skipped"

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        write = terminalreporter.write_line
        terminalreporter.section("coverage table: systems and field cases")
        write(f"{'check':<8}{''.join(f'{name:>9}' for name in OUTCOMES)}  tests")
        for key in sorted(self.checks, key=_natural):
            write(self._row(key))
        passing = sum(self._counts(key) == (len(ids), 0, 0) for key, ids in self.checks.items())
        write(f"{len(self.checks)} checks, {passing} of them with every test passed")

    def _counts(self, key: str) -> tuple[int, ...]:
        found = [self._outcome(nodeid) for nodeid in self.checks[key]]
        return tuple(found.count(name) for name in OUTCOMES)

    def _row(self, key: str) -> str:
        counts = "".join(f"{count:>9}" for count in self._counts(key))
        return f"{key:<8}{counts}  {', '.join(_collapse(self.checks[key]))}"


def _natural(key: str) -> tuple[str, int]:
    """Numbers first and in order, then cases by letter and number."""
    letters = key.rstrip("0123456789")
    digits = key[len(letters) :]
    return letters, int(digits) if digits else 0


def _collapse(nodeids: set[str]) -> list[str]:
    """Test ids with the parameter sets of one function counted instead of listed."""
    groups: dict[str, int] = defaultdict(int)
    for nodeid in nodeids:
        groups[nodeid.partition("[")[0]] += 1
    return [name if count == 1 else f"{name} (x{count})" for name, count in sorted(groups.items())]
