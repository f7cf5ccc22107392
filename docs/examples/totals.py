# %% [markdown]
# # From a subscription to totals, and back to a topic
#
# A shop publishes its orders. This notebook reads them as a stream, adds them up by kind and minute, and publishes each
# total, so that other programs can subscribe to them. Open it in Jupyter or an editor that knows cells (`# %%`), or run
# it as a program. It needs `pip install '.[spark]'` in a checkout, Java, and PushHub: `make up`, or `pushhub emulator`.

# %%
from __future__ import annotations

import json
import os
import tempfile
from contextlib import suppress

from google.api_core.exceptions import AlreadyExists
from google.cloud import pubsub_v1
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

from deliveries.pipeline.datasource import register

# Google's clients read this variable. With credentials, see the options `endpoint` and `credentialsFile`.
HUB = os.environ.setdefault("PUBSUB_EMULATOR_HOST", "127.0.0.1:8085")
ORDERS, TOTALS = "projects/demo/topics/orders", "projects/demo/topics/totals"
ANALYSIS, REPORT = "projects/demo/subscriptions/analysis", "projects/demo/subscriptions/report"

spark = SparkSession.builder.getOrCreate()
register(spark)

# %% [markdown]
# Two topics, and a subscription of each: one for Spark, and one for a reader of the totals.

# %%
publisher, subscriber = pubsub_v1.PublisherClient(), pubsub_v1.SubscriberClient()
for topic, subscription in ((ORDERS, ANALYSIS), (TOTALS, REPORT)):
    with suppress(AlreadyExists):
        publisher.create_topic(name=topic)
        subscriber.create_subscription(name=subscription, topic=topic)

# %% [markdown]
# Some orders, as the shop would publish them.

# %%
for number in range(100):
    order = {"sku": f"A-{number % 7}", "total": number / 4}
    publisher.publish(ORDERS, json.dumps(order).encode(), kind="return" if number % 5 == 0 else "order").result()

# %% [markdown]
# The subscription as a stream: a row for each message.

# %%
hub = {"emulatorHost": HUB}
messages = spark.readStream.format("pushhub").options(subscription=ANALYSIS, **hub).load()
messages.printSchema()

# %% [markdown]
# The totals. A message may come twice, and then has the same id: a set has it once.

# %%
orders = messages.select(
    "message_id",
    "publish_time",
    sf.col("attributes")["kind"].alias("kind"),
    sf.from_json(sf.col("data").cast("string"), "sku STRING, total DOUBLE")["total"].alias("total"),
)
totals = (
    orders.withWatermark("publish_time", "10 minutes")
    .groupBy(sf.window("publish_time", "1 minute"), "kind")
    .agg(sf.collect_set(sf.struct("message_id", "total")).alias("orders"))
    .select(
        "kind",
        sf.col("window.start").alias("minute"),
        sf.size("orders").alias("orders"),
        sf.aggregate("orders.total", sf.lit(0.0), lambda total, one: total + one).alias("total"),
    )
)

# %% [markdown]
# Each batch publishes the totals that it changed. The kind is their ordering key: a
# subscription with ordering gets them in order.


# %%
def publish_totals(batch, number):
    rows = batch.select(
        sf.to_json(sf.struct("minute", "orders", "total")).alias("data"),
        sf.create_map(sf.lit("kind"), "kind").alias("attributes"),
        sf.col("kind").alias("ordering_key"),
    )
    rows.write.format("pushhub").mode("append").options(topic=TOTALS, **hub).save()


checkpoint = tempfile.mkdtemp(prefix="totals-")
query = (
    totals.writeStream.outputMode("update")
    .foreachBatch(publish_totals)
    .option("checkpointLocation", checkpoint)
    .trigger(availableNow=True)
    .start()
)
query.awaitTermination()

# %% [markdown]
# Without `availableNow`, the query goes on with what comes, and from its checkpoint after a stop. A look at the totals,
# as a table, which acknowledges nothing:

# %%
report = spark.read.format("pushhub").options(subscription=REPORT, **hub).load()
for row in report.orderBy("publish_time", "message_id").collect():
    print(row.attributes["kind"], row.data.decode())
