"""Who asks, and what that person or program may see and do."""

from typing import Any, Literal, Protocol

import msgspec
from msgspec import UNSET, UnsetType

from adjourn.errors import AdjournError

Role = Literal["view", "decide", "admin"]
ROLES: tuple[Role, ...] = ("view", "decide", "admin")
"""From the least to the most."""


class Forbidden(AdjournError):
    """The principal is known and may not do this. What was asked for was left as it is."""

    status = "PERMISSION_DENIED"


class Unauthenticated(AdjournError):
    """Nobody we know sent this."""

    status = "UNAUTHENTICATED"


class Owned(Protocol):
    """A record of a session or of an interrupt."""

    @property
    def id(self) -> str: ...

    @property
    def agent(self) -> str: ...

    @property
    def owner(self) -> str | None: ...


class Principal(msgspec.Struct, frozen=True):
    """Who asks. Each scope is a set of names, or None for everything.

    `owners` are the owners of sessions whose work is visible; left out, it is the principal's own name (everything, for
    an admin). "" among them stands for sessions without an owner. `tools` bounds what is seen in the inbox and decided.
    `interrupts` and `verbs` are for links that are good for one decision. `via` says how it signed in.
    """

    name: str
    role: Role = "view"
    agents: frozenset[str] | None = None
    tools: frozenset[str] | None = None
    owners: frozenset[str] | UnsetType | None = UNSET
    interrupts: frozenset[str] | None = None
    verbs: frozenset[str] | None = None
    via: str = "token"

    def __post_init__(self) -> None:
        if self.role not in ROLES:
            raise ValueError(f"role={self.role!r}: give 'view', 'decide' or 'admin'")
        if self.owners is UNSET:  # invisible to others unless a scope says so
            own = None if self.role == "admin" else frozenset([self.name])
            msgspec.structs.force_setattr(self, "owners", own)

    @property
    def owner_scope(self) -> frozenset[str] | None:
        """The owners whose work is visible; None for all."""
        return None if self.owners is UNSET else self.owners

    @property
    def sees_everything(self) -> bool:
        """Whether nothing that is stored is hidden from it."""
        return self.agents is None and self.tools is None and self.owner_scope is None and self.interrupts is None

    def at_least(self, role: Role) -> bool:
        return ROLES.index(self.role) >= ROLES.index(role)

    def require(self, role: Role, to: str) -> None:
        """Raises Forbidden where the role is less. `to` says what for, as in "decide"."""
        if not self.at_least(role):
            raise Forbidden(
                f"{self.name!r} has the role {self.role!r}; to {to} takes {role!r}. Nothing was changed: ask whoever gave you "
                "access"
            )

    def sees_agent(self, agent: str) -> bool:
        return self.agents is None or agent in self.agents

    def sees_owner(self, owner: str | None) -> bool:
        scope = self.owner_scope
        return scope is None or (owner or "") in scope

    def sees(self, record: Owned) -> bool:
        """Whether this session or interrupt exists at all, as far as the principal can tell."""
        if not (self.sees_agent(record.agent) and self.sees_owner(record.owner)):
            return False
        tool: Any = getattr(record, "tool", None)
        if tool is None:
            return self.interrupts is None  # a session: a link shows its one interrupt and nothing else
        return (self.tools is None or tool in self.tools) and (self.interrupts is None or record.id in self.interrupts)

    def may_decide(self, record: Owned) -> bool:
        """Whether its role and scopes let it decide. `Auth` may still say no (four eyes, `can_decide`)."""
        return self.at_least("decide") and self.sees(record)
