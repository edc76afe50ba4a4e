"""Facts in the path of a training log.

Lambda's names of 2020 (lambdal/lambda-tensorflow-benchmark):
`CPU-GPU[_TAG…].logs/DATA-MODE-PRECISION-NgpusOPTIONS/MODEL-BATCH/throughput/REPEAT`, and of 2018
(LambdaColdStorage/cpu_benchmark): `MODEL-DATA-MODE[-nccl][-distortions]-Ngpus-BATCH-REPEAT.log`.
"""

import re
from typing import Any

_CONFIG = (
    r"(?P<data>syn|real)-(?P<mode>[a-z]+(?:_[a-z]+)*)(?P<nccl>-nccl)?(?P<early>-distortions)?"
    r"(?:-(?P<precision>fp16|fp32))?-(?P<count>\d{1,4})gpus(?P<rest>(?:-distortions|-inference)*)"
)
_OF_2020 = re.compile(
    rf"(?:^|/)(?P<box>[^/]{{1,200}}?)(?:\.logs/|_){_CONFIG}[/_]"
    r"(?P<model>[\w.]{1,60})-(?P<batch>\d{1,7})(?:/throughput/\d{1,6}|\.throughput\.log)$"
)
_OF_2018 = re.compile(
    rf"(?:^|/)(?P<model>[\w.]{{1,60}}?)-{_CONFIG}-(?P<batch>\d{{1,7}})(?:-\d{{1,6}})?(?:\.log|\.txt)$"
)
# A machine's name: its CPU, then the first word of a graphics card.
_BOX = re.compile(
    r"^(?P<cpu>.{1,80}?)-(?P<gpu>(?:LambdaCloud_)?(?:\d{1,2}x)?"
    r"(?:GeForce|Quadro|Tesla|TITAN|Titan|RTX|GTX|Radeon|[AHLPV]\d{2,4}\b).*)$"
)
_TAG = re.compile(r"_(?:TF\d+_\d+|XLA|trt\d*|NVLink|HP16|with_Max-Q_Design)(?=_|$)")
_NUMBERED = re.compile(r"^\d{1,3}_")  # a number added to the file's name


def facts_of(path: str) -> dict[str, Any]:
    """Return the conditions in a path, by field of `Measurement`; empty for a path of another form."""
    path = path.replace("\\", "/")
    match = _OF_2020.search(path)
    if match is not None:
        name = _NUMBERED.sub("", match["box"])
        facts = {**_config(match), "machine": name, "xla": "_XLA" in name}
        if box := _BOX.match(name):
            card = re.sub(r"^(?:LambdaCloud_)?(?:\d{1,2}x)?", "", _TAG.sub("", box["gpu"]))
            facts |= {"cpu": box["cpu"].replace("_", " "), "gpu": card.replace("_", " ").strip()}
        return facts
    match = _OF_2018.search(path)
    return _config(match) if match is not None else {}


def _config(match: re.Match[str]) -> dict[str, Any]:
    real = match["data"] == "real"
    distorted = bool(match["early"]) or "distortions" in match["rest"]
    facts: dict[str, Any] = {
        "model": match["model"],
        "data": "real" if real else "synthetic",
        "variable_update": match["mode"],
        "n_gpus": max(1, int(match["count"])),
        "batch_per_gpu": int(match["batch"]),
    }
    if real:
        facts["distortions"] = distorted
    if match["precision"]:
        facts["precision"] = match["precision"]
    if match["nccl"]:
        facts["all_reduce"] = "nccl"
    if "inference" in match["rest"]:
        facts["task"] = "forward"
    return facts
