"""What all pages of the console share: the site, its login, and the checks of each page."""
