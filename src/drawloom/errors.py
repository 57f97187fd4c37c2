"""The errors a user can meet. Messages say what, the limit and the way out.

DrawloomError
├── SettingError   the caller's file or flag is wrong: raised before any work starts
├── RowError       this row only: kept in its `error` column, the job goes on
└── ReplicaError   this process is unfit: it is restarted and its rows are retried elsewhere
"""


class DrawloomError(Exception):
    """Base of every error that drawloom raises on purpose."""


class SettingError(DrawloomError):
    """A setting, flag, path or model that cannot be used; nothing has been started."""


class RowError(DrawloomError):
    """One row cannot be completed. `code` is a stable word for programs, the message is for people."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code

    def __reduce__(self) -> tuple[type["RowError"], tuple[str, str]]:
        return type(self), (self.code, str(self))


class ReplicaError(DrawloomError):
    """This process cannot go on (device lost, an invariant broken); its rows are safe to retry elsewhere."""
