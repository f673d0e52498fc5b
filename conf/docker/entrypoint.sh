#!/usr/bin/env bash
# The image's entrypoint: the command line of Delayline, but for `driver` and `executor`. With these Spark makes pods of
# the image, and says all else in arguments and variables (of Spark 4.0: `Constants`, `DriverCommandFeatureStep` and
# `BasicExecutorFeatureStep`).
set -euo pipefail

if [ "${1:-}" = driver ]; then
    shift
    options=(--deploy-mode client --conf "spark.driver.bindAddress=$SPARK_DRIVER_BIND_ADDRESS")
    # What `delayline submit-files` wrote when the image was built. Beside the arguments' own file of properties there
    # can be no second one.
    while read -r name value; do
        # What the application asks for holds.
        [ "$name" = spark.driver.memory ] && continue
        options+=(--conf "$name=${value//\\\\/\\}")
    done <"${0%/*}/../../submit/spark.properties"
    exec spark-submit "${options[@]}" "$@"
elif [ "${1:-}" != executor ]; then
    exec delayline "$@"
fi

jars="$(python -c 'from importlib.util import find_spec as f; print(*f("pyspark").submodule_search_locations)')/jars"
# In this order: the settings that Spark mounts, spark.executor.extraClassPath, Spark itself.
classpath=
for part in "${SPARK_CONF_DIR:-}" "${HADOOP_CONF_DIR:-}" "${SPARK_CLASSPATH:-}" "$jars/*"; do
    classpath+="${part:+${classpath:+:}$part}"
done

# One option each, numbered from 0 without a gap; they may have spaces in them.
options=()
name=SPARK_JAVA_OPT_0
while [ -n "${!name+set}" ]; do
    options+=("${!name}")
    name="SPARK_JAVA_OPT_${#options[@]}"
done

exec "${JAVA_HOME:+$JAVA_HOME/bin/}java" "${options[@]}" \
    "-Xms$SPARK_EXECUTOR_MEMORY" "-Xmx$SPARK_EXECUTOR_MEMORY" -cp "$classpath" \
    org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend \
    --driver-url "$SPARK_DRIVER_URL" \
    --executor-id "$SPARK_EXECUTOR_ID" \
    --cores "$SPARK_EXECUTOR_CORES" \
    --app-id "$SPARK_APPLICATION_ID" \
    --hostname "$SPARK_EXECUTOR_POD_IP" \
    --resourceProfileId "$SPARK_RESOURCE_PROFILE_ID" \
    --podName "$SPARK_EXECUTOR_POD_NAME"
