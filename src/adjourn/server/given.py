"""What handlers are given: `principal: AskedBy` and `desk: AtDesk` are dependencies of the application."""

from typing import TypeAlias

from litestar.di import NamedDependency

from adjourn.server.desk import Desk
from adjourn.server.principal import Principal

AskedBy: TypeAlias = NamedDependency[Principal]
AtDesk: TypeAlias = NamedDependency[Desk]
