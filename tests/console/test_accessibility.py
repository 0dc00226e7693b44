"""Accessibility of every view of the page, by axe-core's rules and by the keyboard alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.console.example_source import ExampleSource
from tests.console.test_browser import sees, visiting

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

VIEWS = {
    "cluster": "State-change log",
    "topic/orders": "1 min 34 s",
    "records/orders/1": "customer-0",
    "groups": "billing",
    "groups/billing": "lag at least 1,842",
    "settings/topic/orders": "retention.ms",
    "settings/acls": "User:billing",
    "replays": "Lessons",
}
"""A text of each view, by its address."""

SCREENS: dict[str, dict[str, Any]] = {
    "light": {"color_scheme": "light"},
    "dark": {"color_scheme": "dark"},
    "small": {"viewport": {"width": 360, "height": 640}},
}


@pytest.mark.parametrize("screen", SCREENS)
def test_no_rule_of_axe_core_is_broken(browser: Browser, screen: str) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="needs the extra `dev`").Axe()
    with visiting(browser, ExampleSource(), screen=SCREENS[screen], allow_writes=True) as visit:
        for path, text in VIEWS.items():
            visit.page.goto(f"{visit.console.origin}/#/{path}")
            sees(visit.page, text)
            visit.page.evaluate("() => document.querySelectorAll('details').forEach((each) => { each.open = true; })")
            broken = [
                (found["id"], found["impact"], [node["html"] for node in found["nodes"]])
                for found in axe.run(visit.page).response["violations"]
                if found["impact"] in ("serious", "critical")
            ]
            assert broken == [], path


def focused(page: Page) -> dict[str, Any]:
    """Of the element that has the focus: its name or text, and whether an outline shows it."""
    found: dict[str, Any] = page.evaluate(
        """() => {
            const element = document.activeElement;
            const style = getComputedStyle(element);
            return { name: element.getAttribute("aria-label") || element.innerText || element.value || element.tagName,
                body: element === document.body, seen: style.outlineStyle !== "none" && style.outlineWidth !== "0px" };
        }"""
    )
    return found


def tab_to(page: Page, name: str) -> None:
    """Press Tab until the element with this name has the focus; each on the way must be seen to have it."""
    passed = []
    for _ in range(100):
        page.keyboard.press("Tab")
        element = focused(page)
        passed.append(element["name"])
        assert element["seen"] or element["body"], element
        if element["name"] == name:
            return
    raise AssertionError(f"Tab does not reach {name!r}, but {passed}")


def test_the_keyboard_alone(browser: Browser) -> None:
    source = ExampleSource()
    with visiting(browser, source, allow_writes=True) as visit:
        page = visit.page
        sees(page, "State-change log")
        tab_to(page, "Filter topics")
        page.keyboard.type("ord")
        tab_to(page, "orders")
        page.keyboard.press("Enter")
        sees(page, "4 partitions, 4 degraded")
        tab_to(page, "Partitions")
        tab_to(page, "1")
        page.keyboard.press("Enter")
        sees(page, "customer-0")
        tab_to(page, "groups")
        page.keyboard.press("Enter")
        sees(page, "reports")
        tab_to(page, "billing")
        page.keyboard.press("Enter")
        sees(page, "lag at least 1,842")
        tab_to(page, "Reset offsets")
        page.keyboard.press("Enter")
        tab_to(page, "Prepare")
        page.keyboard.press("Enter")
        page.wait_for_function("() => document.activeElement.getAttribute('aria-label') === 'Name that confirms'")
        assert source.acts[-1][0] == "reset-offsets" and source.acts[-1][2] is None
