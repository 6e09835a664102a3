//! What the crates of kiln log while something runs, for the tests of what is logged.

use std::sync::{Arc, Mutex};

use tracing::field::{Field, Visit};
use tracing::span;
use tracing::{Event, Level, Metadata, Subscriber};

/// Keeps the messages of this level and of graver ones.
#[derive(Clone)]
struct Collect {
    least: Level,
    messages: Arc<Mutex<Vec<String>>>,
}

struct Message(String);

impl Visit for Message {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        if field.name() == "message" {
            self.0 = format!("{value:?}");
        }
    }
}

impl Subscriber for Collect {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("kiln") && *metadata.level() <= self.least
    }

    fn event(&self, event: &Event<'_>) {
        let mut message = Message(String::new());
        event.record(&mut message);
        self.messages.lock().unwrap().push(message.0);
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}
    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}
    fn enter(&self, _: &span::Id) {}
    fn exit(&self, _: &span::Id) {}
}

/// What `run` gives, and the messages of level `least` and graver that this thread saw meanwhile.
pub(crate) fn messages<T>(least: Level, run: impl FnOnce() -> T) -> (Vec<String>, T) {
    let collect = Collect { least, messages: Arc::default() };
    let result = tracing::subscriber::with_default(collect.clone(), run);
    let messages = std::mem::take(&mut *collect.messages.lock().unwrap());
    (messages, result)
}
