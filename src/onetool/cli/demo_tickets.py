"""The MCP server of the demonstration, which serves the tickets of a small shop over stdio.

It is a separate program that does not depend on OneTool. Its data is always the same.
"""

from typing import Literal

from mcp.server.mcpserver import MCPServer

from onetool_child.json_types import JsonObject

SUBJECTS = (
    "The till prints nothing",
    "A parcel came twice",
    "The lamp flickers",
    "No mail on Mondays",
)
PEOPLE = ("Ada", "Alan", "Grace", "Edsger")
TICKETS: dict[int, JsonObject] = {
    number: {
        "number": number,
        "title": f"{SUBJECTS[number % 4]}, again ({number})",
        "state": "closed" if number % 3 == 0 else "open",
        "owner": PEOPLE[number % 4],
        "days_open": number * 7 % 40,
    }
    for number in range(1, 61)
}
server = MCPServer("tickets")


@server.tool()
def list_tickets(
    state: Literal["open", "closed", "all"] = "open", owner: str = ""
) -> list[JsonObject]:
    """List tickets with their number, title, state, owner and age in days, the oldest number first.

    Args:
        state: State of the tickets.
        owner: Owner of the tickets; empty for all owners.
    """
    tickets = (ticket for ticket in TICKETS.values() if state in {"all", ticket["state"]})
    return [ticket for ticket in tickets if owner in {"", ticket["owner"]}]


@server.tool()
def get_ticket(number: int) -> JsonObject:
    """Return a ticket with all fields and comments.

    Args:
        number: The number of the ticket.
    """
    said = [f"{person} has looked at it and will come back to it." for person in PEOPLE]
    return {**TICKETS[number], "comments": said}


@server.tool()
def search_tickets(words: str) -> list[JsonObject]:
    """Find tickets by words in their titles, ignoring case.

    Args:
        words: Words to search for.
    """
    return [one for one in TICKETS.values() if words.casefold() in one["title"].casefold()]


@server.tool()
def list_people() -> list[str]:
    """List the people who can own tickets."""
    return list(PEOPLE)


@server.tool()
def assign_ticket(number: int, owner: str) -> JsonObject:
    """Assign a ticket to a person.

    Args:
        number: The number of the ticket.
        owner: New owner, one of list_people.
    """
    TICKETS[number]["owner"] = owner
    return TICKETS[number]


@server.tool()
def close_ticket(number: int, reason: str = "") -> JsonObject:
    """Close a ticket.

    Args:
        number: The number of the ticket.
        reason: Reason for closing it.
    """
    TICKETS[number] |= {"state": "closed", "reason": reason}
    return TICKETS[number]


@server.tool()
def export_log(days: int = 30) -> str:
    """Export the log of the shop's machines, with one line per minute.

    Args:
        days: Number of days.
    """
    return "\n".join(_line(day, minute) for day in range(days) for minute in range(60))


def _line(day: int, minute: int) -> str:
    level = "ERROR" if (day, minute) in {(11, 7), (23, 41)} else "INFO"
    what = "the till prints nothing" if level == "ERROR" else "all is well"
    return f"day {day:02} 09:{minute:02} {level} {what}"


if __name__ == "__main__":
    server.run("stdio")
