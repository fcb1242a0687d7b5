"""Folders and repositories of the Hugging Face Hub with a model, its configuration and its card: methods of models."""

from __future__ import annotations

import importlib
import os
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import torch
from torch import nn

from probneural.checks import check_path, check_text, optional
from probneural.errors import FileError

Model = TypeVar("Model", bound="Pretrained")

MODEL = "model.safetensors"
"""Name of the file of the model."""


class Pretrained:
    """Base class of operators and predictors with the methods of huggingface_hub's `PyTorchModelHubMixin`."""

    def save_pretrained(
        self, save_directory: str | os.PathLike[str], *, model_card_kwargs: Mapping[str, str] | None = None
    ) -> None:
        """Write `model.safetensors`, the file of `pn.save`, `config.json` and the model card `README.md`, each atomically.

        Args:
            save_directory: Folder; it is created if missing, and other files in it stay.
            model_card_kwargs: Texts for the card: `license` (an identifier of the Hub such as `"mit"`), `training` (the
                recipe), `selection` (the rule by which this model was chosen, and the data it used).

        Raises:
            UnsupportedError: If the model has a part that files cannot hold.
            FileError: If the folder cannot be written to.
            ArgumentError: If the card has no such text.
        """
        _storage("hub").write_folder(self, save_directory, texts=model_card_kwargs)

    def push_to_hub(
        self,
        repo_id: str,
        *,
        revision: str | None = None,
        token: str | None = None,
        private: bool | None = None,
        commit_message: str = "Upload a model of probneural",
        model_card_kwargs: Mapping[str, str] | None = None,
    ) -> str:
        """Upload the files of `save_pretrained` to a repository of the Hub in one commit; needs `probneural[hub]`.

        Args:
            repo_id: Repository, `"user/name"`; it is created if missing.
            revision: Branch of the commit; the main branch by default.
            token: Access token; by default the one of `hf auth login`.
            private: Whether a new repository is private; by default the account's setting.
            commit_message: Message of the commit.
            model_card_kwargs: See `save_pretrained`.

        Returns:
            URL of the commit.

        Raises:
            UnsupportedError: If huggingface_hub is not installed, or the model has a part that files cannot hold.
            ArgumentError: If the card has no such text.
            OSError: If the Hub refuses; the errors of huggingface_hub.
        """
        api = optional("huggingface_hub", "push_to_hub", extra="hub").HfApi(token=token)
        with tempfile.TemporaryDirectory() as folder:
            _storage("hub").write_folder(self, folder, texts=model_card_kwargs, source=check_text(repo_id, "repo_id"))
            name = api.create_repo(repo_id=repo_id, private=private, exist_ok=True).repo_id
            return str(api.upload_folder(repo_id=name, folder_path=folder, commit_message=commit_message, revision=revision))

    @classmethod
    def from_pretrained(
        cls: type[Model],
        repo_id: str | os.PathLike[str],
        *,
        revision: str | None = None,
        token: str | None = None,
        device: torch.device | str = "cpu",
        operator: nn.Module | Sequence[nn.Module] | None = None,
    ) -> Model:
        """Load a model of this class; a base class, such as `Predictor`, loads all of its subclasses.

        Nothing of the repository is run: the file is compared with a schema, as by `pn.load`.

        Args:
            repo_id: Folder of `save_pretrained`, or repository of the Hub, which needs `probneural[hub]`.
            revision: Branch, tag or commit of the repository.
            token: Access token; by default the one of `hf auth login`.
            device: Device of the model; `"auto"` selects the best available.
            operator: Module of another library inside the predictor, or several; see [`load`][probneural.storage.load].

        Raises:
            FileError: If there is no such file, it is damaged, or holds a model of another class.
            ArgumentError: If the operator is needed and missing, or does not fit.
            UnsupportedError: If huggingface_hub is needed and not installed.
        """
        path = check_path(repo_id, "repo_id") / MODEL
        if not path.parent.is_dir():
            hub = optional("huggingface_hub", f"from_pretrained of {repo_id}, which is no folder,", extra="hub")
            try:
                path = hub.hf_hub_download(repo_id=str(repo_id), filename=MODEL, revision=revision, token=token)
            except (OSError, ValueError) as error:  # errors of connections, of the Hub, and of names
                raise FileError(expected=f"a folder or {MODEL}", got=str(error), remedy="check name and connection") from error
        return _storage("files").load_as(cls, path, device=device, operator=operator)


def _storage(module: str) -> Any:
    return importlib.import_module(f"probneural.storage.{module}")  # a higher layer
