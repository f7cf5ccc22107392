//! Runs cases of Google's Rust client against PUBSUB_EMULATOR_HOST: reads the name of a case from each line of its input
//! and prints its result as a line of JSON.
//!
//! The crate expresses all cases except one: it doesn't write a trace into its messages, so the case `tracing` does that
//! itself, as an application would. Its client for topics has no IAM, but its client for schemas has it for every resource.

mod cases;

use std::collections::HashSet;
use std::env;
use std::error::Error;
use std::io;
use std::time::Duration;

use google_cloud_auth::credentials::anonymous;
use google_cloud_pubsub::builder::subscriber::Subscribe;
use google_cloud_pubsub::client::{BasePublisher, SchemaService, Subscriber, SubscriptionAdmin, TopicAdmin};
use google_cloud_pubsub::model::{Message, Subscription, Topic};
use google_cloud_pubsub::subscriber::MessageStream;
use google_cloud_pubsub::subscriber::handler::Handler;
use serde_json::json;
use tokio::runtime::Runtime;
use tokio::time::timeout;

const PROJECT: &str = "projects/shop";
/// How long a case may wait for a message.
const PATIENCE: Duration = Duration::from_secs(60);

/// The result of a case or of a step; the error says what isn't as it should be.
type Outcome<T = ()> = Result<T, Box<dyn Error + Send + Sync>>;

/// Returns an error from the function unless the condition is true.
macro_rules! ensure {
    ($condition:expr, $($message:tt)+) => {
        if !$condition {
            return Err(format!($($message)+).into());
        }
    };
}
use ensure;

struct Client {
    topics: TopicAdmin,
    subscriptions: SubscriptionAdmin,
    schemas: SchemaService,
    publisher: BasePublisher,
    subscriber: Subscriber,
}

fn main() -> Outcome {
    // The HTTP client doesn't start without a provider of cryptography, although no case uses TLS.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let runtime = Runtime::new()?;
    for line in io::stdin().lines() {
        let name = line?;
        let outcome = runtime.block_on(run(&name));
        let error = outcome.err().map(|reason| reason.to_string()).unwrap_or_default();
        println!("{}", json!({"case": name, "error": error}));
    }
    Ok(())
}

/// Runs a case with a client of its own, whose connections end with the case.
async fn run(name: &str) -> Outcome {
    let client = &Client::connect().await?;
    match name {
        "publish" => cases::publish_and_receive(client).await,
        "ordered" => cases::ordered(client).await,
        "streaming" => cases::streaming(client).await,
        "exactly-once" => cases::exactly_once(client).await,
        "dead-letters" => cases::dead_letters(client).await,
        "schemas" => cases::schemas(client).await,
        "iam" => cases::policies(client).await,
        "tracing" => cases::tracing(client).await,
        "idle" => cases::idle(client).await,
        "shutdown" => cases::shutdown(client).await,
        _ => Err(format!("there is no case {name:?}").into()),
    }
}

impl Client {
    async fn connect() -> Outcome<Self> {
        let endpoint = endpoint()?;
        // The administrative clients speak REST, the publisher and the subscriber gRPC.
        macro_rules! build {
            ($kind:ident) => {
                $kind::builder()
                    .with_endpoint(endpoint.as_str())
                    .with_credentials(anonymous::Builder::new().build())
                    .build()
                    .await?
            };
        }
        Ok(Self {
            topics: build!(TopicAdmin),
            subscriptions: build!(SubscriptionAdmin),
            schemas: build!(SchemaService),
            publisher: build!(BasePublisher),
            subscriber: build!(Subscriber),
        })
    }

    async fn create_topic(&self, name: &str, fields: Topic) -> Outcome<String> {
        let topic = fields.set_name(format!("{PROJECT}/topics/{name}"));
        Ok(self.topics.create_topic().with_request(topic).send().await?.name)
    }

    /// Subscribes to a topic; the subscription gets the last part of the topic's name.
    async fn create_subscription(&self, topic: &str, fields: Subscription) -> Outcome<String> {
        let subscription = fields.set_topic(topic).set_name(topic.replace("/topics/", "/subscriptions/"));
        Ok(self.subscriptions.create_subscription().with_request(subscription).send().await?.name)
    }

    /// Creates a topic and a subscription to it, and returns their names.
    async fn create(&self, name: &str, fields: Subscription) -> Outcome<(String, String)> {
        let topic = self.create_topic(name, Topic::new()).await?;
        let subscription = self.create_subscription(&topic, fields).await?;
        Ok((topic, subscription))
    }

    fn subscribe(&self, subscription: &str) -> Subscribe {
        self.subscriber.subscribe(subscription)
    }
}

fn endpoint() -> Outcome<String> {
    Ok(format!("http://{}", env::var("PUBSUB_EMULATOR_HOST")?))
}

/// Publishes messages and returns when the server has them all.
async fn publish(client: &BasePublisher, topic: &str, messages: Vec<Message>) -> Outcome {
    let publisher = client.publisher(topic).build();
    let count = messages.len();
    let pending: Vec<_> = messages.into_iter().map(|message| publisher.publish(message)).collect();
    let mut ids = HashSet::new();
    for publishing in pending {
        ids.insert(publishing.await?);
    }
    ensure!(ids.len() == count, "{} ids for {count} messages", ids.len());
    Ok(())
}

fn message(text: impl Into<String>) -> Message {
    Message::new().set_data(text.into())
}

fn numbered(count: usize) -> Vec<Message> {
    (0..count).map(|number| message(number.to_string())).collect()
}

fn text_of(message: &Message) -> String {
    String::from_utf8_lossy(&message.data).into_owned()
}

async fn next(stream: &mut MessageStream) -> Outcome<(Message, Handler)> {
    let received =
        timeout(PATIENCE, stream.next()).await.map_err(|_| format!("no message came within {PATIENCE:?}"))?;
    Ok(received.ok_or("the stream ended")??)
}

/// Ends a stream after its acknowledgements are sent; the messages that the case hasn't taken from it are nacked.
async fn close(stream: MessageStream) {
    stream.shutdown_token().shutdown().await;
}

/// Acknowledges as many messages as are expected and returns them in the order they came in.
async fn receive_all(options: Subscribe, count: usize) -> Outcome<Vec<Message>> {
    let mut stream = options.build();
    let mut received = Vec::new();
    while received.len() < count {
        let (message, handler) = next(&mut stream).await?;
        handler.ack();
        received.push(message);
    }
    close(stream).await;
    Ok(received)
}
