complete --keep-order --exclusive --command ghostctl --arguments "(GHOSTCTL_COMPLETE=fish ghostctl -- (commandline --current-process --tokenize --cut-at-cursor) (commandline --current-token))"
