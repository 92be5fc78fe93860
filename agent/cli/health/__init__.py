"""Commands that show how nodes are: `status`, `page`, `fleet`, `top`, `diag`."""
