# Completions of remex for fish; `remex complete` knows what may follow.
complete --command remex --no-files --arguments '(remex complete fish -- (commandline --current-process --tokenize --cut-at-cursor) (commandline --current-token --cut-at-cursor) 2> /dev/null < /dev/null)'
