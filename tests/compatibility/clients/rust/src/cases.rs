use std::collections::{HashMap, HashSet};
use std::env;
use std::sync::LazyLock;
use std::time::Duration;

use google_cloud_auth::credentials::anonymous;
use google_cloud_gax::error::rpc::Code;
use google_cloud_iam_v1::model::Binding;
use google_cloud_pubsub::builder::subscriber::Subscribe;
use google_cloud_pubsub::client::BasePublisher;
use google_cloud_pubsub::error::PublishError;
use google_cloud_pubsub::model::schema::Type;
use google_cloud_pubsub::model::{DeadLetterPolicy, Encoding, Message, Schema, SchemaSettings, Subscription, Topic};
use google_cloud_pubsub::subscriber::MessageStream;
use google_cloud_pubsub::subscriber::handler::Handler;
use opentelemetry::propagation::TextMapPropagator;
use opentelemetry::trace::{TraceContextExt, TracerProvider};
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::{InMemorySpanExporter, SdkTracerProvider};
use tokio::time::{sleep, timeout};
use tracing_opentelemetry::OpenTelemetrySpanExt;
use tracing_subscriber::layer::SubscriberExt;

use crate::{
    Client, Outcome, PATIENCE, PROJECT, close, endpoint, ensure, message, next, numbered, publish, receive_all, text_of,
};

/// The spans of the whole program, which are kept from the first use on.
static SPANS: LazyLock<InMemorySpanExporter> = LazyLock::new(|| {
    let spans = InMemorySpanExporter::default();
    let provider = SdkTracerProvider::builder().with_simple_exporter(spans.clone()).build();
    let layer = tracing_opentelemetry::layer().with_tracer(provider.tracer("cases"));
    tracing::subscriber::set_global_default(tracing_subscriber::registry().with(layer))
        .expect("nothing else in this program collects spans");
    spans
});

/// All published messages arrive once, with their attributes.
pub async fn publish_and_receive(client: &Client) -> Outcome {
    let (topic, subscription) = client.create("publish", Subscription::new()).await?;
    let messages: Vec<_> =
        (0..1000).map(|number| message(number.to_string()).set_attributes([("number", number.to_string())])).collect();
    publish(&client.publisher, &topic, messages).await?;
    let mut texts = HashSet::new();
    for message in receive_all(client.subscribe(&subscription), 1000).await? {
        let text = text_of(&message);
        ensure!(message.attributes.get("number") == Some(&text), "the attributes are {:?}", message.attributes);
        texts.insert(text);
    }
    ensure!(texts.len() == 1000, "{} different messages came", texts.len());
    Ok(())
}

/// The messages of each ordering key arrive in the order in which they were published.
pub async fn ordered(client: &Client) -> Outcome {
    let (topic, subscription) = client.create("ordered", Subscription::new().set_enable_message_ordering(true)).await?;
    let messages: Vec<_> = numbered(400)
        .into_iter()
        .enumerate()
        .map(|(number, message)| message.set_ordering_key(format!("key {}", number % 4)))
        .collect();
    publish(&client.publisher, &topic, messages).await?;
    let mut next_numbers: HashMap<String, usize> = (0..4).map(|key| (format!("key {key}"), key)).collect();
    for message in receive_all(client.subscribe(&subscription), 400).await? {
        let number = next_numbers.get_mut(&message.ordering_key).ok_or("a message has another ordering key")?;
        let text = text_of(&message);
        ensure!(text == number.to_string(), "{text} came in place of {number}");
        *number += 4;
    }
    Ok(())
}

/// A stream brings no more messages than it asked for, and a nacked message again.
pub async fn streaming(client: &Client) -> Outcome {
    let (topic, subscription) = client.create("streaming", Subscription::new()).await?;
    publish(&client.publisher, &topic, numbered(100)).await?;
    let mut stream = client.subscribe(&subscription).set_max_outstanding_messages(10).build();
    let mut received_ids = HashSet::new();
    let mut acked_count = 0;
    while acked_count < 100 {
        let (message, handler) = next(&mut stream).await?;
        if received_ids.insert(message.message_id.clone()) && text_of(&message).ends_with('7') {
            handler.nack();
        } else {
            handler.ack();
            acked_count += 1;
        }
    }
    close(stream).await;
    ensure!(received_ids.len() == 100, "{} different messages came", received_ids.len());
    Ok(())
}

/// Acknowledgements are confirmed, and what is confirmed never comes again.
pub async fn exactly_once(client: &Client) -> Outcome {
    let fields = Subscription::new().set_enable_exactly_once_delivery(true);
    let (topic, subscription) = client.create("exactly-once", fields).await?;
    publish(&client.publisher, &topic, numbered(50)).await?;
    let mut stream = client.subscribe(&subscription).build();
    let mut acked_ids = HashSet::new();
    while acked_ids.len() < 50 {
        let id = receive_confirmed(&mut stream).await?.message_id;
        ensure!(acked_ids.insert(id.clone()), "message {id} came again");
    }
    close(stream).await;
    publish(&client.publisher, &topic, vec![message("last")]).await?;
    let mut stream = client.subscribe(&subscription).build();
    let last = text_of(&receive_confirmed(&mut stream).await?);
    ensure!(last == "last", "{last} came again");
    close(stream).await;
    Ok(())
}

/// Returns the next message after its acknowledgement is confirmed. A stream that closes nacks what is acknowledged without
/// confirmation and not yet sent.
async fn receive_confirmed(stream: &mut MessageStream) -> Outcome<Message> {
    let (message, handler) = next(stream).await?;
    let Handler::ExactlyOnce(handler) = handler else {
        return Err("the stream doesn't say that delivery is exactly once".into());
    };
    handler.confirmed_ack().await?;
    Ok(message)
}

/// A message that is nacked too often goes to the dead-letter topic.
pub async fn dead_letters(client: &Client) -> Outcome {
    let (dead_topic, dead_subscription) = client.create("dead", Subscription::new()).await?;
    let policy = DeadLetterPolicy::new().set_dead_letter_topic(dead_topic).set_max_delivery_attempts(5);
    let fields = Subscription::new().set_dead_letter_policy(policy);
    let (topic, subscription) = client.create("dead-letters", fields).await?;
    publish(&client.publisher, &topic, vec![message("hopeless")]).await?;
    let mut stream = client.subscribe(&subscription).build();
    let mut attempts = Vec::new();
    while attempts.len() < 5 {
        let (_, handler) = next(&mut stream).await?;
        attempts.push(handler.delivery_attempt().ok_or("a message has no delivery attempt")?);
        handler.nack();
    }
    close(stream).await;
    ensure!(attempts == [1, 2, 3, 4, 5], "the attempts were {attempts:?}");
    let dead = &receive_all(client.subscribe(&dead_subscription), 1).await?[0];
    let source = dead.attributes.get("CloudPubSubDeadLetterSourceSubscription").map(String::as_str);
    ensure!(text_of(dead) == "hopeless" && source == Some("dead-letters"), "{} came from {source:?}", text_of(dead));
    Ok(())
}

/// A topic with a schema refuses what doesn't match it.
pub async fn schemas(client: &Client) -> Outcome {
    let definition = r#"{"type": "record", "name": "Order", "fields": [{"name": "count", "type": "int"}]}"#;
    let schema = Schema::new().set_type(Type::Avro).set_definition(definition);
    let created =
        client.schemas.create_schema().set_parent(PROJECT).set_schema_id("order").set_schema(schema).send().await?;
    let settings = SchemaSettings::new().set_schema(created.name).set_encoding(Encoding::Json);
    let topic = client.create_topic("schemas", Topic::new().set_schema_settings(settings)).await?;
    let subscription = client.create_subscription(&topic, Subscription::new()).await?;
    publish(&client.publisher, &topic, vec![message(r#"{"count": 1}"#)]).await?;
    let publisher = client.publisher.publisher(&topic).build();
    let refusal = publisher.publish(message(r#"{"count": "many"}"#)).await;
    let code = match &refusal {
        Err(PublishError::Rpc(error)) => error.status().map(|status| status.code),
        _ => None,
    };
    ensure!(code == Some(Code::InvalidArgument), "a message without the schema's form got {refusal:?}");
    let received = &receive_all(client.subscribe(&subscription), 1).await?[0];
    let encoding = received.attributes.get("googclient_schemaencoding").map(String::as_str);
    ensure!(encoding == Some("JSON"), "the attributes are {:?}", received.attributes);
    Ok(())
}

/// Policies are set, read and tested, also with members that the server doesn't know.
pub async fn policies(client: &Client) -> Outcome {
    let (topic, _) = client.create("iam", Subscription::new()).await?;
    let binding = Binding::new().set_role("roles/pubsub.viewer").set_members(["group:readers@example.com"]);
    let mut policy = client.schemas.get_iam_policy().set_resource(&topic).send().await?;
    policy.bindings.push(binding.clone());
    client.schemas.set_iam_policy().set_resource(&topic).set_policy(policy).send().await?;
    let policy = client.schemas.get_iam_policy().set_resource(&topic).send().await?;
    ensure!(policy.bindings == [binding], "the policy is {policy:?}");
    let permissions = ["pubsub.topics.publish", "pubsub.topics.get"];
    let tested = client.schemas.test_iam_permissions().set_resource(&topic).set_permissions(permissions).send().await?;
    ensure!(tested.permissions.len() == 2, "the permissions are {:?}", tested.permissions);
    Ok(())
}

/// With tracing on, the client records its calls, and a message brings its publisher's trace to the subscriber.
pub async fn tracing(client: &Client) -> Outcome {
    let (topic, subscription) = client.create("tracing", Subscription::new()).await?;
    let spans = &*SPANS;
    let traced = BasePublisher::builder()
        .with_endpoint(endpoint()?)
        .with_credentials(anonymous::Builder::new().build())
        .with_tracing()
        .build()
        .await?;
    let context = tracing::info_span!("order create").context();
    let mut headers = HashMap::new();
    TraceContextPropagator::new().inject_context(&context, &mut headers);
    let traceparent = headers.remove("traceparent").ok_or("the span has no trace")?;
    let message = message("traced").set_attributes([("googclient_traceparent", &traceparent)]);
    publish(&traced, &topic, vec![message]).await?;
    let received = &receive_all(client.subscribe(&subscription), 1).await?[0];
    let parent = received.attributes.get("googclient_traceparent").map(String::as_str).unwrap_or_default();
    let trace_id = context.span().span_context().trace_id().to_string();
    ensure!(parent.contains(&trace_id), "the trace of the message is {parent:?}");
    // A call's span ends shortly after its answer.
    let is_recorded = async {
        while !spans.get_finished_spans()?.iter().any(|span| span.name.ends_with("Publisher/Publish")) {
            sleep(Duration::from_millis(10)).await;
        }
        Outcome::Ok(())
    };
    timeout(PATIENCE, is_recorded).await.map_err(|_| "the client recorded no call")?
}

/// A client goes on after its connections were idle.
pub async fn idle(client: &Client) -> Outcome {
    let pause = Duration::from_secs_f64(env::var("IDLE_SECONDS")?.parse()?);
    let (topic, subscription) = client.create("idle", Subscription::new()).await?;
    let mut stream = client.subscribe(&subscription).build();
    for (text, pause) in [("0", Duration::ZERO), ("1", pause)] {
        sleep(pause).await;
        publish(&client.publisher, &topic, vec![message(text)]).await?;
        let (message, handler) = next(&mut stream).await?;
        handler.ack();
        ensure!(text_of(&message) == text, "{} came in place of {text}", text_of(&message));
    }
    close(stream).await;
    Ok(())
}

/// A subscriber that stops loses nothing: the next one gets at once what the first one hadn't acknowledged.
pub async fn shutdown(client: &Client) -> Outcome {
    let (topic, subscription) = client.create("shutdown", Subscription::new().set_ack_deadline_seconds(600)).await?;
    publish(&client.publisher, &topic, numbered(100)).await?;
    let first = receive_all(lease_for_long(client.subscribe(&subscription)), 30).await?;
    let rest = receive_all(lease_for_long(client.subscribe(&subscription)), 70).await?;
    let texts: HashSet<_> = first.iter().chain(&rest).map(text_of).collect();
    ensure!(texts.len() == 100, "{} different messages were acknowledged", texts.len());
    Ok(())
}

/// Makes a stream hold its messages for ten minutes, so that nothing comes back because a lease lapsed.
fn lease_for_long(options: Subscribe) -> Subscribe {
    options.set_max_lease_extension(Duration::from_secs(600))
}
