"""`kreplog console`: a page in the browser that shows a running cluster, or a directory of logs, as it changes.

access            tokens, cookies, Host and Origin: which requests are answered at all
web_server        the routes, the static files and the process
live              the websocket of a page: what it looks at is sent when it changes
snapshot          a cluster at a moment: brokers, topics, partitions; timeline: what changed between two
cluster_source    a running cluster, by the blocking clients of client_threads
directory_source  logs in a directory
cluster_requests  what a page requests of a cluster; acts: what it changes; parameters: of both
record_pages      record batches as JSON
broker_metrics    the metrics that brokers serve
static            the page: plain modules of JavaScript
"""
