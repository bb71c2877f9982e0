#!/bin/sh
# Prints the rules of config/prometheus/ as the Prometheus Operator takes them.
set -eu
CDPATH='' cd -- "$(dirname -- "$0")/../../config/prometheus"
cat <<'HEAD'
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: hotreload
spec:
  groups:
HEAD
for file in recording.yml alerts.yml; do sed '1,/^groups:$/d; s/^/  /' "$file"; done
