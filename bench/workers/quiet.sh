# A worker that tells that it is there, and then is quiet without any cost.
echo "ready $RANK $TORCHELASTIC_RESTART_COUNT $$" > "$BENCH_PIPE"
exec sleep 1000
