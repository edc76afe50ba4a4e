"""A published document as a study of its own raw figures, with the errors that it has."""

from collections.abc import Mapping

import msgspec

from gputopo.measurements.documents.claims import disagreements
from gputopo.measurements.documents.published import known_machines, published_measurements
from gputopo.measurements.observing.observation import Observation
from gputopo.measurements.study import Study, study_of
from gputopo.reference.published import SOURCES

# Names of the documents on the command line, with those of their sources.
DOCUMENTS: Mapping[str, str] = {
    "tensorpack": "tensorpack",
    "tf-official": "tensorflow.org",
    "lambda-cpu": "lambda-2018",
    "keras-multi-gpu": "rossumai",
}


def made(name: str) -> Study:
    """Return the study of a document: its errors first, then what its figures show."""
    source = DOCUMENTS[name]
    study = study_of(
        published_measurements(source),
        title=f"{name}, made anew from its own figures",
        machines=known_machines(),
        sources={source: SOURCES[source]},
    )
    errors = [
        Observation(
            id="document.error", says=one.says, evidence={"printed": one.printed, "computed": one.computed}
        )
        for one in disagreements(source, study.figures)
    ]
    return msgspec.structs.replace(study, observations=(*errors, *study.observations))
