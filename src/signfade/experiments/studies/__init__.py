"""One framework for all studies: plan the runs, run them, keep their records, render tables and figures."""
