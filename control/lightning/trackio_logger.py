"""Lightning's logger for Trackio, which keeps runs in a local database (`trackio show`)."""

from typing import Any

from pytorch_lightning.loggers import Logger


class TrackioLogger(Logger):
    """Logs metrics to the run ``name`` in the ``project`` of Trackio: an existing run if ``resume``, else a new one."""

    name, version = "trackio", ""

    def __init__(self, project: str, name: str, resume: bool):
        import trackio

        super().__init__()
        self.trackio = trackio
        trackio.init(project, name, resume="allow" if resume else "never", embed=False)

    def log_hyperparams(self, *args: Any, **kwargs: Any) -> None:
        """Do nothing: config.yaml has the settings."""

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        self.trackio.log({**metrics}, step)

    def finalize(self, status: str) -> None:
        self.trackio.finish()
