"""The client without `await`: its handles, run by the background thread with the caller's thread waiting."""
