"""Artifacts: files beside the log, named by digest, and the facts that refer to them."""

from agent.fact_store.artifacts.artifact_files import ArtifactFiles
from agent.fact_store.artifacts.artifacts import ARTIFACTS_FOLDER, Artifacts
