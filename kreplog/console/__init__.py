"""`kreplog console` and `kreplog top`: a page in the browser, and the terminal, show a cluster as it changes.

access            tokens, cookies, Host and Origin: which requests are answered at all
web_server        the routes, the static files and the process
live              the websocket of a page: what it looks at is sent when it changes
snapshot          a cluster at a moment: brokers, topics, partitions; out_of_sync: which brokers are, since when, why
timeline          events, the newest of them; cluster_changes: what changed between two snapshots
cluster_source    a running cluster, by the blocking clients of client_threads
directory_source  logs in a directory
cluster_requests  what a page requests of a cluster; acts: what it changes; parameters: of both
replays           pages to step through; tracing: of a running cluster; replay_source: nothing but them
record_pages      record batches as JSON
group_lags        the facts of all groups, by and by; group_lag_times, lag_times, lag_history: their lags over time
broker_metrics    the metrics that brokers serve; topic_rates: records a second of topics
terminal          `kreplog top`: what it reads when, and its keys (terminal_keys); terminal_frame: what is on the screen
static            the page: plain modules of JavaScript
"""
