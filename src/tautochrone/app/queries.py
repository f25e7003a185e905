"""`taut query`: what runs answers it; otherwise a Spark of its own.

What runs is `taut serve` on this machine, or a continuous run. The service that the setting `meta.url` names
may be that of another project, with another lake.
"""

from __future__ import annotations

from tautochrone.app.locate import Options, locate
from tautochrone.app.remote import RemoteReader
from tautochrone.app.serving import serving_processes
from tautochrone.errors import CheckpointUnavailableError, TautochroneError
from tautochrone.model.query import Query, QueryAnswer
from tautochrone.model.reason import Reason, ReasonCode

__all__ = ["answer_of_service", "answer_of_spark"]


def answer_of_service(options: Options, query: Query) -> QueryAnswer | Reason | None:
    """The answer of a service of this project; why the one that runs did not answer; None when none runs.

    A query that a service refuses may be right for the Spark of its own: there it may read files by path, and
    take as long as it needs.

    Raises:
        SpecError, SettingsError: what is wrong with the project.
        CheckpointUnavailableError: no checkpoint shows what the query asks for.
    """
    spec, settings = locate(options)
    refusal: Reason | None = None
    for process in serving_processes(spec, settings):
        with RemoteReader(process.uri, settings.meta_token, key=process.key) as reader:
            try:
                return reader.arrow(query)
            except CheckpointUnavailableError:
                raise
            except TautochroneError as error:
                code = ReasonCode.SERVICE_DID_NOT_ANSWER
                refusal = Reason.of(code, uri=process.uri, error_class=error.error_class)
    return refusal


def answer_of_spark(options: Options, query: Query) -> QueryAnswer:
    """The answer of a Spark that starts and ends with this call.

    Raises:
        TautochroneError: as `open_connection` and `Reader.arrow`.
    """
    from tautochrone.app.connect import open_connection

    with open_connection(options, short_lived=True) as reader:
        return reader.arrow(query)
