"""What is in the archive."""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _


class ArchiveFile(models.Model):
    """The manifest of the archive: a Parquet file that is part of it (pipeline/archiving/archive.py)."""

    path = models.CharField(_("path"), max_length=500, unique=True, help_text="Below the archive's folder")
    first_id = models.BigIntegerField(_("first message id"), help_text="It has messages from this id on")
    last_id = models.BigIntegerField(_("last message id"), help_text="And up to this one")
    rows = models.BigIntegerField(_("rows"))
    bytes = models.BigIntegerField(_("bytes"))
    # The first and the last of the archiver's steps that archived its messages.
    first_step = models.BigIntegerField(_("first step"), default=0)
    last_step = models.BigIntegerField(_("last step"), default=0)
    written_at = models.DateTimeField(_("written"), auto_now_add=True)

    class Meta:
        verbose_name = _("archived file")
        verbose_name_plural = _("archived files")
        ordering = ["first_id", "path"]

    def __str__(self) -> str:
        return self.path


class ArchivedMessage(models.Model):
    """A message of the database that is in the archive, or being written to it. The row goes when its message goes."""

    message_id = models.BigIntegerField(primary_key=True)
    write_id = models.BigIntegerField(help_text="The message is in the archive when no ArchiveLeftover has this id")


class ArchiveLeftover(models.Model):
    """Files of this deployment in the archive's folder that are not part of the archive: the sweep may delete them.

    A write is recorded here before its first file. The transaction that adds its files to the manifest removes the row.
    A write with a time was given up: another run deletes its files.
    """

    token = models.CharField(max_length=12, blank=True, help_text="A write: its files have this token in their names")
    path = models.CharField(max_length=500, blank=True, help_text="A file that compaction has replaced")
    replaced_at = models.DateTimeField(null=True, help_text="When that was: readers may need the file for a while")


class ArchiveOwner(models.Model):
    """The identity of this deployment, which is also in the archive's folder. There is one row."""

    identity = models.CharField(max_length=32)
