"""`taut query`: what runs answers it; otherwise a Spark of its own.

What runs is the service that the setting `meta.url` names, `taut serve` on this machine, or a continuous run.
"""

from __future__ import annotations

from collections.abc import Iterator

from tautochrone.app.locate import Options, locate
from tautochrone.app.remote import RemoteReader
from tautochrone.app.serving import serving_processes
from tautochrone.errors import CheckpointUnavailableError, TautochroneError
from tautochrone.model.query import Query, QueryAnswer
from tautochrone.model.reason import Reason, ReasonCode
from tautochrone.project.settings import Settings

__all__ = ["answer_of_service", "answer_of_spark"]


def answer_of_service(options: Options, query: Query) -> QueryAnswer | Reason | None:
    """The answer of a service of this project; why the one that runs did not answer; None when none runs.

    A query that a service refuses may be right for the Spark of its own: there it may read files by path, and
    take as long as it needs.

    Raises:
        SpecError, SettingsError: what is wrong with the project.
        CheckpointUnavailableError: no checkpoint shows what the query asks for.
    """
    _, settings = locate(options)
    refusal: Reason | None = None
    for uri, token in _services(settings):
        with RemoteReader(uri, token) as reader:
            try:
                return reader.arrow(query)
            except CheckpointUnavailableError:
                raise
            except TautochroneError as error:
                code = ReasonCode.SERVICE_DID_NOT_ANSWER
                refusal = Reason.of(code, uri=uri, error_class=error.error_class)
    return refusal


def _services(settings: Settings) -> Iterator[tuple[str, str | None]]:
    if settings.meta_url.lower().startswith(("http://", "https://")):
        yield settings.meta_url, settings.meta_token
        return
    for process in serving_processes(settings.storage):
        yield process.uri, settings.meta_token


def answer_of_spark(options: Options, query: Query) -> QueryAnswer:
    """The answer of a Spark that starts and ends with this call.

    Raises:
        TautochroneError: as `open_connection` and `Reader.arrow`.
    """
    from tautochrone.app.connect import open_connection

    with open_connection(options, short_lived=True) as reader:
        return reader.arrow(query)
