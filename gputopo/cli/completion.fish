# Completes gputopo in fish; written by: gputopo completion fish
complete -c gputopo -a '(env _GPUTOPO_COMPLETE=(commandline -cp) gputopo 2>/dev/null)'
