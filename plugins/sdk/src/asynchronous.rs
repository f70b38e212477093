//! Backends written as `async` code, on a small tokio runtime of each instance's own.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::{Builder, Runtime};
use tokio::sync::Semaphore;

use crate::{
    Answer, Backend, Batch, Capabilities, Context, Decision, Diagnostics, Failure, Health, Host,
    Item, OwnedBatch,
};

/// A counter backend that decides in `async` code, as one whose counters are behind a network does. Export it wrapped:
/// `export_backend!(Async<MyBackend>)`.
///
/// Each instance has a tokio runtime of its own with one worker: the host's cannot be used across libraries. The SDK keeps the
/// batch's deadline, by dropping what is being decided, and `max_inflight`; a panic costs that one batch, whose items become
/// errors. When the instance ends, what is still being decided is dropped and answered as unavailable, then the value is
/// dropped.
pub trait AsyncBackend: Sized + Send + Sync + 'static {
    /// As [`Backend::KIND`].
    const KIND: &'static str;
    /// As [`Backend::NAME`].
    const NAME: &'static str;
    /// As [`Backend::VERSION`].
    const VERSION: &'static str;
    /// As [`Backend::VENDOR`].
    const VENDOR: &'static str;
    /// As [`Backend::HOMEPAGE`].
    const HOMEPAGE: &'static str = "";
    /// As [`Backend::BUILD_ID`].
    const BUILD_ID: &'static str = "";
    /// What it can do: [`Capabilities::ASYNC`] and what more.
    const CAPABILITIES: Capabilities;
    /// As [`Backend::MAX_LIMIT`].
    const MAX_LIMIT: u64 = u64::MAX;
    /// As [`Backend::MAX_KEY_LEN`].
    const MAX_KEY_LEN: u32 = 512;
    /// As [`Backend::MAX_BATCH`].
    const MAX_BATCH: u32 = 0;
    /// As [`Backend::OPTIONS_SCHEMA`].
    const OPTIONS_SCHEMA: &'static str;
    /// As [`Backend::SET_MAX_ENTRIES`].
    const SET_MAX_ENTRIES: Option<fn(backend: &Self, max_entries: u64)> = None;

    /// As [`Backend::Options`].
    type Options: serde::de::DeserializeOwned;

    /// As [`Backend::validate`].
    fn validate(options: &Self::Options, diagnostics: &mut Diagnostics) {
        let _ = (options, diagnostics);
    }

    /// As [`Backend::create`], inside the instance's runtime: `tokio::spawn` works.
    ///
    /// # Errors
    /// What is wrong with the options or the system; nothing is left behind.
    fn create(context: Context<'_, Self::Options>) -> Result<Self, Diagnostics>;

    /// Decides the checks of one request in order, each atomically over its windows and against every other check of its key.
    /// One decision for each item; after one that ends the batch nothing is charged and nothing follows.
    fn check(&self, batch: OwnedBatch) -> impl Future<Output = Vec<Decision>> + Send;

    /// As [`Backend::health`].
    fn health(&self) -> Health;

    /// No new checks will come, and those there were are over or out of time: close connections. Dropped at the deadline.
    fn drain(&self) -> impl Future<Output = ()> + Send {
        async {}
    }
}

/// An [`AsyncBackend`] as the [`Backend`] that is exported.
#[derive(Debug)]
pub struct Async<T> {
    /// `None` only while it is being dropped.
    runtime: Option<Runtime>,
    backend: Arc<T>,
    /// A permit for each batch that is being decided.
    places: Arc<Semaphore>,
    most: u32,
    host: Host,
}

impl<T: AsyncBackend> Backend for Async<T> {
    const KIND: &'static str = T::KIND;
    const NAME: &'static str = T::NAME;
    const VERSION: &'static str = T::VERSION;
    const VENDOR: &'static str = T::VENDOR;
    const HOMEPAGE: &'static str = T::HOMEPAGE;
    const BUILD_ID: &'static str = T::BUILD_ID;
    const CAPABILITIES: Capabilities = T::CAPABILITIES;
    const MAX_LIMIT: u64 = T::MAX_LIMIT;
    const MAX_KEY_LEN: u32 = T::MAX_KEY_LEN;
    const MAX_BATCH: u32 = T::MAX_BATCH;
    const OPTIONS_SCHEMA: &'static str = T::OPTIONS_SCHEMA;
    const SET_MAX_ENTRIES: Option<fn(&Self, u64)> = if T::SET_MAX_ENTRIES.is_some() {
        Some(|instance, max_entries| {
            if let Some(set) = T::SET_MAX_ENTRIES {
                set(&instance.backend, max_entries);
            }
        })
    } else {
        None
    };

    type Options = T::Options;

    fn validate(options: &T::Options, diagnostics: &mut Diagnostics) {
        T::validate(options, diagnostics);
    }

    fn create(context: Context<'_, T::Options>) -> Result<Self, Diagnostics> {
        let runtime = Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name(format!("quota-{}", T::KIND))
            .enable_all()
            .build()
            .map_err(|error| {
                let mut found = Diagnostics::new();
                found.error(
                    "runtime",
                    "",
                    format!("the threads of the backend cannot be started: {error}"),
                );
                found
            })?;
        let host = context.host;
        let most = match u32::try_from(context.max_inflight) {
            Ok(0) | Err(_) => u32::MAX,
            Ok(most) => most,
        };
        let entered = runtime.enter();
        let backend = T::create(context)?;
        drop(entered);
        Ok(Self {
            runtime: Some(runtime),
            backend: Arc::new(backend),
            places: Arc::new(Semaphore::new(most as usize)),
            most,
            host,
        })
    }

    /// Never asked: every batch is answered by its ticket.
    fn check(&self, _item: &Item<'_>, _now_unix_ms: u64) -> Decision {
        Decision::Failed(Failure::Error)
    }

    fn check_batch(&self, batch: &Batch<'_>) -> Answer {
        let all = |failure| Answer::Ready(vec![Decision::Failed(failure); batch.len()]);
        let time_left = batch.time_left();
        if time_left == Some(Duration::ZERO) {
            return all(Failure::Timeout);
        }
        let Ok(place) = Arc::clone(&self.places).try_acquire_owned() else {
            self.host.report_error(
                Failure::Unavailable,
                "as many requests as may be are being decided",
            );
            return all(Failure::Unavailable);
        };
        let (Some(runtime), Some((batch, ticket))) = (&self.runtime, batch.take()) else {
            return all(Failure::Unavailable);
        };
        let backend = Arc::clone(&self.backend);
        runtime.spawn(async move {
            let deciding = backend.check(batch);
            let decided = match time_left {
                Some(time_left) => tokio::time::timeout(time_left, deciding).await.ok(),
                None => Some(deciding.await),
            };
            match decided {
                Some(decisions) => ticket.complete(&decisions),
                None => ticket.fail(Failure::Timeout),
            }
            drop(place);
        });
        Answer::Pending
    }

    fn health(&self) -> Health {
        let deciding = usize::try_from(self.most)
            .unwrap_or(usize::MAX)
            .saturating_sub(self.places.available_permits());
        Health {
            inflight: u64::try_from(deciding).unwrap_or(u64::MAX),
            ..self.backend.health()
        }
    }

    fn drain(&self, deadline_mono_ns: u64) {
        let Some(runtime) = &self.runtime else { return };
        let left = deadline_mono_ns.saturating_sub(self.host.now_mono_ns());
        let drained = async {
            // Every permit: no batch is being decided any more.
            let all = self.places.acquire_many(self.most).await;
            self.backend.drain().await;
            drop(all);
        };
        let _in_time_or_left_to_the_end = runtime
            .block_on(async { tokio::time::timeout(Duration::from_nanos(left), drained).await });
    }
}

impl<T> Drop for Async<T> {
    /// Waits until every thread has ended; what is being decided is dropped, whose tickets answer.
    fn drop(&mut self) {
        drop(self.runtime.take());
    }
}
