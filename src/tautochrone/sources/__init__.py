"""Sources that we read ourselves: change logs of databases, behind the port `model.source.ChangeLog`."""
