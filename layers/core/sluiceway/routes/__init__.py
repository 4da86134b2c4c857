"""The routes of the partner API: a request becomes a use case, and its outcome a reply."""
