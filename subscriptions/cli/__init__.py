"""The command line with gcloud's words. It speaks REST, so it works against any PushHub, and needs no database."""
